"""Rules for words added to a vocabulary: BERT's tokenizer must be able to find them as one piece.

The tokenizer cleans text, may lower-case it, and splits it at white space, punctuation and Chinese characters before
the lookup. A word that this changes or splits would never be found. The rules are those of BertNormalizer and
BertPreTokenizer in `tokenizers`. They are repeated here because the laptop validates a spec without that package.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence

from train_jobs.artifacts.text_rule import CHARACTER, NO_CHARACTER, TextRule

LONGEST_WORD = 100  # characters; BERT's WordPiece maps a longer word to [UNK]
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


def word_problems(words: Sequence[str], known: Collection[str], rule: TextRule) -> Iterator[str]:
    """Yield a problem for each word that cannot be added to a vocabulary.

    Args:
        words: words to add.
        known: pieces of the vocabulary.
        rule: how text becomes words.
    """
    seen: set[str] = set()
    for word in words:
        if why := _word_problem(word, rule):
            yield f'"{word}" {why}'
        elif word in known:
            yield f'"{word}" is already in the vocabulary'
        elif word in seen:
            yield f'"{word}" is a duplicate'
        seen.add(word)


def _word_problem(word: str, rule: TextRule) -> str | None:
    """Return why a word alone cannot be added; None if it can."""
    if not word:
        return "is empty"
    if len(word) > LONGEST_WORD:
        return f"has {len(word)} characters, but BERT maps words of more than {LONGEST_WORD} to [UNK]"
    if removed := [character for character in word if is_removed(character)]:
        return f"has U+{ord(removed[0]):04X}, which the tokenizer removes"
    if any(character.isspace() for character in word):
        return "has white space, which separates words"
    letters = without_marks(word) if rule.strip_accents else word
    # Letter by letter, as `tokenizers` does: for a complete word, Python's `lower` writes a final sigma.
    if (plain := "".join(letter.lower() for letter in letters) if rule.lowercase else letters) != word:
        return f'is changed by {"lower-casing" if rule.lowercase else "stripping accents"}: "{plain}"'
    if len(word) > 1 and (separators := [character for character in word if is_separate_word(character)]):
        return f'is split at "{separators[0]}" before the lookup'
    if rule.split_unspaced and len(characters := re.findall(f"{CHARACTER}|{NO_CHARACTER}", word)) > 1:
        return f'is split at "{characters[1]}" before the lookup'
    return None


def without_marks(text: str) -> str:
    """Decompose a text and drop its nonspacing marks."""
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(character for character in decomposed if unicodedata.category(character) != "Mn")


def is_removed(character: str) -> bool:
    """Return whether the tokenizer removes a character: control characters except white space, and U+FFFD."""
    if character in "\t\n\r":
        return False
    return character == "\ufffd" or unicodedata.category(character) in {"Cc", "Cf", "Co", "Cs"}


def is_separate_word(character: str) -> bool:
    """Return whether a character is always a separate word: punctuation, ASCII symbols, Chinese characters."""
    code = ord(character)
    if code < 128:
        return not character.isalnum()
    return unicodedata.category(character).startswith("P") or any(low <= code <= high for low, high in _CHINESE)
