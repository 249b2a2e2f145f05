"""A small made-up language: enough words and documents for a store, deterministic."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.object_store import ObjectStore, object_store
from tests.unit.corpus.small_corpora import prepare
from train_jobs.config import DataConfig
from train_jobs.corpus.store.token_store import TokenStore

SYLLABLES = ["ba", "ko", "ri", "mu", "te", "lan", "sor", "vi", "dax", "en", "qu", "ost"]


def write_corpus(path: Path, documents: int = 40, seed: int = 0) -> Path:
    """Write documents of a few made-up sentences, separated by blank lines."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(300)]

    def sentence() -> str:
        return " ".join(draw.choices(words, k=draw.randint(3, 12))).capitalize() + "."

    text = "\n\n".join("\n".join(sentence() for _ in range(draw.randint(1, 12))) for _ in range(documents))
    path.write_text(text + "\n", encoding="utf-8")
    return path


@pytest.fixture
def corpus_file(tmp_path: Path) -> Callable[..., Path]:
    return lambda name="corpus.txt", **options: write_corpus(tmp_path / name, **options)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """Return a store with several blocks in each split."""
    folder = tmp_path_factory.mktemp("corpus")
    data = DataConfig(
        text=[write_corpus(folder / "corpus.txt", documents=160)], vocab_size=300, validation_fraction=0.25
    )
    return prepare(data, folder / "store", block_tokens=1500)


@pytest.fixture(scope="module")
def service() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def objects(service: ObjectStore) -> ObjectStore:
    """Return an object store without objects, faults or counts."""
    service.make_bucket()
    service.share = 0.0
    for counter in (service.requests, service.faults, service.read):
        counter.clear()
    return service
