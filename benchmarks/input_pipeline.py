"""Cost of reading and masking text during training: the engine's loop with its loader against one resident batch.

    python -m benchmarks.input_pipeline [ROUNDS STEPS]

One loop, steps of both kinds in turn, on the text that is embedded in the project. `alone` is the loader by itself.

Expected before the first run: a batch of 64 sequences of 128 takes some 6 ms; a step of BERT-base over it some 5 s, one
of the tiny recipe 0.1 s. So 0.1% and 6%.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

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


def main() -> None:
    """Print a table."""
    rounds, steps = (int(word) for word in (sys.argv[1:] or ["7", "2"]))
    world = start("auto")
    print(f"{describe('torch', 'numpy')}; {world.device}\n")
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
