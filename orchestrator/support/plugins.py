"""Extensions by other packages: entry points of a group, found by name and loaded when first needed."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name. Takes about 40 ms: call it only when no name of ours fits."""
    return _installed(group, tuple(sys.path))


@cache
def _installed(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """As `installed`, for one `sys.path`: a notebook may install a package while it runs."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


def load(point: EntryPoint, what: str) -> Any:
    """Return the object that an entry point names.

    Args:
        point: the entry point.
        what: its role in messages, such as `backend`.

    Raises:
        ServiceError: the package cannot be imported.
    """
    try:
        return point.load()
    except Exception as problem:  # whatever another package does on import
        from orchestrator.support.errors import ServiceError  # loads pydantic, which `--help` does without

        distribution = point.dist.name if point.dist else point.value
        raise ServiceError(
            f"cannot load {what} {point.name}",
            facts={"where": point.value, "reason": f"{type(problem).__name__}: {problem}"},
            fix=f"pip install --force-reinstall {distribution}",
        ) from problem
