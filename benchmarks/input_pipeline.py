"""Cost of reading and masking text during training: the engine's loop with its loader against one resident batch.

    python -m benchmarks.input_pipeline [ROUNDS STEPS]
    python -m benchmarks.input_pipeline --launches [ROUNDS STEPS]

One loop, steps of both kinds in turn, on the text that is embedded in the project. `alone` is the loader by itself.

`--launches` stands for a step on a GPU, where this thread only launches kernels: it makes 60,000 additions of 768
numbers, on a core of its own. The batches of such steps are resident, or made ahead on the other cores: by a thread of
this process, or by a process. It needs two free cores.

Expected before the first run: a batch of 64 sequences of 128 takes some 6 ms; a step of BERT-base over it some 5 s, one
of the tiny recipe 0.1 s. So 0.1% and 6%. With `--launches`, a step takes 60 ms and a batch of 256 sequences 3 ms, which
a thread adds and a process does not: 1.05 and 1.00.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe, spread
from train_jobs.artifacts.layers import merge, read_preset
from train_jobs.config import PretrainConfig, ProfileConfig
from train_jobs.corpus.preparation import prepare_store
from train_jobs.engine.checkpoint.checkpoints import Cadence, CheckpointStore
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.loop.policy import LoopPolicy, LoopServices
from train_jobs.engine.reporting.metrics import MetricsLog, ProgressLine
from train_jobs.engine.reporting.profiler import StepProfiler
from train_jobs.engine.runtime.devices import resolve_precision
from train_jobs.engine.runtime.distributed import World, start
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.optim.factory import build_optimizer
from train_jobs.tasks.pretraining import BertPretraining

RECIPES = {"tiny": 64, "base": 64}  # sequences of a step
MODES = ("resident", "thread", "process")
LAUNCHES = {"train": {"global_batch_size": 256, "micro_batch_size": 128}, "data": {"sequence_length": 128}}
ADDITIONS = 60_000  # of a step of --launches
START_SECONDS = 120.0  # that a process may need until it is ready


class Pipeline(BertPretraining):
    """Pretraining task that can repeat its last batch."""

    resident = False
    seconds: list[float]
    reader: threading.Thread
    """Thread that read the last batch."""

    def train_batch(self, cursor):  # type: ignore[no-untyped-def]
        """Return the next batch, or the last one again."""
        if not self.resident or not hasattr(self, "last"):
            started = time.perf_counter()
            self.last = super().train_batch(cursor)
            self.seconds.append(time.perf_counter() - started)
            self.reader = threading.current_thread()
        return self.last


def make_loop(
    recipe: str, folder: Path, world: World, changes: dict[str, dict[str, Any]] | None = None
) -> tuple[Loop, Pipeline]:
    """Return the engine's loop over the embedded text, and its task.

    Args:
        recipe: whose model.
        folder: for store and checkpoints.
        world: the processes.
        changes: sections of the configuration that differ from the recipe. None: those of this benchmark.
    """
    changes = changes or {
        "train": {"global_batch_size": RECIPES[recipe], "micro_batch_size": 16},
        "data": {"sequence_length": 128},
    }
    config = PretrainConfig.model_validate(merged(merge(read_preset(recipe)).tree, changes))
    store = prepare_store(config.data, folder / "store", progress=lambda text: None)
    task = Pipeline(config, store, world)
    task.seconds = []
    loop = Loop(
        task,
        build_optimizer(config.optimizer, task.model.named_parameters()),
        world,
        LoopPolicy(
            config=config.train,
            precision=resolve_precision(config.train.precision, world.device),
            schedule=lambda step, time_used: 1e-4,
            max_grad_norm=1.0,
            validate_every=1,
        ),
        LoopServices(
            cadence=Cadence(config.checkpoint),
            checkpoints=CheckpointStore(folder / "checkpoints", keep_last=1),
            metrics=MetricsLog(None),
            progress=ProgressLine(1),
            stop=StopRequest(),
            profiler=StepProfiler(ProfileConfig(), world, None),
        ),
    )
    return loop, task


def merged(tree: dict, changes: dict) -> dict:  # type: ignore[type-arg]
    """Return `tree` with changed sections."""
    return {**tree, **{name: {**tree.get(name, {}), **section} for name, section in changes.items()}}


def timed_steps(loop: Loop, count: int) -> float:
    """Return the seconds of `count` optimizer steps."""
    started = time.perf_counter()
    for _ in range(count):
        assert loop._step()
    return time.perf_counter() - started


@contextmanager
def batches_made(mode: str, loop: Loop, task: Pipeline) -> Iterator[None]:
    """Let a thread or a process make the batches of the body ahead, or let the thread repeat a resident one."""
    task.resident = mode == "resident"
    loop.policy = replace(loop.policy, prefetch=True, batch_process=mode == "process")
    with loop.prefetching():
        if mode == "process":
            assert loop._batch_process is not None
            assert loop._batch_process.is_ready(START_SECONDS)
        yield


def measure_launches(rounds: int, steps: int) -> None:
    """Print a table of steps that launch operations."""
    torch.set_num_threads(1)
    world, taken = start("auto"), {mode: list[float]() for mode in MODES}
    numbers, cursor = torch.zeros(768), dict[str, int]()
    first, *rest = sorted(os.sched_getaffinity(0))
    own, others = {first}, set(rest)
    with tempfile.TemporaryDirectory() as place:
        loop, task = make_loop("tiny", Path(place), world, LAUNCHES)
        for _ in range(rounds):
            for mode, seconds in taken.items():
                os.sched_setaffinity(0, others)  # threads and processes that start now inherit it
                with batches_made(mode, loop, task):
                    os.sched_setaffinity(0, own)
                    _, cursor = loop._next_share(cursor)  # before the clock starts: nothing is made ahead yet
                    started = time.perf_counter()
                    for _ in range(steps):
                        _, cursor = loop._next_share(cursor)
                        for _ in range(ADDITIONS):
                            torch.add(numbers, numbers)
                    seconds.append((time.perf_counter() - started) / steps)
    print("| batches | step, s | step / with resident batches |")
    print("|---|---|---|")
    for mode, seconds in taken.items():
        ratios = [one / resident for one, resident in zip(seconds, taken["resident"], strict=True)]
        print(f"| {mode} | {spread(seconds, digits=4)} | {spread(ratios, digits=3)} |")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", nargs="?", type=int, default=7)
    parser.add_argument("steps", nargs="?", type=int, default=2)
    parser.add_argument("--launches", action="store_true")
    chosen = parser.parse_args()
    rounds, steps = chosen.rounds, chosen.steps
    print(f"{describe('torch', 'numpy')}\n")
    if chosen.launches:
        measure_launches(rounds, 10 * steps)
        return
    world = start("auto")
    print(f"on {world.device}\n")
    print("| recipe | step, resident batch, s | step, loader, s | loader / resident | loader alone, sequences/s |")
    print("|---|---|---|---|---|")
    for recipe, batch in RECIPES.items():
        count = steps if recipe == "base" else 20 * steps
        with tempfile.TemporaryDirectory() as place:
            loop, task = make_loop(recipe, Path(place), world)
            # Warm-up: the first steps allocate memory and create oneDNN primitives for each shape.
            timed_steps(loop, 2)
            taken: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(rounds):
                for resident, seconds in taken.items():
                    task.resident = resident
                    seconds.append(timed_steps(loop, count) / count)
            ratios = [loader / resident for resident, loader in zip(taken[True], taken[False], strict=True)]
            alone = batch / statistics.median(task.seconds)
            cells = (spread(taken[True], digits=3), spread(taken[False], digits=3), spread(ratios, digits=3))
            print(f"| {recipe} | " + " | ".join(cells) + f" | {alone:,.0f} |")


if __name__ == "__main__":
    main()
