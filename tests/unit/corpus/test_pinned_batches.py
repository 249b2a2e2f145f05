"""Batches of random text are those of the first implementation, which planned and read everything on every process."""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np
import pytest

from train_jobs.artifacts.store_manifest import SPLITS, SourceCounts, SpecialIds, StoreManifest
from train_jobs.config.pretrain import DataConfig, ObjectiveConfig
from train_jobs.corpus.examples.batches import PretrainingData
from train_jobs.corpus.examples.example_stream import Cursor
from train_jobs.corpus.examples.pairs import plan_block
from train_jobs.corpus.store.token_store import EncodedDocuments, StoreWriter, TokenStore

DIGESTS = {
    ("document", 64, 96): "486a58f874b05ba3",
    ("document", 64, 3000): "b913f47d220d8cc0",
    ("document", 512, 96): "3f7c740a69ccbe8b",
    ("document", 512, 3000): "7693ca389add0bef",
    ("full", 64, 96): "110e4bbbb6aed21f",
    ("full", 64, 3000): "ebf78be4f765b667",
    ("full", 512, 96): "4a81304e058c5da1",
    ("full", 512, 3000): "f73b07852d1edf3f",
    ("pairs", 64, 96): "28e4265165342eaf",
    ("pairs", 64, 3000): "3d603399931111b8",
    ("pairs", 512, 96): "8279758cad23b270",
    ("pairs", 512, 3000): "9e0523e7409b8cb5",
    ("static", 64, 96): "28e4265165342eaf",
    ("static", 64, 3000): "8a67724e1f12ad1b",
    ("static", 512, 96): "8279758cad23b270",
    ("static", 512, 3000): "2534241f224e4a14",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """Return a store of random documents in small blocks, from two sources of weights 1 and 1.5."""
    folder, draw, shards = tmp_path_factory.mktemp("store"), np.random.default_rng(0), []
    for source in range(2):
        writer = StoreWriter(folder, vocab_size=5000, part=source, source=source, block_tokens=20_000)
        for split in SPLITS:
            documents = draw.integers(1, 30, 600 if split == "train" else 60)
            sentences = draw.integers(1, 60, int(documents.sum()))
            writer.add(split, EncodedDocuments(draw.integers(10, 5000, int(sentences.sum())), sentences, documents))
        writer.close()
        shards += writer.shards
    manifest = StoreManifest.model_construct(
        vocab_size=5000,
        special_ids=SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4),
        shards=shards,
        sources=[SourceCounts.model_construct(name=name, weight=weight) for name, weight in (("a", 1.0), ("b", 1.5))],
    )
    return TokenStore(folder, manifest)


@pytest.mark.long
@pytest.mark.parametrize("length", [64, 512])
@pytest.mark.parametrize("name", ["pairs", "full", "document", "static"])
@pytest.mark.parametrize("batch", [96, 3000])
def test_batches_are_pinned(store: TokenStore, name: str, length: int, batch: int) -> None:
    objective = {
        "pairs": ObjectiveConfig(),
        "full": ObjectiveConfig(next_sentence=False),
        "document": ObjectiveConfig(next_sentence=False, sequences="doc-sentences"),
        "static": ObjectiveConfig(duplicates=2),
    }[name]
    digest = hashlib.sha256()
    data = PretrainingData(
        store,
        "train",
        data=DataConfig(sequence_length=length),
        plan=partial(plan_block, objective=objective),
        objective=objective,
        max_predictions=20,
        seed=3,
    )
    cursor = Cursor()
    for _ in range(12 if batch < 100 else 8):
        for rank in range(3):
            part, following = data.batch(cursor, global_batch_size=batch, rank=rank, world_size=3)
            for array in part.arrays().values():
                digest.update(array.tobytes())
        cursor = following
    digest.update(str(cursor).encode())
    assert digest.hexdigest()[:16] == DIGESTS[name, length, batch]
