"""The documents of a run or a sweep, such as request.json: a missing or torn one is one error, which names it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from orchestrator.support.errors import StorageError


@contextmanager
def reporting_damage(owner: str, where: Path | str, name: str, *, fix: str) -> Iterator[None]:
    """Report a document that is missing, torn or without its fields as damage of its run or sweep.

    Args:
        owner: the run or the sweep: `run NAME`.
        where: its folder, or its name if it has none on this machine.
        name: name of the document.
        fix: fix of the error.

    Raises:
        StorageError: the block could not read the document.
    """
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as problem:
        reason = f"{name}: {type(problem).__name__}: {problem}".splitlines()[0]
        facts = {"where": where, "reason": reason}
        raise StorageError(f"cannot read {owner}: it is damaged", facts=facts, fix=fix) from problem


def reporting_run_damage(run: str, where: Path | str, name: str) -> AbstractContextManager[None]:
    """Report a document of a run that is missing, torn or without its fields; see `reporting_damage`."""
    return reporting_damage(f"run {run}", where, name, fix=f"orchestrator status {run}")


def parse_object(run: str, where: Path | str, name: str, content: bytes) -> dict[str, Any]:
    """Return the JSON object that a document of a run contains.

    Args:
        run: name of the run.
        where: its folder, or its name if it has none on this machine.
        name: name of the document.
        content: its bytes.

    Raises:
        StorageError: they are not a JSON object.
    """
    with reporting_run_damage(run, where, name):
        found = json.loads(content)
        if not isinstance(found, dict):
            raise TypeError(f"{type(found).__name__} instead of an object")
        return found
