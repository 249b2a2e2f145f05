"""The rule that turns text into words before WordPiece: case, accents, and scripts without blanks.

BERT's uncased rule drops every nonspacing mark. In English these are accents; in Hindi and Thai they are vowels. And
BERT takes a run of Thai or kana for one word, although these scripts write no blanks between words. So there are three
settings. Those that are `auto` follow the vocabulary, if one is given, else the scripts of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import Field

from train_jobs.config.fields import Config

if TYPE_CHECKING:  # slow to import, and readers of a rule need no configuration
    from train_jobs.config.prepare import TextConfig

MOST_AUTO_SHARE = 0.005  # English has 0.04% of such characters, Russian 1%, German 1.2%, Arabic 4%, Thai 20%
MOST_LOST = 0.02  # of the characters or words, before plan and job warn
CONTINUATION = "##"
SPLIT_UNSPACED = "split_unspaced"  # our entry in tokenizer_config.json

# Scripts without blanks between words: Thai, Lao, Burmese, Khmer, Tai Le, New Tai Lue, Tai Tham, kana, Tai Viet. Fixed
# here, and not taken from `unicodedata`, so that ids do not depend on the version of Python. Tibetan is not among them:
# it ends each syllable with a tsheg, which is punctuation to BERT.
_LETTERS = """
0E01-0E30 0E32-0E33 0E40-0E46 0E81-0E82 0E84-0E84 0E86-0E8A 0E8C-0EA3 0EA5-0EA5 0EA7-0EB0 0EB2-0EB3 0EBD-0EBD
0EC0-0EC4 0EC6-0EC6 0EDC-0EDF 1000-102A 103F-103F 1050-1055 105A-105D 1061-1061 1065-1066 106E-1070 1075-1081
108E-108E 1780-17B3 17D7-17D7 17DC-17DC 1950-196D 1970-1974 1980-19AB 19B0-19C9 1A20-1A54 1AA7-1AA7 3041-3096
309D-309F 30A1-30FA 30FC-30FF 31F0-31FF A9E0-A9E4 A9E6-A9EF A9FA-A9FE AA60-AA76 AA7A-AA7A AA7E-AAAF AAB1-AAB1
AAB5-AAB6 AAB9-AABD AAC0-AAC0 AAC2-AAC2 AADB-AADD FF66-FF9F
"""
_MARKS = """
0E31-0E31 0E34-0E3A 0E47-0E4E 0EB1-0EB1 0EB4-0EBC 0EC8-0ECD 102B-103E 1056-1059 105E-1060 1062-1064 1067-106D
1071-1074 1082-108D 108F-108F 109A-109D 17B4-17D3 17DD-17DD 1A55-1A5E 1A60-1A7C 1A7F-1A7F 3099-309A A9E5-A9E5
AA7B-AA7D AAB0-AAB0 AAB2-AAB4 AAB7-AAB8 AABE-AABF AAC1-AAC1
"""


def _ranges(text: str) -> list[tuple[int, int]]:
    """Return the first and last code point of each range."""
    return [(int(first, 16), int(last, 16)) for first, _, last in (word.partition("-") for word in text.split())]


def _in_pattern(ranges: Iterable[tuple[int, int]]) -> str:
    """Return the inside of a character class; Python's `re` and Oniguruma read it in the same way."""
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


UNSPACED_LETTERS = _ranges(_LETTERS)
UNSPACED_MARKS = _ranges(_MARKS)
_STACKED = ("\u1000", "\u17ff")  # Burmese and Khmer, the scripts of the stackers
_KOREAN = ("\uac00", "\ud7a3")  # syllables, which decompose into letters
STACKERS = (0x1039, 0x17D2)  # Burmese and Khmer: the next letter is written below, as a mark of this one
_LETTER, _MARK, _STACKER = map(_in_pattern, (UNSPACED_LETTERS, UNSPACED_MARKS, [(code, code) for code in STACKERS]))
CHARACTER = f"[{_LETTER}](?:[{_STACKER}][{_LETTER}]|[{_MARK}])*"
"""Pattern of a character of these scripts: a letter with its marks."""
NO_CHARACTER = f"[^{_LETTER}]+"
"""Pattern of a stretch without such a character."""


class TextRule(NamedTuple):
    """Rule for words."""

    lowercase: bool
    """Lower-case the text."""
    strip_accents: bool
    """Decompose the text and drop nonspacing marks."""
    split_unspaced: bool = False
    """Cut scripts without blanks into characters."""

    @property
    def words(self) -> str:
        """The rule for humans."""
        case = "lower case" if self.lowercase else "cased"
        accents = "accents stripped" if self.strip_accents else "accents kept"
        return ", ".join([case, accents, *(["scripts without blanks by characters"] if self.split_unspaced else [])])


def bert_rule(*, lowercase: bool, strip_accents: bool | None = None, split_unspaced: bool = False) -> TextRule:
    """Return a rule; by default, accents are stripped if and only if the text is lower-cased."""
    return TextRule(lowercase, lowercase if strip_accents is None else strip_accents, split_unspaced)


class LetterCounts(Config):
    """Characters of a text, and those that decide the rule."""

    characters: Annotated[int, Field(ge=0)] = 0
    """All characters."""
    marks: Annotated[int, Field(ge=0)] = 0
    """Characters that stripping accents would drop or take apart, see `lost_by_stripping`."""
    unspaced: Annotated[int, Field(ge=0)] = 0
    """Letters of scripts without blanks."""

    def __add__(self, other: LetterCounts) -> LetterCounts:
        return LetterCounts(
            characters=self.characters + other.characters,
            marks=self.marks + other.marks,
            unspaced=self.unspaced + other.unspaced,
        )

    @property
    def marks_share(self) -> float:
        """Share of the characters that stripping accents would drop or take apart."""
        return self.marks / max(self.characters, 1)

    @property
    def unspaced_share(self) -> float:
        """Share of the characters in scripts without blanks."""
        return self.unspaced / max(self.characters, 1)


_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")


def is_unspaced(character: str) -> bool:
    """Return whether a character is a letter of a script without blanks."""
    code = ord(character)
    return code >= UNSPACED_LETTERS[0][0] and any(first <= code <= last for first, last in UNSPACED_LETTERS)


def lost_by_stripping(text: str) -> int:
    """Return how many characters stripping accents drops, or takes apart into the letters of Korean."""
    decomposed = unicodedata.normalize("NFD", text)
    marks = sum(unicodedata.category(character) == "Mn" for character in decomposed)
    return marks + sum(_KOREAN[0] <= character <= _KOREAN[1] for character in text)


def count_letters(text: str) -> LetterCounts:
    """Count the characters of a text that decide its rule."""
    counts = Counter(_BEYOND_ASCII.findall(text))  # ASCII decides nothing: English is counted five times as fast
    return LetterCounts(
        characters=len(text),
        marks=sum(count * lost_by_stripping(character) for character, count in counts.items()),
        unspaced=sum(count for character, count in counts.items() if is_unspaced(character)),
    )


def strips_accents(pieces: Iterable[str], *, lowercase: bool) -> bool:
    """Return whether the text of a vocabulary had its accents stripped: lower-cased, and no piece would change."""
    return lowercase and not any(lost_by_stripping(piece) for piece in pieces if not piece.isascii())


def splits_unspaced(pieces: Iterable[str]) -> bool:
    """Return whether the text of a vocabulary was cut into characters where scripts have no blanks.

    Without the cut, letters of these scripts follow other letters; after it, only stacked ones do.
    """
    found = False
    for piece in (piece for piece in pieces if not piece.isascii()):
        text = piece.removeprefix(CONTINUATION)
        for place, letter in enumerate(text):
            if not is_unspaced(letter):
                continue
            if place > 0:
                fits = ord(text[place - 1]) in STACKERS
            else:
                fits = text == piece or _STACKED[0] <= letter <= _STACKED[1]
            if not fits:
                return False
            found = True
    return found


def resolve_rule(data: TextConfig, letters: LetterCounts, pieces: Iterable[str] | None = None) -> TextRule:
    """Return the rule of a text, with every `auto` resolved.

    Args:
        data: the settings.
        letters: of the text, or of a sample of it; decides if there is no vocabulary.
        pieces: of the given vocabulary, whose own rule counts. None: one is trained on the text.
    """
    from train_jobs.config.prepare import AUTO

    strip, split = data.strip_accents, data.split_unspaced
    known = None if pieces is None else list(pieces)
    if strip == AUTO:
        few = letters.marks_share <= MOST_AUTO_SHARE
        strip = data.lowercase and few if known is None else strips_accents(known, lowercase=data.lowercase)
    if split == AUTO:
        split = letters.unspaced_share > MOST_AUTO_SHARE if known is None else splits_unspaced(known)
    return TextRule(data.lowercase, strip, split)
