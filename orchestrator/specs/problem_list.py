"""Gathers what is wrong with a spec, so that the user hears of all of it at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from orchestrator.support.errors import SpecError


class Problems:
    """The `SpecError`s met so far."""

    def __init__(self) -> None:
        self._failures: list[SpecError] = []

    def __bool__(self) -> bool:
        return bool(self._failures)

    def extend(self, problems: Iterable[str]) -> None:
        """Adds problems that have their place in them already."""
        self._failures += [SpecError(problem, problems=[problem]) for problem in problems]

    @contextmanager
    def collecting(self, where: object = None) -> Iterator[None]:
        """Keeps a `SpecError` raised inside for later; `where` is its place, if it names none itself."""
        try:
            yield
        except SpecError as failure:
            if where is not None:
                failure.facts.setdefault("where", where)
            self._failures.append(failure)

    def raise_all(self, what: str) -> None:
        """Raises what was gathered: one failure as it was, several as one."""
        if len(self._failures) == 1 and not self._failures[0].problems:
            raise self._failures[0]
        lines = [line for failure in self._failures for line in failure.problems or [_one_line(failure)]]
        if lines:
            raise SpecError(f"the {what} has {len(lines)} problem{'s' if len(lines) > 1 else ''}", problems=lines)


def _one_line(failure: SpecError) -> str:
    where = f"{failure.facts['where']}: " if "where" in failure.facts else ""
    known = f" (known: {failure.facts['known']})" if "known" in failure.facts else ""
    fix = f"; fix: {failure.fix}" if failure.fix else ""
    return f"{where}{failure.message}{known}{fix}"
