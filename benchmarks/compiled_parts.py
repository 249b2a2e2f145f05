"""CPU seconds of a step with compiled parts of BERT, relative to one without compilation.

    python -m benchmarks.compiled_parts

Layers alone, as `train.compile: true` compiles them on a CPU, and all parts, as on a GPU: layers, sum of embeddings,
heads with their losses. One process with all three models takes turns, so ratios compare steps of the same round.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch

from benchmarks.machine import describe
from train_jobs.config import ModelConfig
from train_jobs.engine.runtime.devices import autocast, resolve_precision
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise, pretraining_sums
from train_jobs.models.bert.primitives import gradients_in_place
from train_jobs.models.packing import packing_arrays

CPU = torch.device("cpu")
SHAPE = ModelConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
PIECES, SEQUENCES, LENGTH, PREDICTIONS = 30_528, 16, 128, 20
ROUNDS, MICRO_BATCHES = 9, 2
KINDS = ("none", "layers", "all parts")


def make_model(kind: str) -> BertForPreTraining:
    """Return a model with the compiled parts of one of `KINDS`."""
    made = BertForPreTraining(SHAPE, PIECES)
    initialise(made, 1)
    if kind != "none":
        made.compile_parts(layers_only=kind == "layers")
    for parameter in made.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return made.train()


def examples() -> dict[str, torch.Tensor]:
    """Return a packed micro batch of random pieces."""
    lengths = np.random.default_rng(0).integers(60, LENGTH + 1, SEQUENCES)
    ids = torch.randint(5, PIECES - 8, (SEQUENCES, LENGTH))
    packing = packing_arrays(lengths, LENGTH)
    return {
        "input_ids": ids,
        "token_type_ids": torch.zeros_like(ids),
        "lengths": torch.from_numpy(lengths),
        "masked_positions": torch.randint(0, 50, (SEQUENCES, PREDICTIONS)),
        "masked_labels": torch.randint(5, PIECES - 8, (SEQUENCES, PREDICTIONS)),
        "next_sentence_labels": torch.ones(SEQUENCES, dtype=torch.int64),
        **{name: torch.from_numpy(array) for name, array in packing.items()},
    }


def step_seconds(model: BertForPreTraining, batch: dict[str, torch.Tensor], precision: str) -> float:
    """Return the CPU seconds of the forward and backward passes of a step."""
    started = time.process_time()
    with gradients_in_place():
        for _ in range(MICRO_BATCHES):
            with autocast(precision, CPU):
                sums = pretraining_sums(model, batch, next_sentence=True, padded=True)
            (sums.mlm_loss_sum + sums.nsp_loss_sum).backward()
    return time.process_time() - started


def main() -> None:
    """Measure and print a table."""
    torch.set_num_threads(1)
    precision, batch = resolve_precision("auto", CPU), examples()
    models = {kind: make_model(kind) for kind in KINDS}
    for model in models.values():
        step_seconds(model, batch, precision)  # compiles
        step_seconds(model, batch, precision)
    rounds = [{kind: step_seconds(model, batch, precision) for kind, model in models.items()} for _ in range(ROUNDS)]
    print(f"{describe('torch')}, {precision}")
    print("| compiled | CPU seconds of a step | relative to none |\n| --- | ---: | ---: |")
    for kind in KINDS:
        seconds = statistics.median(one[kind] for one in rounds)
        ratio = statistics.median(one[kind] / one["none"] for one in rounds)
        print(f"| {kind} | {seconds:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
