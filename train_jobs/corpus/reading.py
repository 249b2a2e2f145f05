"""Parts of sources: interim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from train_jobs.config.sources import embedded_files, text_files
from train_jobs.config.text import CleanConfig, SourceConfig
from train_jobs.corpus.documents import embedded_documents, read_documents

PART_BYTES = 64 << 20


@dataclass(frozen=True)
class Part:
    source: int
    name: str
    size: int
    files: tuple[str, ...]
    embedded: bool = False


def plan_parts(sources: Sequence[SourceConfig]) -> list[Part]:
    if not sources:
        files = embedded_files()
        return [Part(0, "embedded", sum(f.stat().st_size for f in files), tuple(map(str, files)), True)]
    parts = []
    for number, source in enumerate(sources):
        group: list[str] = []
        size = 0
        for path in text_files([Path(p) for p in source.path]):
            if size and size + path.stat().st_size > PART_BYTES:
                parts.append(Part(number, group[0], size, tuple(group)))
                group, size = [], 0
            group.append(str(path))
            size += path.stat().st_size
        parts.append(Part(number, group[0], size, tuple(group)))
    return parts


def read_part(sources: Sequence[SourceConfig], part: Part, *, read: Callable[[int], None]) -> Iterator[str]:
    documents = embedded_documents if part.embedded else read_documents
    for name in part.files:
        yield from documents([Path(name)])
        read(Path(name).stat().st_size)


def clean(text: str, rules: CleanConfig) -> list[str]:
    return [text] if len(text) >= rules.min_characters else []


class WordPieceTokenizer:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids = [e.ids for e in self._tokenizer.encode_batch_fast(sentences, add_special_tokens=False)]
        offsets = np.cumsum([0, *map(len, ids)])
        return np.array([i for s in ids for i in s], np.int64), offsets
