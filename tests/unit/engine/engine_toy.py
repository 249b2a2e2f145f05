"""A toy task with the hard properties of pretraining: linear regression with missing targets.

As in pretraining, the loss has two terms with separate denominators: squared errors are averaged over the present
targets, like masked tokens, and absolute errors over the rows, like sentence pairs. Rows have different numbers of
targets, so that a mean of means is not the mean.

Run as a script, the module is one process of a job; see `main`.
"""

from __future__ import annotations

import io
import itertools
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.config import CheckpointConfig, OptimizerConfig, ProfileConfig, TrainConfig
from train_jobs.engine.checkpoint.background import Work
from train_jobs.engine.checkpoint.checkpoints import Cadence, CheckpointStore
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.loop.policy import LoopPolicy, LoopServices, TimeBudget
from train_jobs.engine.reporting.metrics import MetricsLog, ProgressLine
from train_jobs.engine.reporting.profiler import StepProfiler
from train_jobs.engine.runtime import distributed
from train_jobs.engine.runtime.distributed import World, explain_lost_peer
from train_jobs.engine.runtime.stop import Preempted, StopRequest
from train_jobs.optim.factory import build_optimizer

INPUTS, TARGETS = 5, 4
ROW_BYTES = 32 * 2**20  # well above the noise of other allocations in a process
CLOCKED = {
    *("sequences_per_second", "tokens_per_second", "data_wait_share", "mfu", "peak_memory_gb"),
    *("slowest_rank", "slowest_rank_ratio"),
    *("checkpoint_seconds", "checkpoint_wait_seconds"),
}
ALONE = World(rank=0, local_rank=0, size=1, device=torch.device("cpu"))


@dataclass(frozen=True)
class ToyBatch:
    """Rows of a regression."""

    inputs: np.ndarray
    """float32 [rows, INPUTS]"""
    targets: np.ndarray
    """float32 [rows, TARGETS], NaN where there is none; every row has one at least."""

    def __len__(self) -> int:
        return len(self.inputs)

    def slice(self, start: int, stop: int) -> ToyBatch:
        """Return the rows from `start` to `stop`."""
        return ToyBatch(self.inputs[start:stop], self.targets[start:stop])

    @property
    def tokens(self) -> int:
        """Number of rows."""
        return len(self)


class ToyTask:
    """Two linear layers with dropout between them.

    Args:
        world: determines this process's share: consecutive rows, whose number differs between processes.
        rows: rows of a global batch.
        dropout: share of hidden units dropped.
        skip: numbers of the global batches to leave out.
        stretch: factor on the targets; a large one causes gradients that overflow fp16.
        trouble: maps the number of the global batch and each micro batch's loss to the loss that is trained on.
    """

    def __init__(
        self,
        world: World = ALONE,
        *,
        rows: int = 6,
        dropout: float = 0.0,
        skip: frozenset[int] = frozenset(),
        stretch: float = 1.0,
        trouble: Callable[[int, torch.Tensor], torch.Tensor] = lambda batch, loss: loss,
    ) -> None:
        self.world, self.rows, self.skip, self.stretch, self.trouble = world, rows, skip, stretch, trouble
        self.number = -1
        self.validations = 0
        torch.manual_seed(11)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(INPUTS, 8), torch.nn.Dropout(dropout), torch.nn.Linear(8, TARGETS)
        )

    def accumulating(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def flops(self, sequences: float, tokens: float) -> float:
        """Return round numbers."""
        return 200.0 * sequences + 128.0 * tokens

    def train_batch(self, cursor: dict[str, int]) -> tuple[ToyBatch, dict[str, int]]:
        """Return this process's share of the next global batch; the cursor counts global batches."""
        self.number = cursor.get("batch", 0)
        while self.number in self.skip:
            self.number += 1
        whole = make_rows(self.number, self.rows)
        start, stop = (self.rows * (self.world.rank + i) // self.world.size for i in range(2))
        return self._stretched(whole.slice(start, stop)), {"batch": self.number + 1}

    def counts(self, batch: ToyBatch) -> list[float]:
        """Return the numbers of present targets and of rows."""
        return [float(np.isfinite(batch.targets).sum()), float(len(batch))]

    def loss(self, batch: ToyBatch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of both terms, and the sums of squared errors, absolute errors, targets and rows."""
        squares, absolutes = self._sums(batch)
        loss = squares / totals[0] + absolutes / totals[1]
        sums = torch.tensor([squares.item(), absolutes.item(), *self.counts(batch)], dtype=torch.float64)
        return self.trouble(self.number, loss), sums

    def largest_batch(self, sequences: int) -> ToyBatch:
        """Return rows with all targets present."""
        whole = make_rows(20_000, sequences)
        return ToyBatch(whole.inputs, np.nan_to_num(whole.targets))

    def metrics(self, sums: list[float]) -> dict[str, float]:
        """Return the loss."""
        squares, absolutes, targets, rows = sums
        return {"loss": squares / targets + absolutes / rows}

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """Return the loss on rows that no training batch contains."""
        self.validations += 1
        assert not self.model.training
        batch = self._stretched(make_rows(10_000, 16))
        return self.metrics([value.item() for value in self._sums(batch)] + self.counts(batch))

    def _sums(self, batch: ToyBatch) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.model(torch.from_numpy(batch.inputs)).float()
        there = torch.from_numpy(np.isfinite(batch.targets))
        errors = (found - torch.from_numpy(np.nan_to_num(batch.targets))) * there
        return errors.square().sum(), errors.abs().sum()

    def _stretched(self, batch: ToyBatch) -> ToyBatch:
        return ToyBatch(batch.inputs, batch.targets * np.float32(self.stretch))


class MemoryHungryTask(ToyTask):
    """A toy task whose loss allocates 32 MiB per row; `sizes` lists the sizes of all micro batches."""

    sizes: list[int]

    def loss(self, batch: ToyBatch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss after allocating the memory of the rows."""
        self.sizes = [*getattr(self, "sizes", []), len(batch)]
        with mmap.mmap(-1, len(batch) * ROW_BYTES) as taken:
            taken[:: mmap.PAGESIZE] = b"\1" * (len(taken) // mmap.PAGESIZE)  # no copy of the whole
            time.sleep(0.02)  # long enough to be sampled
            return super().loss(batch, totals)


class OutOfMemoryTask(ToyTask):
    """A toy task whose device runs out of memory in some of the global batches.

    Args:
        at: numbers of these global batches.
        fits: the largest micro batch that fits.
        error: raised in the backward pass of the share's second micro batch, when half of the gradients exist.
    """

    def __init__(self, world: World = ALONE, *, at: frozenset[int], fits: int, error: Exception, **more: Any) -> None:
        super().__init__(world, **more)
        self.at, self.fits, self.error = at, fits, error
        self.sizes: list[int] = []

    def train_batch(self, cursor: dict[str, int]) -> tuple[ToyBatch, dict[str, int]]:
        """Return the next batch and clear `sizes`."""
        self.sizes.clear()
        return super().train_batch(cursor)

    def loss(self, batch: ToyBatch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss, or fail if memory is short; `sizes` lists all micro batches that this step tried."""
        loss, sums = super().loss(batch, totals)
        self.sizes.append(len(batch))
        if self.number in self.at and max(self.sizes[-2:]) > self.fits and len(self.sizes) % 2 == 0:
            loss.register_hook(self._fail)
        return loss, sums

    def _fail(self, gradient: torch.Tensor) -> None:
        raise type(self.error)(*self.error.args)  # a raised exception keeps the tensors alive


def make_rows(number: int, rows: int) -> ToyBatch:
    """Return global batch `number`, the same one on every call."""
    draw = np.random.default_rng(number)
    inputs = draw.normal(size=(rows, INPUTS)).astype(np.float32)
    targets = inputs[:, :TARGETS] * 2 - 1 + draw.normal(size=(rows, TARGETS)).astype(np.float32)
    missing = np.arange(TARGETS) > draw.integers(0, TARGETS, size=(rows, 1))
    return ToyBatch(inputs, np.where(missing, np.float32(np.nan), targets))


def make_loop(task: ToyTask, folder: Path, **changes: Any) -> Loop:
    """Return a loop over `task` that reports, validates and saves every 2 steps, with some settings overridden.

    `changes` accepts the fields of `TrainConfig`, `LoopPolicy` and `LoopServices`, and under `checkpoint` those of
    `CheckpointConfig`.
    """
    names = TrainConfig.model_fields.keys()
    settings = {"steps": 6, "global_batch_size": task.rows, "micro_batch_size": 2, "log_every": 2, "seed": 5}
    settings |= {name: value for name, value in changes.items() if name in names}
    config = TrainConfig(**settings)
    optimizer = OptimizerConfig(name=changes.get("optimizer", "lamb"), learning_rate=1.0, weight_decay=0.01)
    checkpoint = {"every": 2, "every_minutes": None, "keep_last": 10, "keep_best": 0, **changes.get("checkpoint", {})}
    saving = CheckpointConfig(**checkpoint)
    policy: dict[str, Any] = {
        "config": config,
        "precision": "fp32",
        "schedule": lambda step, time_used: 0.1 / (1 + step),
        "max_grad_norm": 1.0,
        "validate_every": 2,
        "checkpoint_extra": {"note": "toy"},
        "sharded": False,
        "prefetch": None,
        "agree_ahead": None,
    }
    services: dict[str, Any] = {
        "checkpoints": CheckpointStore.from_config(saving, folder),
        "cadence": Cadence(saving),
        "metrics": MetricsLog(folder / "metrics.jsonl" if task.world.is_main else None),
        "progress": ProgressLine(config.steps, io.StringIO()),
        "stop": StopRequest(),
        "profiler": StepProfiler(ProfileConfig(), task.world, None),
        "budget": TimeBudget(None),
    }
    loop = Loop(
        task,
        build_optimizer(optimizer, task.model.named_parameters()),
        task.world,
        LoopPolicy(**{name: changes.get(name, value) for name, value in policy.items()}),
        LoopServices(**{name: changes.get(name, value) for name, value in services.items()}),
    )
    if loop.policy.precision == "fp16":
        # losses of this task are larger than those of BERT: at 2^20 the first steps overflow
        loop.scaler.scale = 2.0**16
    return loop


def run(loop: Loop) -> None:
    """Run a loop between opening and closing its metrics, as a job does."""
    loop.services.checkpoints.root.parent.mkdir(exist_ok=True)
    loop.services.metrics.open(from_step=loop.state.step)
    try:
        loop.run()
    finally:
        loop.services.metrics.close()


@contextmanager
def busy_writer(store: CheckpointStore) -> Iterator[None]:
    """Keep the writer thread busy, so that saves wait until another thread takes them over."""
    go, begun = threading.Event(), threading.Event()

    def hold() -> Generator[None, None, None]:
        begun.set()
        go.wait()
        yield

    store._writer.submit(Work(hold()).run)
    begun.wait()
    try:
        yield
    finally:
        go.set()


def reports_in(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Return (step, metrics) of metrics.jsonl without the metrics that depend on the clock."""
    found = [(report["step"], report["metrics"]) for _, report in read_reports(folder / "metrics.jsonl")]
    return [(step, {key: metrics[key] for key in metrics if key not in CLOCKED}) for step, metrics in found]


def weights_of(loop: Loop) -> dict[str, torch.Tensor]:
    """Return a copy of the weights."""
    return {name: value.detach().clone() for name, value in loop.task.model.state_dict().items()}


def _delay(loss: torch.Tensor, seconds: float) -> torch.Tensor:
    """Return the loss after a pause, as a slow process would."""
    time.sleep(seconds)
    return loss


def main(folder: Path) -> None:
    """Run one process of a job: uninterrupted, with a time budget, stopped and resumed, and after its peer died.

    Writes weights to uninterrupted-RANK.safetensors and resumed-RANK.safetensors and the end of the budget to
    timed-RANK.json. The step of the stop and the surviving process's explanation of its lost peer are in
    results-RANK.json.
    """
    world = distributed.start("cpu")
    results: dict[str, Any] = {}

    uninterrupted = make_loop(ToyTask(world, rows=7), folder / "uninterrupted")
    run(uninterrupted)
    save_file(weights_of(uninterrupted), folder / f"uninterrupted-{world.rank}.safetensors")

    paced = ToyTask(world, rows=7, trouble=lambda batch, loss: _delay(loss, 0.05 if world.rank else 0.0))
    run(make_loop(paced, folder / "paced"))

    ticks = itertools.count(step=1000.0 if world.is_main else 1e6)  # the clock of the other process is far ahead
    timed = make_loop(
        ToyTask(world, rows=7),
        folder / "timed",
        steps=100,
        budget=TimeBudget(1.0, clock=lambda: next(ticks)),
        schedule=lambda step, time_used: 1 - min(time_used, 1.0),
    )
    run(timed)
    ended = {"step": timed.state.step, "rate": timed.optimizer.param_groups[0]["lr"]}
    (folder / f"timed-{world.rank}.json").write_text(json.dumps(ended))

    stop = StopRequest()
    task = ToyTask(
        world, rows=7, trouble=lambda batch, loss: _request_stop(stop, loss, when=batch == 2 and world.rank == 1)
    )
    stopped = make_loop(task, folder / "stopped", stop=stop)
    try:
        run(stopped)
    except Preempted:
        results["stopped at"] = stopped.state.step

    resumed = make_loop(ToyTask(world, rows=7), folder / "stopped")
    checkpoint = resumed.services.checkpoints.newest()
    assert checkpoint is not None
    results["resumed at"] = checkpoint.step
    resumed.restore(checkpoint)
    run(resumed)
    save_file(weights_of(resumed), folder / f"resumed-{world.rank}.safetensors")

    minutes = itertools.count()  # the clock of rank 1 is always past its time
    saving = CheckpointConfig(every_minutes=4 if world.is_main else 1, keep_best=0)
    cadence = Cadence(saving, clock=lambda: 60.0 * next(minutes) * (1 if world.is_main else 100))
    run(make_loop(ToyTask(world, rows=7), folder / "clocked", cadence=cadence, checkpoint={"asynchronous": False}))

    bereft = make_loop(
        ToyTask(world, rows=7, trouble=lambda batch, loss: _die(loss, when=batch == 2 and world.rank == 1)),
        folder / "bereft",
    )
    try:
        run(bereft)
    except Exception as problem:
        explained = explain_lost_peer(problem, world.rank)
        results["explained"] = explained.as_json()["error"] if explained else repr(problem)
    (folder / f"results-{world.rank}.json").write_text(json.dumps(results))
    os._exit(0)  # the process group cannot shut down cleanly: the other process has died


def _request_stop(stop: StopRequest, loss: torch.Tensor, *, when: bool) -> torch.Tensor:
    stop.requested = stop.requested or when
    return loss


def _die(loss: torch.Tensor, *, when: bool) -> torch.Tensor:
    if when:
        os._exit(17)
    return loss


if __name__ == "__main__":
    main(Path(sys.argv[1]))
