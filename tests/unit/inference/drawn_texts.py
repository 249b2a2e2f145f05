"""Random texts over a small vocabulary."""

from __future__ import annotations

import random

WORDS = [f"w{number}" for number in range(40)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "##x", ".", ",", "in", "paris"]


def sentences(count: int, *, seed: int = 0, longest: int = 12) -> list[str]:
    """Return texts of different lengths."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]
