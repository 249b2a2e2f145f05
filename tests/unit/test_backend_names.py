"""Modules outside of the backends contain no backend name: they query a site or a capability."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = {"azure", "debug", "local"}
CONSTANTS = {name.upper() for name in NAMES}
ROOMS = ("orchestrator/backends/", "orchestrator/testing/")  # the backends and the double of Azure


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "orchestrator").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(ROOMS):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def is_name(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value in NAMES
    return isinstance(node, ast.Name) and node.id in CONSTANTS


def compares_backend_name(node: ast.AST) -> bool:
    """Return whether a comparison or a `case` contains the name of a backend."""
    if isinstance(node, ast.Compare | ast.MatchValue):
        return any(is_name(part) for part in ast.walk(node))
    return False


def test_no_module_compares_backend_names() -> None:
    found = [
        f"{name}: {ast.unparse(node)}"
        for name, tree in sources()
        for node in ast.walk(tree)
        if compares_backend_name(node)
    ]
    assert found == []


def imported_modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [str(node.module)]
    return [one.name for one in node.names] if isinstance(node, ast.Import) else []


def test_no_module_imports_the_azure_package() -> None:
    found = [
        f"{name}: {module}"
        for name, tree in sources()
        for node in ast.walk(tree)
        for module in imported_modules(node)
        if module.startswith("orchestrator.backends.azure")
    ]
    assert found == []


def test_comparison_with_a_backend_name_is_found() -> None:
    for text in ('a.backend == "azure"', "name in {None, 'local'}", "backend != AZURE"):
        assert any(compares_backend_name(node) for node in ast.walk(ast.parse(text))), text
