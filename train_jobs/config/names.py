"""Names in messages: those that were nearly right, and those that are pasted into a shell."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from pathlib import Path


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean "x"?)`, or nothing where no known word is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f' (did you mean "{close[0]}"?)' if close else ""


def in_shell(path: Path | str) -> str:
    """A path as one word of a command line, whatever is in it: the commands that we propose are pasted."""
    return shlex.quote(str(path))


def set_aside(path: Path | str, ending: str = ".old") -> str:
    """The command line that keeps what is in the way, under another name."""
    return f"mv {in_shell(path)} {in_shell(f'{path}{ending}')}"
