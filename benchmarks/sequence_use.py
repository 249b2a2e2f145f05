"""Fullness of sequences, the share of text that they use, and the tokens of a step.

    python -m train_jobs.prepare --config books.yaml --output books     # and so for each text
    python -m benchmarks.sequence_use STORE...

STORE is a token store. For each store and length: BERT's sentence pairs, and RoBERTa's full-sentences and
doc-sentences. Printed are the real tokens of a sequence, the share of the text in sequences of one pass, and the share
of random pairs, each on a sample of up to four blocks. The second table has the tokens of a step, mean and standard
deviation over steps, with 256 sequences a step and with the batch tokens of 256 full sequences. The third table has the
packed tokens of micro batches with `train.cuda_graphs`: their values, each of which has a graph, and their sum relative
to that without graphs.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.machine import describe
from train_jobs.artifacts.sequence_figures import SequenceFigures, layout
from train_jobs.config import DataConfig, ObjectiveConfig, PretrainConfig, TrainConfig
from train_jobs.corpus.examples.batches import Batch, PretrainingData
from train_jobs.corpus.examples.example_stream import Cursor
from train_jobs.corpus.examples.pairs import plan_block
from train_jobs.corpus.examples.text_use import sequence_figures
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.models.packing import MULTIPLE, graph_multiple
from train_jobs.tasks.pretraining_batches import packed_arrays

OBJECTIVES = (
    ObjectiveConfig(),
    ObjectiveConfig(next_sentence=False),
    ObjectiveConfig(next_sentence=False, sequences="doc-sentences"),
)
LENGTHS = (64, 128, 512)
SEQUENCES = 256
STEPS = 20
MICRO_BATCHES = ((128, 128), (128, 32), (512, 32), (512, 8))
"""Tokens of a sequence, sequences of a micro batch."""
PASSES = 200


def main() -> None:
    """Print two tables."""
    print(describe("numpy"))
    stores = {Path(name).resolve().parent.parent.name: TokenStore.open(Path(name)) for name in sys.argv[1:]}
    print(head("text", "length", "sequences", "real tokens", "text used", "random pairs"))
    for name, store in stores.items():
        for length in LENGTHS:
            for objective in OBJECTIVES:
                found = figures(store, length, objective)
                real = found.tokens_per_sequence / length
                cells = [
                    name,
                    length,
                    found.layout,
                    f"{real:.1%}",
                    f"{found.text_used:.1%}",
                    f"{found.random_pairs:.1%}",
                ]
                print("|", *(f"{cell} |" for cell in cells))
    print(head("text", "length", "sequences", "tokens of 256 sequences", "sequences and tokens with batch_tokens"))
    for name, store in stores.items():
        for length in LENGTHS[1:]:
            for objective in OBJECTIVES:
                wanted = TrainConfig(global_batch_size=SEQUENCES, batch_tokens=SEQUENCES * length)
                mean = figures(store, length, objective).tokens_per_sequence
                sized = PretrainConfig(train=wanted).with_batch_of(mean).train.global_batch_size
                fixed, steady = (tokens_of_steps(store, length, objective, size) for size in (SEQUENCES, sized))
                print(f"| {name} | {length} | {layout(objective)} | {fixed} | {sized}: {steady} |")
    print(head("text", "micro batch", "sequences", "values of packed tokens", "tokens with graphs / without"))
    for name, store in stores.items():
        for length, micro_batch in MICRO_BATCHES:
            for objective in OBJECTIVES:
                row = packed_tokens(store, length, objective, micro_batch)
                print(f"| {name} | {micro_batch} x {length} | {layout(objective)} | {row} |")


def head(*columns: str) -> str:
    """Return the head of a Markdown table."""
    return f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def figures(store: TokenStore, length: int, objective: ObjectiveConfig) -> SequenceFigures:
    """Return the figures of sequences of a length."""
    plan = partial(plan_block, objective=objective)
    return sequence_figures(store, data=DataConfig(sequence_length=length), objective=objective, plan=plan)


def tokens_of_steps(store: TokenStore, length: int, objective: ObjectiveConfig, size: int) -> str:
    """Return mean and standard deviation of the tokens of a step."""
    tokens = [batch.tokens for batch in batches(store, length, objective, size, STEPS)]
    return f"{statistics.mean(tokens):,.0f} ± {statistics.stdev(tokens):,.0f}"


def packed_tokens(store: TokenStore, length: int, objective: ObjectiveConfig, micro_batch: int) -> str:
    """Return the number of values of packed tokens with CUDA graphs, and their sum relative to that without graphs."""
    multiples = (graph_multiple(micro_batch, length), MULTIPLE)
    tokens: list[list[int]] = [[], []]
    for batch in batches(store, length, objective, micro_batch, PASSES):
        for found, multiple in zip(tokens, multiples, strict=True):
            arrays = packed_arrays(batch, unpad=True, always=True, multiple=multiple)
            found.append(len(arrays["packing_tokens"]))
    return f"{len(set(tokens[0]))} | {sum(tokens[0]) / sum(tokens[1]):.3f}"


def batches(store: TokenStore, length: int, objective: ObjectiveConfig, size: int, count: int) -> Iterator[Batch]:
    """Yield the first batches of `size` sequences."""
    data = PretrainingData(
        store,
        "train",
        data=DataConfig(sequence_length=length),
        plan=partial(plan_block, objective=objective),
        objective=objective,
        max_predictions=length // 6,
        seed=1,
    )
    cursor = Cursor()
    for _ in range(count):
        batch, cursor = data.batch(cursor, global_batch_size=size, rank=0, world_size=1)
        yield batch


if __name__ == "__main__":
    main()
