"""Time of one rank's share of the input pipeline: planning of the global batch, then reading and masking of the share.

    python -m benchmarks.planning [STEPS] [--world 64] [--batch 65536] [--length 128]

Every rank plans the global batch and reads its own part of it. The text is random: 32 blocks of a million tokens,
documents of 2 to 40 sentences of 5 to 60 tokens, in a real token store. The figures are medians over steps; the first
steps, which compile the planner and open the first blocks, are reported apart.

Expected before the first run: Python plans 67,000 sequences a second, so a step of 65,536 takes 1 s; the compiled loop
needs some 0.2 us a sequence, and a rank of 64 reads 1,024 sequences in some 10 ms. So 30 ms a step.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.machine import describe
from train_jobs.artifacts.store_manifest import SPLITS, SourceCounts, SpecialIds, StoreManifest
from train_jobs.config.pretrain import DataConfig, ObjectiveConfig
from train_jobs.corpus.examples.batches import PretrainingData
from train_jobs.corpus.examples.example_stream import Cursor
from train_jobs.corpus.examples.pairs import plan_block
from train_jobs.corpus.store.token_store import EncodedDocuments, StoreWriter, TokenStore

BLOCKS, VOCABULARY, WARM_UP = 32, 30_522, 2
OBJECTIVES = {
    "pairs (next sentence)": ObjectiveConfig(next_sentence=True),
    "full sentences": ObjectiveConfig(next_sentence=False),
}


def random_documents(draw: np.random.Generator, count: int) -> EncodedDocuments:
    """Return random documents."""
    documents = draw.integers(2, 41, count)
    sentences = draw.integers(5, 61, int(documents.sum()))
    return EncodedDocuments(draw.integers(1000, VOCABULARY, int(sentences.sum())), sentences, documents)


def random_store(folder: Path) -> TokenStore:
    """Write a store of random documents."""
    writer, draw = StoreWriter(folder, vocab_size=VOCABULARY), np.random.default_rng(0)
    for split, blocks in zip(SPLITS, (BLOCKS, 1), strict=True):
        for _ in range(blocks * 2):
            writer.add(split, random_documents(draw, 800))
    writer.close()
    manifest = StoreManifest.model_construct(
        vocab_size=VOCABULARY,
        special_ids=SpecialIds(pad=0, unk=100, cls=101, sep=102, mask=103),
        shards=writer.shards,
        sources=[SourceCounts.model_construct(name="random", weight=1.0)],
    )
    return TokenStore(folder, manifest)


def measure(
    store: TokenStore, objective: ObjectiveConfig, *, steps: int, world: int, batch: int, length: int
) -> tuple[float, float, list[float]]:
    """Return the seconds of the first step, of the mean step and of each step after the warm-up, of rank 0."""
    data = PretrainingData(
        store,
        "train",
        data=DataConfig(sequence_length=length),
        plan=partial(plan_block, objective=objective),
        objective=objective,
        max_predictions=20,
        seed=0,
    )
    cursor, taken = Cursor(), []
    for _ in range(WARM_UP + steps):
        started = time.perf_counter()
        _, cursor = data.batch(cursor, global_batch_size=batch, rank=0, world_size=world)
        taken.append(time.perf_counter() - started)
    later = taken[WARM_UP:]
    return taken[0], statistics.fmean(later), later


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="?", type=int, default=10)
    parser.add_argument("--world", type=int, default=64)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--length", type=int, default=128)
    chosen = parser.parse_args()
    print(f"{describe('numpy')}; rank 0 of {chosen.world}, {chosen.batch:,} sequences of {chosen.length} a step\n")
    print("| objective | first step, ms | step, ms: median | mean | max | planned sequences/s |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        store = random_store(Path(place))
        for name, objective in OBJECTIVES.items():
            first, mean, later = measure(
                store, objective, steps=chosen.steps, world=chosen.world, batch=chosen.batch, length=chosen.length
            )
            figures = (first, statistics.median(later), mean, max(later))
            cells = " | ".join(f"{1000 * value:.0f}" for value in figures)
            print(f"| {name} | {cells} | {chosen.batch / mean:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
