"""Errors that the user can fix, in the form that every command prints, and helpers for their messages.

    error[data]: corpus.txt is not UTF-8
      where  byte 1042, line 17
      fix    iconv -f latin1 -t utf-8 corpus.txt > corpus.utf8.txt

The kinds are stable strings. `orchestrator.support.errors` adds the kinds of the laptop half.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from train_jobs.config.visible import visible, visible_lines

MOST_COMPARED = 300  # words that may be meant by another
REMADE = "store"  # fact of a `StorageError` about a damaged token store that the next start makes again


class UserError(Exception):
    """An error that the user can fix, with facts and a command or an edit that fixes it.

    Args:
        message: one line that states the failure and contains the user's value.
        facts: short label (`need`, `have`, `where`, ...) -> value, printed one per line.
        fix: a command to paste, or one imperative sentence.
    """

    kind: ClassVar[str] = "error"
    """Stable name of the kind, printed in brackets and part of the JSON."""
    exit_code: ClassVar[int] = 1
    """Exit code of a command that ends with the error."""

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
        lines = [f"error[{self.kind}]: {_continued(self.message)}"]
        lines += [f"  {label:<{width}}  {_continued(value)}" for label, value in rows.items()]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return the error as one JSON object."""
        facts = {label: str(value) for label, value in self.facts.items()}
        return {"error": {"kind": self.kind, "message": self.message, "facts": facts, "fix": self.fix}}


class _ListingError(UserError):
    """An error that can have several causes: `problems` has a line for each."""

    def __init__(self, message: str, *, problems: list[str] | None = None, **more: Any) -> None:
        super().__init__(message, **more)
        self.problems = list(problems or [])

    def __str__(self) -> str:
        head, *rest = super().__str__().splitlines()
        return "\n".join([head, *(f"  {_continued(problem)}" for problem in self.problems), *rest])

    def as_json(self) -> dict[str, Any]:
        document = super().as_json()
        document["error"]["problems"] = self.problems
        return document


class SpecError(_ListingError, kind="spec", exit_code=2):
    """Invalid keys or values in a spec, a config or a flag; `problems` lists all of them, each with its place."""


class DataError(_ListingError, kind="data", exit_code=2):
    """Unusable input: missing, empty, not UTF-8, too small; `problems` lists all invalid rows of a table."""


class StorageError(UserError, kind="storage"):
    """A folder that cannot be written: read-only, full. Also a damaged file that the next start makes again."""


class ConflictError(UserError, kind="conflict"):
    """A conflict: a port in use, a run with the same name, a folder of another run."""


class PeerError(UserError, kind="peer"):
    """Another process of the job has failed; the cause is in its log."""


class HangError(UserError, kind="hang", exit_code=76):
    """A process of the job made no progress for too long; its stacks are written to a file."""


class MachineError(UserError, kind="machine", exit_code=8):
    """This machine cannot run the job: its driver is too old, a GPU is broken, a program is missing."""


class InternalError(UserError, kind="bug"):
    """A bug in this project; the traceback is in the log."""


class TrainingError(UserError, kind="training"):
    """Training cannot continue: a loss that is not finite, a checkpoint that does not fit the config."""


class OutOfMemoryError(UserError, kind="memory"):
    """Memory of a GPU or of the host ran out, and smaller micro batches do not fix it."""


def _continued(value: object) -> str:
    """Return a value with unsafe characters escaped, and further lines indented: no line of it looks like a fact."""
    return visible_lines(str(value)).replace("\n", "\n      ")


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the most similar known word, whatever its case and the spaces around it; None: none is similar.

    Args:
        word: the word.
        known: the known words.
        cutoff: least similarity, from 0 to 1: see `difflib.SequenceMatcher.ratio`.
    """
    plain = {one.strip().casefold(): one for one in reversed(list(known))}
    if (same := plain.get(word.strip().casefold())) is not None:
        return same
    compared = islice(reversed(plain), MOST_COMPARED)  # a table can have 100,000 columns
    near = difflib.get_close_matches(word.strip().casefold(), compared, n=1, cutoff=cutoff)
    return plain[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean "x"?)` for the most similar known word, or an empty string if none is similar."""
    close = closest(word, known)
    return f' (did you mean "{close}"?)' if close is not None else ""


def in_shell(path: object) -> str:
    """Return a path or URL quoted for a shell, as one word of a command that the user pastes."""
    text = str(path)
    if visible(text) == text:
        return shlex.quote(text)
    # control characters, which errors show escaped: a word in which bash and zsh read such escapes
    return "$'" + visible(text.replace("\\", "\\\\").replace("'", "\\'")) + "'"


def python_command(code: str) -> str:
    """Return the shell command that runs code, in double quotes, because most code contains single ones."""
    special = any(sign in code for sign in '"$`!\\')
    return "python -c " + (in_shell(code) if special else f'"{code}"')


def rename_command(path: Path | str, ending: str = ".old") -> str:
    """Return the shell command that renames a path, to make room for another."""
    return f"mv {in_shell(path)} {in_shell(f'{path}{ending}')}"
