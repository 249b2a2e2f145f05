"""Write the table of error kinds and the index of error messages in docs/troubleshooting.md, from the code.

    python docs/site/error_index.py

The index lists every message in the source text with its fix. Variables appear as capitals, other computed values as
`...`. A test compares the page with the code.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from orchestrator.support import errors
from train_jobs.artifacts.mounts import write_error

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
KINDS = {name: found for name in errors.__all__ if (found := getattr(errors, name)) is not errors.UserError}
TABLE = "| kind | exit code | meaning |"
HEADING = "## Index of messages"


def errors_table() -> str:
    """Return a table of all kinds of errors with the exit code of the command line."""
    rows = [
        f"| `{kind.kind}` | {kind.exit_code} | {_cell(' '.join((kind.__doc__ or '').partition('Args:')[0].split()))} |"
        for kind in sorted(KINDS.values(), key=lambda kind: (kind.exit_code, kind.kind))
    ]
    return "\n".join([TABLE, "| --- | --- | --- |", *rows])


def errors_index() -> str:
    """Return a table of messages and fixes for each kind of error."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for package in ("orchestrator", "train_jobs"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for name, message, fix in raised(ast.parse(path.read_text(encoding="utf-8"))):
                found[KINDS[name].kind].add((message, fix))
    lines = [HEADING]
    for kind in sorted(found):
        lines += ["", f"### {kind}", "", "| message | fix |", "| --- | --- |"]
        lines += [f"| {_cell(message)} | {_cell(fix)} |" for message, fix in sorted(found[kind])]
    return "\n".join(lines)


def raised(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Yield class, message and fix of each error that a module constructs with a message of its own."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
            continue
        words = {word.arg: template(word.value) for word in node.keywords}
        name, message, fix = node.func.id, template(node.args[0]), words.get("fix", "")
        if name == write_error.__name__:
            name, message, fix = "StorageError", f"{message}: REASON", fix + words.get("then", "")
        if name in KINDS and any(character.islower() for character in message):
            yield name, message, fix if any(character.islower() for character in fix) else ""


def template(node: ast.expr) -> str:
    """Return a string of the source with `...` in place of each computed value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    if isinstance(node, ast.IfExp):
        return template(node.body)
    if isinstance(node, ast.BoolOp):
        return template(node.values[-1])
    if isinstance(node, ast.FormattedValue):
        return template(node.value)
    if isinstance(node, ast.Name | ast.Attribute):
        return (node.id if isinstance(node, ast.Name) else node.attr).upper()
    return "..."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def updated(page: str) -> str:
    """Return the page with the table and the index of this code."""
    before, _, rest = page.partition(TABLE)
    _, _, after = rest.partition("\n\n")
    middle, _, _ = after.partition(HEADING)
    return f"{before}{errors_table()}\n\n{middle.rstrip()}\n\n{errors_index()}\n"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
