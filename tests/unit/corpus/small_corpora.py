"""Corpora with several sources, and their token stores."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from train_jobs.artifacts.fingerprints import fingerprint
from train_jobs.config import TextConfig
from train_jobs.config.prepare import SourceConfig
from train_jobs.corpus.executors.node import ALONE, Node
from train_jobs.corpus.pipeline import PreparationProgress
from train_jobs.corpus.preparation import StoreOptions, make_store
from train_jobs.corpus.sources.text_parts import plan_parts, read_part
from train_jobs.corpus.store.token_store import EncodedDocuments, TokenStore

SYLLABLES = ["ba", "ko", "ri", "mu", "te", "lan", "sor", "vi", "dax", "en", "qu", "ost"]


def sentences(seed: int, count: int) -> list[str]:
    """Return sentences over a few hundred made-up words."""
    words = ["".join(random.Random(n).choices(SYLLABLES, k=1 + n % 4)) for n in range(300)]
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, k=draw.randint(4, 12))).capitalize() + "." for _ in range(count)]


def documents_of(number: int, documents: int = 30) -> list[str]:
    """Return the documents of a source."""
    return [" ".join(sentences(1000 * number + index, 8)) for index in range(documents)]


def sources(folder: Path, count: int, documents: int = 30) -> list[Any]:
    """Write files of different text and return one source per file."""
    paths = [folder / f"source-{number}.txt" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_text("\n\n".join(documents_of(number, documents)) + "\n")
    return [str(path) for path in paths]


def prepare(
    data: TextConfig,
    folder: Path,
    *,
    say: Callable[[str], None] = lambda _: None,
    progress: PreparationProgress | None = None,
    node: Node = ALONE,
    **options: Any,
) -> TokenStore:
    """Make a store, or resume one."""
    return make_store(
        data,
        folder,
        found=fingerprint(data.text),
        progress=progress or PreparationProgress(say),
        node=node,
        options=StoreOptions(**options),
    )


def read_documents(*paths: Path) -> list[str]:
    """Return the documents of these files as the job reads them; without files, those of the embedded corpus."""
    found = [SourceConfig(path=[str(path)]) for path in paths]
    return [document for part in plan_parts(found) for document in read_part(found, part)]


def encoded_as(documents: Sequence[Sequence[Sequence[int]]]) -> EncodedDocuments:
    """Return encoded documents from nested lists of ids."""
    sentences = [sentence for document in documents for sentence in document]
    return EncodedDocuments(
        np.array([token for sentence in sentences for token in sentence], np.int64),
        np.array([len(sentence) for sentence in sentences], np.int64),
        np.array([len(document) for document in documents], np.int64),
    )


def flips_of_one_bit(content: bytes, count: int) -> Iterator[bytes]:
    """Yield copies of a content, each with another random bit flipped."""
    for bit in random.Random(0).sample(range(8 * len(content)), count):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files of a folder by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
