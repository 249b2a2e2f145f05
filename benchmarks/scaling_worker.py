"""One process of a layout in benchmarks.scaling: for each `{"steps": N}` on stdin it makes N optimizer steps and
prints on stdout what each took, by stage and by collective; it ends with stdin. Its rank and world are torchrun's
variables."""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from train_jobs.assembly.parts import load_parts
from train_jobs.config import PretrainConfig, ProfileConfig
from train_jobs.engine.checkpoint.checkpoints import Cadence, CheckpointStore
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.loop.policy import LoopPolicy, LoopServices
from train_jobs.engine.reporting.metrics import MetricsLog, ProgressLine
from train_jobs.engine.reporting.profiler import StepProfiler
from train_jobs.engine.runtime import distributed
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.pretrain import find_store
from train_jobs.tasks.pretraining import BertPretraining


class Ledger:
    """Times of a step. Keys: STAGE, and `STAGE wait`, `STAGE exchange` for the collectives in it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.collectives: Counter[str] = Counter()

    @contextmanager
    def timed(self, key: str) -> Iterator[None]:
        """Add the duration of the body to `key`."""
        started = time.perf_counter()
        yield
        self.seconds[key] += time.perf_counter() - started


@dataclass(frozen=True)
class CountedWorld(World):
    """World that waits for all processes before a collective, so that its duration is that of the exchange."""

    ledger: Ledger = field(default_factory=Ledger, compare=False, repr=False)

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count and time the collective of `World`."""
        with self._counted(tensor.nbytes, 1):
            return super().sum_(tensor)

    def broadcast_each_(self, parts: Sequence[torch.Tensor]) -> None:
        """Count and time the collective of `World`."""
        with self._counted(sum(part.nbytes for part in parts), len(parts)):
            super().broadcast_each_(parts)

    @contextmanager
    def _counted(self, size: int, collectives: int) -> Iterator[None]:
        stage = self.activity.stage.name
        self.ledger.bytes[stage] += size
        self.ledger.collectives[stage] += collectives
        # Without the barrier, the time until the slowest process arrives would count as communication.
        with self.ledger.timed(f"{stage} wait"):
            self.barrier()
        with self.ledger.timed(f"{stage} exchange"):
            yield


def make_loop(config: PretrainConfig, world: World, cache: Path, folder: Path) -> Loop:
    """Return the loop of train_jobs.pretrain, without reports, validation and checkpoints."""
    parts = load_parts(config)
    task = BertPretraining(config, find_store(config, cache), world, parts)
    return Loop(
        task,
        parts.optimizer(task.model.named_parameters()),
        world,
        LoopPolicy(
            config=config.train,
            precision="bf16",
            sharded=config.optimizer.sharded,
            schedule=parts.schedule,
            max_grad_norm=config.optimizer.max_grad_norm,
            validate_every=config.validation.every,
        ),
        LoopServices(
            cadence=Cadence(config.checkpoint),
            checkpoints=CheckpointStore(folder, keep_last=1),
            metrics=MetricsLog(None),
            progress=ProgressLine(1, io.StringIO()),
            stop=StopRequest(),
            profiler=StepProfiler(ProfileConfig(), world, None),
        ),
    )


def timed_step(loop: Loop, ledger: Ledger) -> dict[str, dict[str, float]]:
    """Make one optimizer step and return the ledger's report."""
    for counter in (ledger.seconds, ledger.bytes, ledger.collectives):
        counter.clear()
    with ledger.timed("step"):
        assert loop._step()
    return {"seconds": dict(ledger.seconds), "bytes": dict(ledger.bytes), "collectives": dict(ledger.collectives)}


def main() -> None:
    """Run as the process that the environment names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON of a PretrainConfig")
    parser.add_argument("--cache", type=Path, required=True, help="holds the token store")
    arguments = parser.parse_args()
    config = PretrainConfig.model_validate_json(arguments.config.read_text(encoding="utf-8"))
    world = CountedWorld(**vars(distributed.start("cpu")))
    world.activity.observer = world.ledger.timed
    with tempfile.TemporaryDirectory() as place:
        loop = make_loop(config, world, arguments.cache, Path(place))
        print(json.dumps(len(loop.gradients.flat)), flush=True)
        for line in sys.stdin:
            steps = [timed_step(loop, world.ledger) for _ in range(json.loads(line)["steps"])]
            print(json.dumps(steps), flush=True)
    distributed.stop()


if __name__ == "__main__":
    main()
