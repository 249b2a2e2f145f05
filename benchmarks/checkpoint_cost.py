"""Cost of a BERT-base checkpoint: none, a synchronous one, an asynchronous one.

    python -m benchmarks.checkpoint_cost [ROUNDS STEPS]

Steps are real ones (forward, backward, LAMB, bf16) on random text. A round takes the three in turn, so that a
slow moment affects all equally: STEPS undisturbed steps, then a checkpoint that training waits for, then one that
is written meanwhile, with as many steps as that takes. What a checkpoint costs is the time that training waits for it,
and the extra time of steps during the write, compared with the median of the round's undisturbed ones.

Expected before the first run, for 2 cores, both of which training uses: 12 bytes x 110 M = 1.32 GB. Written while
training waits: SHA-256 twice (once on writing, once on reading back) at 0.7 GB/s, the disk at some 0.3 GB/s:
about 8 s. Asynchronous: 0.5 s for the copy at 3 GB/s; then about 5 s of processor time, which training loses at
most on one of two cores, so 2.5 s; it takes far longer to be committed, since its thread has the lowest priority.
So 3 s a checkpoint: 0.5% of training at one in 10 minutes, 5% at one a minute.
"""

from __future__ import annotations

import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.machine import describe, spread
from train_jobs.config import CheckpointConfig, ModelConfig, OptimizerConfig, ProfileConfig, TrainConfig
from train_jobs.engine.checkpoint.checkpoints import Cadence, CheckpointStore
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.loop.policy import LoopPolicy, LoopServices
from train_jobs.engine.reporting.metrics import MetricsLog, ProgressLine
from train_jobs.engine.reporting.profiler import StepProfiler
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise, pretraining_sums
from train_jobs.models.bert.primitives import gradients_in_place
from train_jobs.optim.factory import build_optimizer

VOCABULARY, SEQUENCES, LENGTH, PREDICTIONS = 30_522, 4, 128, 20
CPU = torch.device("cpu")
WAITING, CONCURRENT = MODES = ("training waits", "concurrent")


class RandomBatch:
    """Sequences of random pieces."""

    def __init__(self) -> None:
        self.tensors = {
            "input_ids": torch.randint(VOCABULARY, (SEQUENCES, LENGTH)),
            "token_type_ids": torch.zeros(SEQUENCES, LENGTH, dtype=torch.int64),
            "masked_positions": torch.randint(LENGTH, (SEQUENCES, PREDICTIONS)),
            "masked_labels": torch.randint(VOCABULARY, (SEQUENCES, PREDICTIONS)),
            "next_sentence_labels": torch.zeros(SEQUENCES, dtype=torch.int64),
            "lengths": torch.full((SEQUENCES,), LENGTH),
        }

    def __len__(self) -> int:
        return SEQUENCES

    def slice(self, start: int, stop: int) -> RandomBatch:
        """Return the whole batch, which is one micro batch."""
        assert (start, stop) == (0, SEQUENCES)
        return self

    @property
    def tokens(self) -> int:
        """Return the number of tokens; nothing is padded."""
        return SEQUENCES * LENGTH


class RandomText:
    """Task of the loop: BERT-base on random text."""

    def __init__(self) -> None:
        config = ModelConfig()
        self.model = BertForPreTraining(config, config.padded_vocab_size(VOCABULARY))
        initialise(self.model, 1)
        self._batch = RandomBatch()

    def accumulating(self) -> AbstractContextManager[None]:
        """Return the context in which backward passes add to the gradients in place."""
        return gradients_in_place()

    def train_batch(self, cursor: dict[str, int]) -> tuple[RandomBatch, dict[str, int]]:
        """Return the same batch every time."""
        return self._batch, cursor

    def counts(self, batch: RandomBatch) -> list[float]:
        """Return the numbers of masked tokens and of pairs."""
        return [float(SEQUENCES * PREDICTIONS), float(SEQUENCES)]

    def loss(self, batch: RandomBatch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of both mean losses."""
        sums = pretraining_sums(self.model, batch.tensors, next_sentence=True, padded=False)
        return sums.mlm_loss_sum / totals[0] + sums.nsp_loss_sum / totals[1], torch.zeros(1)

    def metrics(self, sums: list[float]) -> dict[str, float]:
        """Raise: the benchmark does not use it."""
        raise NotImplementedError

    def largest_batch(self, sequences: int) -> RandomBatch:
        """Raise: the benchmark does not use it."""
        raise NotImplementedError

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """Raise: the benchmark does not use it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Cost:
    """Times of one checkpoint."""

    wait: float
    """Seconds that training waited for it."""
    write: float
    """Seconds until it was committed."""
    slowdown: float
    """Duration of the steps meanwhile, relative to the round's median undisturbed step."""
    total: float
    """Seconds that training lost in total."""


ROWS: list[tuple[str, Callable[[Cost], float], float, int]] = [
    ("training waits, s", lambda cost: cost.wait, 1, 2),
    ("written, read back, committed after, s", lambda cost: cost.write, 1, 1),
    ("a step meanwhile, times an undisturbed one", lambda cost: cost.slowdown, 1, 2),
    ("lost altogether, s", lambda cost: cost.total, 1, 2),
    ("of training at one in 10 minutes, %", lambda cost: cost.total / 600, 100, 2),
    ("of training at one a minute, %", lambda cost: cost.total / 60, 100, 2),
]


def make_loop(folder: Path) -> Loop:
    """Return a loop that saves on request."""
    task = RandomText()
    return Loop(
        task,
        build_optimizer(OptimizerConfig(name="lamb"), task.model.named_parameters()),
        World(rank=0, local_rank=0, size=1, device=CPU),
        LoopPolicy(
            config=TrainConfig(global_batch_size=SEQUENCES, micro_batch_size=SEQUENCES),
            precision="bf16",
            schedule=lambda step, time_used: 1e-5,
            max_grad_norm=1.0,
            validate_every=1,
        ),
        LoopServices(
            cadence=Cadence(CheckpointConfig()),  # never due by itself here: `one_round` calls save
            checkpoints=CheckpointStore(folder, keep_last=1),
            metrics=MetricsLog(None),
            progress=ProgressLine(1, io.StringIO()),
            stop=StopRequest(),
            profiler=StepProfiler(ProfileConfig(), World(rank=0, local_rank=0, size=1, device=CPU), None),
        ),
    )


def timed_step(loop: Loop) -> float:
    """Return the seconds of one optimizer step."""
    started = time.perf_counter()
    assert loop._step()
    return time.perf_counter() - started


def one_round(loop: Loop, stores: dict[str, CheckpointStore], steps: int) -> tuple[list[float], dict[str, Cost]]:
    """Time undisturbed steps, then a checkpoint of each mode."""
    undisturbed = [timed_step(loop) for _ in range(steps)]
    base = statistics.median(undisturbed)
    costs = {}
    for mode, store in stores.items():
        loop.services.checkpoints = store
        timed_step(loop)  # there must be something new to save
        wait, step_seconds = loop.save(), []
        while store.writing:
            step_seconds.append(timed_step(loop))
        done = store.collect(wait=True)
        assert done is not None
        slowdown = statistics.mean(step_seconds) / base if step_seconds else 1.0
        costs[mode] = Cost(wait, done.seconds, slowdown, wait + sum(seconds - base for seconds in step_seconds))
    return undisturbed, costs


def main() -> None:
    """Print a table."""
    rounds, steps = (int(word) for word in (sys.argv[1:] or ["5", "8"]))
    with tempfile.TemporaryDirectory() as place:
        loop = make_loop(Path(place))
        stores = {
            mode: CheckpointStore(Path(place, mode), keep_last=1, asynchronous=mode == CONCURRENT) for mode in MODES
        }
        # The first asynchronous checkpoint allocates its staging memory, so its round is reported separately.
        _, first = one_round(loop, stores, steps)
        done = [one_round(loop, stores, steps) for _ in range(rounds)]
        size = sum(path.stat().st_size for path in Path(place, CONCURRENT).rglob("*.safetensors"))
    undisturbed = [seconds for steps, _ in done for seconds in steps]
    parameters = sum(parameter.numel() for parameter in loop.task.model.parameters())
    print(f"{describe('torch')}, {torch.get_num_threads()} threads\n")
    print(f"{parameters / 1e6:.0f} M parameters, {size / 1e9:.2f} GB a checkpoint; step {spread(undisturbed)} s;")
    print(f"{rounds} rounds after a first one, whose copy took {first[CONCURRENT].wait:.2f} s; medians (min-max)\n")
    print("| | " + " | ".join(MODES) + " |\n|---|" + "---|" * len(MODES))
    for label, value, scale, digits in ROWS:
        cells = [spread([value(costs[mode]) for _, costs in done], scale, digits) for mode in MODES]
        print(f"| {label} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
