"""vocab.txt of WordPiece, one piece a line, and the words to add to it, as the plan and the job read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from train_jobs.artifacts.regular_files import SpecialFileError
from train_jobs.artifacts.store_places import StorePath, store_bytes
from train_jobs.artifacts.text_rule import LetterCounts, TextRule, resolve_rule
from train_jobs.artifacts.unreadable import unreadable
from train_jobs.artifacts.word_rules import word_problems
from train_jobs.config.errors import DataError
from train_jobs.config.prepare import TextConfig

VOCABULARY_FILE = "vocab.txt"
PAD = "[PAD]"
SPECIAL_PIECES = (PAD, "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_FIX = "--set data.vocabulary=PATH of a WordPiece vocab.txt"


def read_vocabulary(path: StorePath) -> bytes:
    """Return the content of a vocab.txt.

    Raises:
        DataError: the file is missing or cannot be read.
    """
    try:
        return store_bytes(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise DataError(
            f"no such vocabulary file: {path}",
            facts={"where": "data.vocabulary"},
            fix="give a vocab.txt, or omit data.vocabulary to train one on the text",
        ) from None
    except (PermissionError, SpecialFileError) as problem:
        raise unreadable(Path(str(path)), problem) from None


def pieces_of(path: StorePath) -> list[str]:
    """Return the pieces of a vocab.txt, in the order of their ids.

    Raises:
        DataError: see `lines_of`; or the file lacks a special piece, does not begin with [PAD], or has an empty or
            repeated line.
    """
    pieces = lines_of(path)
    _require_valid(pieces, path)
    return pieces


def lines_of(path: StorePath) -> list[str]:
    """Return the lines of a vocab.txt without checking that they are pieces.

    Raises:
        DataError: the file is missing, cannot be read or is not UTF-8.
    """
    try:
        text = read_vocabulary(path).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise DataError(
            f"{path} is not UTF-8",
            facts={"where": f"data.vocabulary, byte {problem.start}"},
            fix=_FIX,
        ) from None
    return split_lines(text)


def split_lines(text: str) -> list[str]:
    """Return the lines of the text of a vocab.txt."""
    # Not splitlines(): a piece may be one of the other characters that Unicode counts as line ends.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _require_valid(pieces: list[str], path: StorePath) -> None:
    lines: dict[str, int] = {}
    for line, piece in enumerate(pieces, start=1):
        if not piece:
            raise DataError(f"invalid vocabulary {path}: an empty line", facts={"where": f"line {line}"})
        if piece in lines:
            where = f"lines {lines[piece]} and {line}"
            raise DataError(f"invalid vocabulary {path}: a piece occurs twice", facts={"where": where})
        lines[piece] = line
    if missing := [piece for piece in SPECIAL_PIECES if piece not in lines]:
        raise DataError(
            f"{path} is not a BERT vocabulary",
            facts={"need": " ".join(SPECIAL_PIECES), "missing": " ".join(missing)},
            fix=f"add each missing piece on a separate line to {path}" if len(missing) < len(SPECIAL_PIECES) else _FIX,
        )
    if pieces[0] != PAD:  # padding has id 0, whose row of the embedding table learns nothing
        raise DataError(
            f"invalid vocabulary {path}: {PAD} is not its first piece",
            facts={"need": f"{PAD} on line 1", "have": f"line {lines[PAD]}"},
            fix=f"--set data.vocabulary=PATH of a vocabulary that begins with {PAD}",
        )


def given_rule(data: TextConfig) -> TextRule | None:
    """Return the rule of the given vocabulary, with every `auto` resolved; None: one is trained on the text.

    Raises:
        DataError: see `pieces_of`; or some of the words to add cannot be tokens.
    """
    if data.vocabulary is None:
        return None
    pieces = pieces_of(data.vocabulary)
    rule = resolve_rule(data, LetterCounts(), pieces)
    require_words(data.add_tokens, pieces, rule)
    return rule


def require_words(words: Sequence[str], pieces: Sequence[str], rule: TextRule) -> None:
    """Require that words can be added to a vocabulary, as far as Python's Unicode tables know.

    Raises:
        DataError: some cannot be tokens; the error lists them.
    """
    if unfit := list(word_problems(words, frozenset(pieces), rule)):
        raise unfit_words(unfit)


def unfit_words(problems: Sequence[str]) -> DataError:
    """Return the error for words that cannot be added."""
    return DataError("invalid data.add_tokens: some words cannot be tokens", facts={"words": "; ".join(problems)})
