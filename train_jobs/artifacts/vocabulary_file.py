"""vocab.txt of WordPiece, one piece a line, as the plan and the job read it."""

from __future__ import annotations

from pathlib import Path

from train_jobs.artifacts.store_places import StorePath
from train_jobs.artifacts.unreadable import unreadable
from train_jobs.config.errors import DataError


def read_vocabulary(path: StorePath) -> bytes:
    """Return the content of a vocab.txt.

    Raises:
        DataError: the file is missing or cannot be read.
    """
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise DataError(
            f"no such vocabulary file: {path}",
            facts={"where": "data.vocabulary"},
            fix="give a vocab.txt, or omit data.vocabulary to train one on the text",
        ) from None
    except PermissionError as problem:
        raise unreadable(Path(str(path)), problem) from None


def pieces_of(path: StorePath) -> list[str]:
    """Return the pieces of a vocab.txt, in the order of their ids.

    Raises:
        DataError: the file is missing, cannot be read or is not UTF-8.
    """
    try:
        text = read_vocabulary(path).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise DataError(
            f"{path} is not UTF-8",
            facts={"where": f"data.vocabulary, byte {problem.start}"},
            fix="--set data.vocabulary=PATH of a WordPiece vocab.txt",
        ) from None
    # Not splitlines(): a piece may be one of the other characters that Unicode counts as line ends.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
