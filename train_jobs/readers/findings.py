"""Problems of files, collected so that one error lists all of them, each with its place and fix."""

from __future__ import annotations

from train_jobs.artifacts.remote_files import TextPath, fix_in_copy
from train_jobs.config.errors import DataError, in_shell

LINES = 3  # places that are listed for the same problem; the rest are counted
LINE = "LINE"
"""In a fix: the first place of the problem."""


class Findings:
    """Problems of files. The same problem of several rows is listed once, with its first places."""

    def __init__(self) -> None:
        self._found: dict[tuple[TextPath | str, str, str], list[str]] = {}

    def add(self, path: TextPath | str, place: str, what: str, fix: str) -> None:
        """Add a problem.

        Args:
            path: the file.
            place: line or row in it; "" for the file as a whole.
            what: description of the problem, without values of the data.
            fix: command or imperative sentence that fixes it.
        """
        self._found.setdefault((path, what, fix_in_copy(fix, path)), []).append(place)

    def add_error(self, path: TextPath | str, error: DataError) -> None:
        """Add a file that cannot be read, by the error of its reader."""
        where = str(error.facts.get("where", "")).removeprefix(str(path)).removeprefix(":")
        told = error.message.removeprefix(f"cannot read {path}: ").removeprefix(f"{path} ").removeprefix(f"{path}:")
        if error.message.startswith(f"{path}:"):  # the place is part of the message
            where, _, told = told.partition(": ")
        self.add(path, where, told, error.fix or f"ls -l {in_shell(path)}")

    def __len__(self) -> int:
        return len(self._found)

    def lines(self) -> list[str]:
        """Return a text for each problem: places, description and, in a line of its own, the fix."""
        return [f"{_where(path, at)}: {what}\nfix  {_fix(fix, at)}" for (path, what, fix), at in self._found.items()]

    def check(self, what: str) -> None:
        """Raise the collected problems, if there are any.

        Args:
            what: name of the data, such as `the tables`.

        Raises:
            DataError: with all problems, in the order of the files.
        """
        if len(self._found) == 1:
            ((path, problem, fix), places), *_ = self._found.items()
            raise DataError(f"{_where(path, places)}: {problem}", fix=_fix(fix, places))
        if self._found:
            raise DataError(f"cannot use {what}: {len(self._found)} problems", problems=self.lines())


def _where(path: TextPath | str, places: list[str]) -> str:
    places = [place for place in places if place]
    shown = ", ".join(places[:LINES])
    more = f" and {len(places) - LINES:,} more" if len(places) > LINES else ""
    return f"{path}:{shown}{more}" if shown else str(path)


def _fix(fix: str, places: list[str]) -> str:
    return fix.replace(LINE, places[0].rpartition(" ")[2])
