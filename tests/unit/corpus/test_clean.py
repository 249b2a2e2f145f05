"""Cleaning of documents."""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache

import pytest
from fuzzed_text import fuzzed_strings
from tokenizers.normalizers import BertNormalizer

from train_jobs.config.prepare import CleanConfig
from train_jobs.corpus.steps.document_rules import clean

RULES = CleanConfig()


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("It is.\nSo be it.", "It is.\nSo be it."),
        ("\n \tstripped \n", "stripped"),
        ("one\r\ntwo\rthree\n\nfour\x0cfive\x0bsix\x85seven\u2028eight\u2029nine\x1cten",
         "one\ntwo\nthree\n\nfour\nfive\nsix\nseven\neight\nnine\nten"),
        ("a\x00b\x07c\x1bd\x7fe\x9ff", "abcdef"),
        ("so\xadft zero\u200bwidth \ufeffmark \ufffd\ue000 \u202aleft\u202c", "soft zerowidth mark  left"),
        ("half \ud83d\ude00 of a character \ud800", "half  of a character"),
        ("e\u0301 \u212b \u1100\u1161\u11a8 \uac00\u11a8 \u0915\u093c", "\u00e9 \u00c5 \uac01 \uac01 \u0915\u093c"),
        ("a\u200b\u0301", "\u00e1"),
        ("\u1100\u1161\u11a8", "\uac01"),
        ("\u201cTab\tand\u00a0blank\u201d \U0001f600 \u6c34", "\u201cTab\tand\u00a0blank\u201d \U0001f600 \u6c34"),
    ],
)  # fmt: skip
def test_clean_normalizes_text(text: str, cleaned: str) -> None:
    assert clean(text, RULES) == [cleaned]
    assert clean(cleaned, RULES) == [cleaned]


@pytest.mark.parametrize("text", ["", " \n\t ", "\x00\u200b\n", "\ud800"])
def test_clean_of_empty_text_gives_no_document(text: str) -> None:
    assert clean(text, CleanConfig(min_characters=0)) == []


def reference(text: str) -> str:
    """Clean text without shortcuts: a reference that drops the characters that BERT's normalisation drops."""
    lines = re.sub("\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", "\n", text)
    kept = [character for character in lines if not dropped(character)]
    return unicodedata.normalize("NFC", "".join(kept)).strip()


@cache
def dropped(character: str) -> bool:
    if 0xD800 <= ord(character) < 0xE000:
        return True
    normalizer = BertNormalizer(lowercase=False, handle_chinese_chars=False)
    return len(normalizer.normalize_str(f"a{character}b")) == 2


def test_clean_treats_each_character_like_reference() -> None:
    for code in (*range(0x3100), *range(0xD7A0, 0x10000), *range(0x10000, sys.maxunicode, 61)):
        text = f"a{chr(code)}b"
        assert clean(text, RULES) == [reference(text)]


def test_clean_text_is_recognised() -> None:
    for text in fuzzed_strings(3000, seed=3):
        expected = reference(text)
        assert clean(text, RULES) == ([expected] if expected else [])


def test_short_documents_are_dropped() -> None:
    assert clean(" four ", CleanConfig(min_characters=5)) == []
    assert clean(" fives ", CleanConfig(min_characters=5)) == ["fives"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1234567890", ["1234567890"]),
        ("12345\n67890", ["12345", "67890"]),
        ("1\n3456\n8901\n3", ["1\n3456", "8901\n3"]),
        ("1234567890\n2", ["1234567890", "2"]),
        ("12 45 78 0123", ["12 45 78", "0123"]),
        ("1234567890123\n56", ["1234567890", "123\n56"]),
        ("12 4567890\n2", ["12 4567890", "2"]),
        ("12 4567890 2", ["12 4567890", "2"]),
        ("12345\n67890abcdefgh", ["12345", "67890abcd", "efgh"]),
    ],
)
def test_long_documents_split_at_lines_words_or_anywhere(text: str, parts: list[str]) -> None:
    assert clean(text, CleanConfig(max_characters=10)) == parts


def test_last_piece_of_long_document_may_be_short() -> None:
    assert clean("1234567890\n2", CleanConfig(min_characters=5, max_characters=10)) == ["1234567890", "2"]
