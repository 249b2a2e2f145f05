"""Errors of the user's making, in the one form that every command of the project prints.

    error[data]: corpus.txt is not UTF-8
      where  byte 1042, line 17
      fix    iconv -f latin1 -t utf-8 corpus.txt > corpus.utf8.txt

The kinds are stable strings; `orchestrator.support.errors` adds those that only the laptop knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class UserError(Exception):
    """Something that the user can mend: what failed, the facts, and a command or an edit that mends it.

    Args:
        message: one line: what failed, with the user's own value in it.
        facts: short label -> value, printed one a line (`need`, `have`, `where`, ...).
        fix: a command to paste or an edit to make.
    """

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

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
        """The same error as one JSON object."""
        facts = {label: str(value) for label, value in self.facts.items()}
        return {"error": {"kind": self.kind, "message": self.message, "facts": facts, "fix": self.fix}}


class _ListingError(UserError):
    """One that may be about several places at once: `problems` has a line for each."""

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


class SpecError(_ListingError):
    """Wrong keys or values in a spec, a config or a flag: all of them at once, each with its place."""

    kind = "spec"
    exit_code = 2


class DataError(_ListingError):
    """Input that cannot be used: missing, empty, not UTF-8, too small; of a table every wrong row with its line."""

    kind = "data"
    exit_code = 2


class StorageError(UserError):
    """A folder that cannot be written: read-only, full."""

    kind = "storage"


class ConflictError(UserError):
    """Something is in the way: a port in use, a run of the same name, a folder that holds another run."""

    kind = "conflict"


class PeerError(UserError):
    """Another process of the job went away: what killed it is in its own log, not in ours."""

    kind = "peer"


class HangError(UserError):
    """A process of the job got nowhere for longer than it may; the stacks say where it stands."""

    kind = "hang"
    exit_code = 76


class InternalError(UserError):
    """A mistake of ours that reached the user; the traceback is in the log."""

    kind = "bug"


class TrainingError(UserError):
    """Training cannot go on: a loss that is not finite, a checkpoint that does not fit the config."""

    kind = "training"


class OutOfMemoryError(UserError):
    """Memory ran out, of a GPU or of the host, and smaller micro batches do not mend it."""

    kind = "memory"
