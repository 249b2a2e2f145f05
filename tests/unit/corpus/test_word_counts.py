"""Counting words, and training a vocabulary from counts."""

from __future__ import annotations

from collections import Counter

import pytest
from fuzzed_text import fuzzed_strings
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from train_jobs.artifacts.text_rule import bert_rule
from train_jobs.corpus.tokenize import vocabulary
from train_jobs.corpus.tokenize.vocabulary import WordCounter, train_on_counts, train_vocabulary


@pytest.mark.parametrize("lowercase", [True, False])
def test_words_match_tokenizer(lowercase: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "CHARACTERS_AT_ONCE", 700)
    documents = list(fuzzed_strings(500, seed=4))
    counter = WordCounter(bert_rule(lowercase=lowercase))
    counter.add(iter(documents))
    normalise, split = BertNormalizer(lowercase=lowercase).normalize_str, BertPreTokenizer().pre_tokenize_str
    words = Counter(word for document in documents for word, _ in split(normalise(document)))
    assert counter.counts == {word: count for word, count in words.items() if len(word) <= 100}
    assert max(map(len, words)) > 100


def test_counts_of_parts_are_summed() -> None:
    documents = list(fuzzed_strings(200, seed=5))
    whole, parts = WordCounter(bert_rule(lowercase=True)), WordCounter(bert_rule(lowercase=True))
    whole.add(documents)
    parts.add(documents[:70])
    parts.add(documents[70:])
    assert parts.counts == whole.counts


def test_rarest_words_are_dropped_above_limit() -> None:
    counter = WordCounter(bert_rule(lowercase=True), most=10)
    counter.add([" ".join(f"w{number} " * (number + 1) for number in range(10))])
    assert len(counter.counts) == 10
    counter.add(["new " * 7 + "newer " * 3])
    assert counter.counts == {"w7": 8, "w8": 9, "w9": 10}  # words more frequent than the median; "new" starts at 7


def test_memory_is_bounded_for_any_number_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "CHARACTERS_AT_ONCE", 500)
    counter = WordCounter(bert_rule(lowercase=True), most=200)
    most = 0
    for start in range(0, 5000, 100):
        counter.add([f"common word{number}" for number in range(start, start + 100)])
        most = max(most, len(counter.counts))
    assert most <= 300
    assert counter.counts["common"] == 5000


def test_vocabulary_depends_on_relative_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the text gives the same vocabulary and training text of the same length."""
    counts = {"banana": 40, "bandana": 20, "cabana": 10, "once": 1}
    small = train_on_counts(counts, bert_rule(lowercase=True), size=40)
    written = []
    original = vocabulary._written_out
    monkeypatch.setattr(vocabulary, "MOST_OCCURRENCES", 71)
    monkeypatch.setattr(
        vocabulary, "_written_out", lambda counts: (written.append(text) or text for text in original(counts))
    )
    large = train_on_counts({word: count * 10 for word, count in counts.items()}, bert_rule(lowercase=True), size=40)
    assert large.get_vocab() == small.get_vocab()
    assert Counter("".join(written).split()) == counts


def test_training_on_text_equals_training_on_counts() -> None:
    documents = list(fuzzed_strings(300, seed=6))
    counter = WordCounter(bert_rule(lowercase=False))
    counter.add(documents)
    learnt = train_on_counts(counter.counts, bert_rule(lowercase=False), size=400)
    assert learnt.get_vocab() == train_vocabulary(documents, size=400, lowercase=False).get_vocab()
