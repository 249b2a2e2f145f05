"""Sentence boundaries in eight languages, against those of people (PUD)."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest

from train_jobs.corpus.tokenize.sentences import split_sentences

PUD = Path(__file__).parents[4] / "shared/data/multilingual/pud"
BLOCK = 20
LOWEST = {  # the best of rules 3, uniseg, pysbd and blingfire in each language, less 0.003
    "en": 0.994,
    "en lower-cased": 0.981,
    "de": 0.987,
    "ru": 0.990,
    "hi": 0.989,
    "ar": 0.993,
    "zh": 0.992,
    "es": 0.986,
}


def sentences(language: str) -> list[str]:
    if not PUD.is_dir():
        pytest.skip(f"no multilingual text: {PUD}")
    text = (PUD / f"{language[:2]}.txt").read_text(encoding="utf-8")
    text = text.lower() if language.endswith("lower-cased") else text
    return [line.strip() for line in text.splitlines() if line.strip()]


def ends(parts: list[str]) -> set[int]:
    """Return the ends of all parts but the last, in characters that are not blank."""
    return set(list(accumulate(len("".join(part.split())) for part in parts))[:-1])


@pytest.mark.parametrize("language", LOWEST)
def test_boundaries_agree_with_people(language: str) -> None:
    lines, joint = sentences(language), "" if language == "zh" else " "
    blocks = [lines[start : start + BLOCK] for start in range(0, len(lines) - BLOCK + 1, BLOCK)]
    pairs = [(ends(split_sentences(joint.join(block))), ends(block)) for block in blocks]
    both = sum(len(found & true) for found, true in pairs)
    assert 2 * both / sum(len(found) + len(true) for found, true in pairs) >= LOWEST[language]


def test_thai_pieces_are_as_many_as_sentences() -> None:
    lines = sentences("th")
    pieces = len(split_sentences(" ".join(lines)))
    assert len(lines) / 2 < pieces < 2 * len(lines)
