"""Rules for words added to a vocabulary: BERT's tokenizer must be able to find them as one piece.

The tokenizer cleans text, may lower-case it, and splits it at white space, punctuation and Chinese characters before
the lookup, so a word that this changes or splits would never be found. The rules are those of BertNormalizer and
BertPreTokenizer in `tokenizers`, which the laptop does not need.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence

from train_jobs.artifacts.text_rule import CHARACTER, NO_CHARACTER, TextRule

LONGEST_WORD = 100  # characters; to BERT's WordPiece a longer word is unknown
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


def unfit_words(words: Sequence[str], known: Collection[str], rule: TextRule) -> Iterator[str]:
    """Yield a problem for each word that cannot be added to a vocabulary.

    Args:
        words: to be added.
        known: pieces of the vocabulary.
        rule: how text becomes words.
    """
    seen: set[str] = set()
    for word in words:
        if why := _why_unfit(word, rule):
            yield f'"{word}" {why}'
        elif word in known:
            yield f'"{word}" is already in the vocabulary'
        elif word in seen:
            yield f'"{word}" is given twice'
        seen.add(word)


def _why_unfit(word: str, rule: TextRule) -> str | None:
    """Return why a word alone cannot be added; None if it can."""
    if not word:
        return "is empty"
    if len(word) > LONGEST_WORD:
        return f"has {len(word)} characters, and a word of more than {LONGEST_WORD} is unknown to BERT"
    if lost := [character for character in word if is_removed(character)]:
        return f"has U+{ord(lost[0]):04X}, which the tokenizer removes"
    if any(character.isspace() for character in word):
        return "has white space, which separates words"
    letters = without_marks(word) if rule.strip_accents else word
    # letter by letter, as tokenizers does: of a whole word Python makes a final sigma
    if (plain := "".join(letter.lower() for letter in letters) if rule.lowercase else letters) != word:
        return f'is changed by {"lower-casing" if rule.lowercase else "stripping accents"}: "{plain}"'
    if len(word) > 1 and (apart := [character for character in word if stands_alone(character)]):
        return f'is split at "{apart[0]}" before the lookup'
    if rule.split_unspaced and len(characters := re.findall(f"{CHARACTER}|{NO_CHARACTER}", word)) > 1:
        return f'is split at "{characters[1]}" before the lookup'
    return None


def without_marks(text: str) -> str:
    """Decompose a text and drop its nonspacing marks."""
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(character for character in decomposed if unicodedata.category(character) != "Mn")


def is_removed(character: str) -> bool:
    """Return whether a character is a control character that does not count as white space."""
    if character in "\t\n\r":
        return False
    return character == "\ufffd" or unicodedata.category(character) in {"Cc", "Cf", "Co", "Cs"}


def stands_alone(character: str) -> bool:
    """Return whether a character is a word of its own: punctuation, ASCII symbols, Chinese characters."""
    code = ord(character)
    if code < 128:
        return not character.isalnum()
    return unicodedata.category(character).startswith("P") or any(low <= code <= high for low, high in _CHINESE)
