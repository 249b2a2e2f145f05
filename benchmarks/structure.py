"""Measure the structure of a checkout: files, lines, statements, loose modules, circles, shared names, type ladders.

    python -m benchmarks.structure              # this checkout
    python -m benchmarks.structure OTHER        # another checkout, for a comparison

Everything is read from the syntax trees of `orchestrator/` and `train_jobs/`; nothing is imported. Statements are
`ast.stmt` nodes without docstrings. Import circles count every import: lazy ones and those for type checking too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("orchestrator", "train_jobs")
KIND_CLASS = re.compile(r"(Pretrain|Prepare|Finetune|Predict|Evaluate)(Spec|Plan|Config|Code)$")
KINDS = ("pretrain", "prepare", "finetune", "evaluate", "predict")
BACKEND_WORDS = {"azure", "AZURE", "local", "LOCAL", "debug", "DEBUG"}
LONG_FUNCTION = 50
MANY_PARAMETERS = 7


def module_name(path: Path, root: Path) -> str:
    """Return the dotted name of a module."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(tree: ast.Module) -> int:
    """Count statements without docstrings."""
    found = sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
    return found - sum(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for node in ast.walk(tree)
    )


def imports(tree: ast.Module, name: str, modules: set[str]) -> set[str]:
    """Return the modules of the project that a module imports anywhere in its text."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found |= {inner if inner in modules else node.module} & modules
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & modules
    return found - {name}


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    # Tarjan's algorithm recurses along chains of imports, which may be longer than the default limit.
    sys.setrecursionlimit(10_000)
    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the parameters of a function, without self and cls."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(argument.arg not in {"self", "cls"} for argument in named)


def asks_for_kind(node: ast.AST) -> bool:
    """Return whether an expression asks which kind of job it has."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"isinstance", "issubclass"}:
        return any(KIND_CLASS.search(ast.unparse(argument)) for argument in node.args[1:])
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        if any(isinstance(side, ast.Attribute) and side.attr == "kind" for side in sides):
            return any(isinstance(side, ast.Constant) and side.value in KINDS for side in sides)
        return any(isinstance(side, ast.Name) and KIND_CLASS.search(side.id) for side in sides)
    return False


def compares_backend(node: ast.AST) -> bool:
    """Return whether an expression compares something with the name of a backend."""
    if not isinstance(node, ast.Compare):
        return False
    words = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    words |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return bool(words & BACKEND_WORDS)


def rows(root: Path) -> Iterator[tuple[str, str]]:
    """Yield label and figure."""
    paths = {module_name(path, root): path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))}
    texts = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    for package in PACKAGES:
        inside = [name for name in trees if name.split(".")[0] == package]
        yield f"{package}: files", str(len(inside))
        yield f"{package}: lines", str(sum(texts[name].count("\n") for name in inside))
        yield f"{package}: statements", str(sum(statements(trees[name]) for name in inside))
        yield f"{package}: loose modules", str(len(list((root / package).glob("*.py"))))
    yield "statements in all", str(sum(map(statements, trees.values())))
    found = circles({name: imports(tree, name, set(trees)) for name, tree in trees.items()})
    yield "import circles", f"{len(found)} {[len(circle) for circle in found]}"
    names = Counter(path.name for path in paths.values() if path.name not in {"__init__.py", "__main__.py"})
    yield "file names used more than once", str(sum(count > 1 for count in names.values()))
    classes: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(name)
    shared = sorted(name for name, places in classes.items() if len(places) > 1)
    yield "class names used more than once", f"{len(shared)} {shared}"
    functions = [
        (name, node)
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    long = [1 for _, node in functions if (node.end_lineno or 0) - node.lineno + 1 > LONG_FUNCTION]
    yield f"functions over {LONG_FUNCTION} lines", str(len(long))
    yield (
        f"functions of more than {MANY_PARAMETERS} parameters",
        str(sum(parameters(node) > MANY_PARAMETERS for _, node in functions)),
    )
    calls = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    yield (
        f"calls of more than {MANY_PARAMETERS} arguments",
        str(sum(len(node.args) + len(node.keywords) > MANY_PARAMETERS for node in calls)),
    )
    outside = {name: tree for name, tree in trees.items() if name.startswith("orchestrator.")}
    yield (
        "questions for the kind outside orchestrator/jobs",
        str(
            sum(
                asks_for_kind(node)
                for name, tree in outside.items()
                if not name.startswith("orchestrator.jobs.")
                for node in ast.walk(tree)
            )
        ),
    )
    yield (
        "comparisons with a backend's name outside orchestrator/backends",
        str(
            sum(
                compares_backend(node)
                for name, tree in outside.items()
                if not name.startswith(("orchestrator.backends.", "orchestrator.testing."))
                for node in ast.walk(tree)
            )
        ),
    )
    yield "type: ignore", str(sum(text.count("type: ignore") for text in texts.values()))


if __name__ == "__main__":
    for label, figure in rows(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()):
        print(f"{label:64} {figure}")
