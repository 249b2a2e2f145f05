"""The corpus that every Python carries along: docstrings of its standard library, topics of its language reference."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

MIN_DOCSTRING_CHARACTERS = 200  # a module that says less has nothing to learn from
TOPICS = ("pydoc_data", "topics.py")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_TRIPLE_QUOTED = re.compile(r'"""(.*?)"""', re.DOTALL)
_RULE = re.compile(r"^[ \t]*[^\w\s]{3,}[ \t]*$\n?", re.MULTILINE)  # a title's underline: each sign would be a token


def embedded_documents(files: list[Path]) -> Iterator[str]:
    """Yields the documents in Python source files: each topic of the reference, and each module's docstrings.

    A module's docstrings (module, classes, functions, in source order) make one document, joined by blank lines.
    Modules with fewer than 200 characters of them, and files that do not parse, are skipped.
    """
    for path in files:
        source = path.read_text(encoding="utf-8", errors="replace")
        if path.parts[-2:] == TOPICS:
            yield from _topics(source)
        elif document := _docstrings(source):
            yield document


def _topics(source: str) -> Iterator[str]:
    """The values of the one dict literal of pydoc_data/topics.py, which is data: it is read, never run."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            texts = [value.value for value in node.values if isinstance(value, ast.Constant)]
            yield from (_without_rules(text) for text in texts if isinstance(text, str) and text.strip())


def _docstrings(source: str) -> str | None:
    if sum(len(text) for text in _TRIPLE_QUOTED.findall(source)) < MIN_DOCSTRING_CHARACTERS:
        return None  # a third of the library, and its largest tables: not worth parsing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in someone else's source
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    document = "\n\n".join(_walk(tree))
    return _without_rules(document) if len(document) >= MIN_DOCSTRING_CHARACTERS else None


def _walk(node: Documented) -> Iterator[str]:
    if docstring := ast.get_docstring(node):
        yield docstring
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _walk(child)


def _without_rules(text: str) -> str:
    return _RULE.sub("", text).strip()
