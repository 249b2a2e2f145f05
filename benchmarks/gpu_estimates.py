"""Estimates of pretraining on GPUs, line by line of a roofline, adjusted to measurements on one H200.

    python -m benchmarks.gpu_estimates          # the tables of docs/speed.md and docs/gpu.md

The seconds of a step are the sum of its lines. Each line is work divided by a rate:

- products: model FLOPs without attention, at the rate of large bf16 products;
- attention: its FLOPs, at a share of that rate: FlashAttention 2 at 128 tokens is bound by memory and small tiles;
- elementwise: GELU, dropout, LayerNorm, residuals, casts and their backward passes, fused: 240 bytes a token, layer and
  unit of the hidden size, at the rate of the memory;
- accumulation: gradients of a micro batch read and added, 12 bytes a parameter;
- optimizer: LAMB, 77 bytes a parameter and step, or fused AdamW, 34 bytes;
- gaps: 7% of all above, for tails of kernels and the end of a step;
- launches: if the host needs longer to launch the kernels of a micro batch than the GPU to run them, the difference.

Measured on the H200 at 128 tokens with torch 2.11 (benchmarks/results/gpu-profile-h200-2026-11-27.txt): its rate of
products, the share of attention, the bytes of elementwise operations and optimizers, the gaps, and the launches.
Elementwise kernels must move 94 bytes, but they reach less than half the rate of a copy: GELU's erf and the random
numbers of dropout cost arithmetic. Not measured: the share of attention at 512, and the rates of the other GPUs. Those
are 65 to 70% of the data sheet for large products, 75% on an H100 as on the H200, and 83 to 85% of its bandwidth for
copies (published measurements of A100 and H100).

benchmarks/gpu_day.py measures the same figures and reports the error of each estimate.
"""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.estimates.memory import activation_memory, state_bytes
from train_jobs.artifacts.layers import merge, read_preset
from train_jobs.config import PretrainConfig
from train_jobs.config.arithmetic import flops_per_token, parameter_count

PIECES = 30_522
BF16 = 2
ELEMENTWISE, ACCUMULATION = 240, 12  # bytes
OPTIMIZER = {"lamb": 77, "adamw": 34}  # bytes
GAPS = 0.07
LAUNCHES, LAUNCHES_OF_LAYER = 11e-3, 1.2e-3  # seconds of a micro batch, forward and backward, compiled
ATTENTION_SHARE = {128: 0.082, 512: 0.16}  # of the rate of large products
RESERVE = 0.08  # of the memory: CUDA context, NCCL, fragments
MICRO_BATCHES = (256, 128, 64, 32, 16, 8, 4, 2, 1)
ROUND_TO = 2  # significant digits


class Card(NamedTuple):
    """One GPU."""

    products: float
    """FLOP/s of large products in 16 bit."""
    memory: float
    """Bytes a second of its memory."""
    bytes: float
    """Size of its memory."""


CARDS = {
    "T4 16 GB": Card(26e12, 0.25e12, 16e9),
    "A100 40 GB": Card(215e12, 1.3e12, 42e9),
    "A100 80 GB": Card(215e12, 1.65e12, 85e9),
    "H100 80 GB": Card(735e12, 2.8e12, 85e9),
    "H200 141 GB": Card(735e12, 4.0e12, 150e9),
}


class Lines(NamedTuple):
    """Seconds of each line of a step."""

    products: float
    attention: float
    elementwise: float
    accumulation: float
    optimizer: float
    gaps: float
    launches: float


class Workload(NamedTuple):
    """Work of a step."""

    recipe: str
    length: int
    sequences: int
    """Of a step on this GPU."""
    mean_tokens: float | None = None
    """Tokens of a sequence without padding. None: all sequences are full."""
    optimizer: str = "lamb"

    def config(self) -> PretrainConfig:
        """Return the recipe at this length."""
        tree = merge(read_preset(self.recipe)).tree
        data = {**tree.get("data", {}), "sequence_length": self.length}
        return PretrainConfig.model_validate({**tree, "data": data})


def lines(card: Card, work: Workload, micro_batch: int) -> Lines:
    """Return the lines of a step."""
    config = work.config()
    model, mean = config.model, work.mean_tokens or work.length
    tokens = work.sequences * mean
    parameters = parameter_count(model, PIECES)
    flops = flops_per_token(model, PIECES, sequence_length=mean, max_predictions=config.max_predictions)
    attended = 12 * model.num_hidden_layers * model.hidden_size * mean
    micro_batches = max(round(work.sequences / micro_batch), 1)
    products = tokens * (flops - attended) / card.products
    attention = tokens * attended / (ATTENTION_SHARE[work.length] * card.products)
    elementwise = tokens * ELEMENTWISE * model.num_hidden_layers * model.hidden_size / card.memory
    accumulation = micro_batches * ACCUMULATION * parameters / card.memory
    optimizer = OPTIMIZER[work.optimizer] * parameters / card.memory
    gaps = GAPS * (products + attention + elementwise + accumulation + optimizer)
    busy = (products + attention + elementwise + accumulation) * (1 + GAPS)
    host = micro_batches * launch_seconds(model.num_hidden_layers)
    return Lines(products, attention, elementwise, accumulation, optimizer, gaps, max(host - busy, 0.0))


def launch_seconds(layers: int) -> float:
    """Return the seconds in which the host launches the kernels of a compiled micro batch, forward and backward."""
    return LAUNCHES + LAUNCHES_OF_LAYER * layers


def tokens_that_hide_launches(card: Card, recipe: str) -> float:
    """Return the tokens of a micro batch, in sequences of 128, below which a GPU waits for the host."""
    one = Workload(recipe, 128, 1)
    found = lines(card, one, 1)
    busy = (found.products + found.attention + found.elementwise) * (1 + GAPS)
    return 128 * launch_seconds(one.config().model.num_hidden_layers) / busy


def rate(card: Card, work: Workload, micro_batch: int) -> float:
    """Return sequences a second of one GPU."""
    return work.sequences / sum(lines(card, work, micro_batch))


def largest_micro_batch(card: Card, work: Workload) -> int | None:
    """Return the largest micro batch that fits by the plan's own estimate of memory; None: none does."""
    config = work.config()
    parameters = parameter_count(config.model, PIECES)
    state = state_bytes(parameters, activation_bytes=BF16, with_moments=parameters)
    for size in MICRO_BATCHES:
        held = activation_memory(config, PIECES, micro_batch_size=size, activation_bytes=BF16, on_cpu=False)
        if state + held <= (1 - RESERVE) * card.bytes:
            return size
    return None


def rounded(value: float) -> str:
    """Return a number with two significant digits, as an estimate deserves."""
    return f"{float(f'{value:.{ROUND_TO}g}'):,.0f}" if value >= 10 else f"{float(f'{value:.{ROUND_TO}g}'):g}"


def roofline_table() -> str:
    """Return microseconds a sequence of each line, with 1,024 sequences a step, and the rate, for docs/speed.md."""
    heads = [
        "estimated us a sequence",
        "micro batch",
        *(name.replace("_", " ") for name in Lines._fields),
        "sequences/s",
    ]
    rows = [f"| {' | '.join(heads)} |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for recipe, length in (("base", 128), ("base", 512), ("large", 128), ("large", 512)):
        for name in ("A100 80 GB", "H100 80 GB", "H200 141 GB"):
            work = Workload(recipe, length, 1024)
            size = largest_micro_batch(CARDS[name], work) or 1
            parts = lines(CARDS[name], work, size)
            cells = [f"{recipe}, {length}, {name.split()[0]}", f"{size}"]
            cells += [rounded(1e6 * part / work.sequences) for part in parts]
            rows.append(f"| {' | '.join([*cells, rounded(rate(CARDS[name], work, size))])} |")
    return "\n".join(rows)


RUNS = {  # 1M steps of 256 sequences, 90% at 128 (Devlin et al. 2019); NVIDIA's two phases with LAMB
    "BERT-base": (("base", 128, 900_000 * 256), ("base", 512, 100_000 * 256)),
    "BERT-large": (("large", 128, 7038 * 65_536), ("large", 512, 1563 * 32_768)),
}


def sizing_table() -> str:
    """Return micro batch, rate and hours of each GPU, for docs/gpu.md."""
    rows = [
        "| GPU | model | micro batch at 128, 512 | sequences/s at 128, 512 | hours of pretraining, 1 GPU | 8 GPUs |",
        "| --- | --- | --- | --- | ---: | ---: |",
    ]
    for name, card in CARDS.items():
        for run, phases in RUNS.items():
            sizes, rates, hours = [], [], 0.0
            for recipe, length, sequences in phases:
                work = Workload(recipe, length, 1024)
                size = largest_micro_batch(card, work)
                sizes.append(str(size or "-"))
                rates.append(rate(card, work, size or 1))
                hours += sequences / rates[-1] / 3600
            shown = ", ".join(rounded(one) for one in rates)
            # 95% of eight times the rate of one: the model of docs/scaling.md without overlap
            eight = rounded(hours / (8 * 0.95))
            rows.append(f"| {name} | {run} | {', '.join(sizes)} | {shown} | {rounded(hours)} | {eight} |")
    return "\n".join(rows)


def main() -> None:
    """Print both tables."""
    print(roofline_table(), sizing_table(), sep="\n\n")


if __name__ == "__main__":
    main()
