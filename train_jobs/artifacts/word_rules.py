"""Words that a vocabulary is to hold besides: whether BERT's tokenizer could ever give them as one piece.

The tokenizer cleans text up, lower-cases it or not, and splits it at white space, punctuation and Chinese characters
before it looks anything up, so a word that this changes or splits would never be found. The rules are those of
`tokenizers`' BertNormalizer and BertPreTokenizer, which the laptop need not have.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator, Sequence

LONGEST_WORD = 100  # characters; BERT's WordPiece takes a longer word for unknown
_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def unfit_words(words: Sequence[str], known: Collection[str], *, lowercase: bool) -> Iterator[str]:
    """A problem for each word that cannot be added to a vocabulary.

    Args:
        words: to be added.
        known: pieces of the vocabulary.
        lowercase: text is lower-cased, and accents are stripped.
    """
    seen: set[str] = set()
    for word in words:
        if why := _why_unfit(word, lowercase=lowercase):
            yield f'"{word}" {why}'
        elif word in known:
            yield f'"{word}" is in the vocabulary already'
        elif word in seen:
            yield f'"{word}" is given twice'
        seen.add(word)


def _why_unfit(word: str, *, lowercase: bool) -> str | None:
    """What is wrong with a word by itself."""
    if not word:
        return "is empty"
    if len(word) > LONGEST_WORD:
        return f"has {len(word)} characters, and a word of more than {LONGEST_WORD} is unknown to BERT"
    if lost := [character for character in word if _is_removed(character)]:
        return f"has U+{ord(lost[0]):04X}, which is no character of a text"
    if any(_is_space(character) for character in word):
        return "has white space, and a token is a word or a part of one"
    if lowercase and (plain := _lowered(word)) != word:
        return f'differs from how lower-casing leaves it: "{plain}"'
    if len(word) > 1 and (apart := [character for character in word if _stands_alone(character)]):
        return f'is split at "{apart[0]}" before the vocabulary is asked'
    return None


def _is_space(character: str) -> bool:
    return character.isspace()


def _is_removed(character: str) -> bool:
    """Control characters, but for those that count as white space."""
    if character in "\t\n\r":
        return False
    return character == "\ufffd" or unicodedata.category(character) in {"Cc", "Cf", "Co", "Cs"}


def _lowered(word: str) -> str:
    bare = (character for character in unicodedata.normalize("NFD", word) if unicodedata.category(character) != "Mn")
    return "".join(character.lower() for character in bare)


def _stands_alone(character: str) -> bool:
    """Punctuation, the ASCII signs among it, and Chinese characters: each is a word of its own."""
    code = ord(character)
    if code < 128:
        return not character.isalnum()
    return unicodedata.category(character).startswith("P") or any(low <= code <= high for low, high in _CHINESE)
