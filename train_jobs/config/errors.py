"""Errors that the user can fix, in the one form that every command prints; and names in their messages.

    error[data]: corpus.txt is not UTF-8
      where  byte 1042, line 17
      fix    iconv -f latin1 -t utf-8 corpus.txt > corpus.utf8.txt

The kinds are stable strings; `orchestrator.support.errors` adds those that only the laptop knows.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar


class UserError(Exception):
    """An error that the user can fix, with facts and a command or an edit that fixes it.

    Args:
        message: one line: the failure, with the user's own value in it.
        facts: short label -> value, printed one a line (`need`, `have`, `where`, ...).
        fix: a command to paste or an edit to make.
    """

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init_subclass__(cls, *, kind: str | None = None, exit_code: int | None = None) -> None:
        super().__init_subclass__()
        cls.kind = kind or cls.kind
        cls.exit_code = exit_code or cls.exit_code

    def __init__(self, message: str, *, facts: Mapping[str, object] | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.facts = dict(facts or {})
        self.fix = fix

    def __str__(self) -> str:
        rows = {**self.facts, **({"fix": self.fix} if self.fix else {})}
        width = max((len(label) for label in rows), default=0)
        lines = [f"error[{self.kind}]: {self.message}"]
        lines += [f"  {label:<{width}}  {value}" for label, value in rows.items()]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return the error as one JSON object."""
        facts = {label: str(value) for label, value in self.facts.items()}
        return {"error": {"kind": self.kind, "message": self.message, "facts": facts, "fix": self.fix}}


class _ListingError(UserError):
    """An error that may concern several places: `problems` has a line for each."""

    def __init__(self, message: str, *, problems: list[str] | None = None, **more: Any) -> None:
        super().__init__(message, **more)
        self.problems = list(problems or [])

    def __str__(self) -> str:
        head, *rest = super().__str__().splitlines()
        return "\n".join([head, *(f"  {problem}" for problem in self.problems), *rest])

    def as_json(self) -> dict[str, Any]:
        document = super().as_json()
        document["error"]["problems"] = self.problems
        return document


class SpecError(_ListingError, kind="spec", exit_code=2):
    """Wrong keys or values in a spec, a config or a flag: all of them in one error, each with its place."""


class DataError(_ListingError, kind="data", exit_code=2):
    """Unusable input: missing, empty, not UTF-8, too small; of a table every wrong row with its line."""


class StorageError(UserError, kind="storage"):
    """A folder that cannot be written: read-only, full."""


class ConflictError(UserError, kind="conflict"):
    """A conflict: a port in use, a run of the same name, a folder that holds another run."""


class PeerError(UserError, kind="peer"):
    """Another process of the job ended; the cause is in its log."""


class HangError(UserError, kind="hang", exit_code=76):
    """A process of the job made no progress for too long; its stacks show where it hangs."""


class InternalError(UserError, kind="bug"):
    """A bug of ours that reached the user; the traceback is in the log."""


class TrainingError(UserError, kind="training"):
    """Training cannot continue: a loss that is not finite, a checkpoint that does not fit the config."""


class OutOfMemoryError(UserError, kind="memory"):
    """Memory of a GPU or of the host ran out, and smaller micro batches do not fix it."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean "x"?)`, or an empty string if no known word is similar."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f' (did you mean "{close[0]}"?)' if close else ""


def in_shell(path: Path | str) -> str:
    """Quote a path as one word of a command line, since proposed commands are pasted into a shell."""
    return shlex.quote(str(path))


def set_aside(path: Path | str, ending: str = ".old") -> str:
    """Return the command that renames a path which is in the way."""
    return f"mv {in_shell(path)} {in_shell(f'{path}{ending}')}"
