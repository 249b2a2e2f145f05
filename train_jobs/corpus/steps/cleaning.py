"""What is done to the text of a document before anything else: one form of Unicode, no controls, not too short.

Only what BERT's own normalisation would drop anyway is dropped, so nothing that a model could see is lost. Composing
(NFC) matters to cased vocabularies, which know a letter and its accent as one character.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from train_jobs.config.text import CleanConfig

CLEANER = f"rules 1, Unicode {unicodedata.unidata_version}"  # name and version: raise it when anything comes out else

_LINE_ENDS = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # a page's end is a line's, too
_DROPPED = re.compile(
    "["
    "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f"  # controls (Cc)
    "\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\U000110bd\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f"  # format characters (Cf)
    "\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"  # private use (Co)
    "\ufffd"  # what a decoder puts where it failed
    "\ud800-\udfff"  # half of a character, as JSON can spell it: no tokenizer takes it
    "]+"
)
_PLAIN = bytes([*b"\t\n", *range(0x20, 0x7F)])


def clean(text: str, rules: CleanConfig) -> list[str]:
    """The documents that become of one: most often itself; none if it is too short; several if it is too long.

    Line ends become newlines, control and format characters are dropped, accents and letters are composed (NFC), and
    white space at both ends is stripped. Cleaning what is clean changes nothing.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not _is_clean(text):
        text = unicodedata.normalize("NFC", _DROPPED.sub("", _LINE_ENDS.sub("\n", text)))
    text = text.strip()
    if not text or len(text) < rules.min_characters:
        return []
    if rules.max_characters is None or len(text) <= rules.max_characters:
        return [text]
    return list(_cut(text, rules.max_characters))


def _is_clean(text: str) -> bool:
    """Whether it surely is, from its different characters alone; most of a text is plain ASCII, and not looked at."""
    others = text.encode("utf-8", "surrogatepass").translate(None, _PLAIN)
    return not others or all(map(_is_inert, set(others.decode("utf-8", "surrogatepass"))))


@lru_cache(maxsize=1 << 14)
def _is_inert(character: str) -> bool:
    """Whether it stays as it is, whatever stands beside it. Marks, and the letters that Korean syllables are made of,
    may go together with what is before them."""
    marks = unicodedata.category(character).startswith("M") or "\u1100" <= character <= "\u11ff"
    return not (
        marks
        or _DROPPED.match(character)
        or _LINE_ENDS.match(character)
        or unicodedata.normalize("NFC", character) != character
    )


def _cut(text: str, most: int) -> Iterator[str]:
    """Documents of at most `most` characters, cut at the end of a line; else between words; else anywhere."""
    start = 0
    while start < len(text):
        end = start + most
        if end < len(text):
            breaks = text.rfind("\n", start, end + 1), text.rfind(" ", start, end + 1)
            end = next((place for place in breaks if place > start), end)
        if part := text[start:end].strip():
            yield part
        start = end
