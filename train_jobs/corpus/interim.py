"""Stand-ins until cleaning and encoding have modules of their own."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer

from train_jobs.config.text import CleanConfig


def clean(text: str, rules: CleanConfig) -> list[str]:
    """The document, unless it is too short."""
    return [text] if len(text) >= rules.min_characters else []


class WordPieceTokenizer:
    """Ids of many sentences."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids [tokens] and where sentences begin [sentences + 1]."""
        found = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(sentences, add_special_tokens=False)]
        return np.array([token for ids in found for token in ids], np.int64), np.cumsum([0, *map(len, found)])
