"""Training scenes with one to four processes; the same four processes run them one after another.

Run as a script, the module is one of the processes; `play` starts all four and waits. Each scene writes its results to
its own folder.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import torch
from engine_bert import config_with
from engine_toy import ROW_BYTES, MemoryHungryTask, OutOfMemoryTask, ToyTask, make_loop, run, weights_of
from safetensors.torch import save_file

from tests.conftest import write_corpus
from train_jobs.assembly.starting_point import check_batch, resume, trajectory
from train_jobs.config import OutOfMemoryError, PretrainConfig, ProfileConfig
from train_jobs.corpus.examples.batches import Batch
from train_jobs.engine.checkpoint.checkpoints import Cadence, CheckpointStore
from train_jobs.engine.checkpoint.serialization import flatten
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.loop.policy import LoopPolicy, LoopServices
from train_jobs.engine.loop.probe import largest_micro_batch
from train_jobs.engine.loop.sharding import ShardedOptimizer
from train_jobs.engine.reporting.metrics import MetricsLog, ProgressLine
from train_jobs.engine.reporting.profiler import StepProfiler
from train_jobs.engine.runtime import distributed
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import Preempted, StopRequest
from train_jobs.optim.factory import build_optimizer
from train_jobs.pretrain import find_store
from train_jobs.tasks.pretraining import BertPretraining

REPOSITORY = Path(__file__).parents[3]
PROCESSES = 4
PATIENCE = 180  # seconds
JOININGS = 24  # reserved ports, one for each process group
OPTIMIZERS = ("lamb", "adamw")


def play(folder: Path, script: Path = Path(__file__)) -> Path:
    """Run all scenes of a script in `folder` and return it."""
    write_corpus(folder / "corpus.txt")
    command = [sys.executable, str(script), str(folder), ",".join(map(str, free_ports(JOININGS)))]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "PYTHONPATH": str(REPOSITORY)}
    with ExitStack() as stack:
        logs = [stack.enter_context((folder / f"log-{rank}").open("wb")) for rank in range(PROCESSES)]
        processes = [
            subprocess.Popen(command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=log)
            for rank, log in enumerate(logs)
        ]
        limit = time.monotonic() + PATIENCE
        while any(process.poll() is None for process in processes) and time.monotonic() < limit:
            if any(process.returncode for process in processes):
                break  # the other ranks would wait for the failed one
            time.sleep(0.05)
        for process in processes:
            process.kill()
            process.wait()
    logs_text = "\n".join((folder / f"log-{rank}").read_text() for rank in range(PROCESSES))
    assert [process.returncode for process in processes] == [0] * PROCESSES, logs_text
    return folder


def free_ports(count: int) -> list[int]:
    """Return ports that are free, below those that Linux gives to connections, which would take one meanwhile."""
    draw, found = random.SystemRandom(), set[int]()
    while len(found) < count:
        port = draw.randrange(20_000, 32_000)
        with closing(socket.socket()) as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            found.add(port)
    return sorted(found)


class Stage:
    """Process groups of the scenes: the first `size` processes join, the others wait for the next scene."""

    def __init__(self, ports: Iterator[str]) -> None:
        self._ports = ports

    @contextmanager
    def of(self, size: int) -> Iterator[World | None]:
        """Yield the world of a scene, or None on a process outside it."""
        os.environ |= {"WORLD_SIZE": str(size), "MASTER_PORT": next(self._ports)}
        if int(os.environ["RANK"]) >= size:
            yield None
            return
        world = distributed.start("cpu")
        yield world
        world.barrier()
        distributed.stop()


def state_of(loop: Loop) -> dict[str, torch.Tensor]:
    """Return the tensors of the optimizer state as the main process saves them."""
    return flatten(loop.optimizer.state_dict())[0]


def train_sharded_and_unsharded(world: World, folder: Path, name: str) -> None:
    """Train six steps with and without sharding; record the number of state elements that each process keeps."""
    for kind, sharded in (("sharded", True), ("whole", False)):
        loop = make_loop(
            ToyTask(world, rows=7, dropout=0.2), folder / f"{name}-{kind}", optimizer=name, sharded=sharded
        )
        run(loop)
        save_file(weights_of(loop), folder / f"{name}-{kind}-{world.rank}.safetensors")
        if isinstance(loop.optimizer, ShardedOptimizer):
            own = loop.optimizer._optimizer.state
            kept = sum(value["exp_avg"].numel() for value in own.values())
            (folder / f"{name}-kept-{world.rank}.json").write_text(json.dumps(kept))


def resume_and_train(world: World, folder: Path, *, steps: int, sharded: bool) -> None:
    """Resume from the newest checkpoint in `folder`, if any; save the loaded state as loaded-STEP.safetensors."""
    loop = make_loop(ToyTask(world, rows=7), folder, steps=steps, sharded=sharded)
    if checkpoint := loop.services.checkpoints.newest():
        loop.restore(checkpoint)
        found = state_of(loop)
        if world.is_main:
            save_file(found, folder / f"loaded-{checkpoint.step}.safetensors")
    run(loop)


def run_out_of_memory(world: World, folder: Path) -> None:
    """Run out of memory on rank 1 in step 3 with micro batches of 3; a second run uses 2 from that step."""
    error = torch.OutOfMemoryError("CUDA out of memory")
    number = frozenset({2} if world.rank == 1 else {})
    task = OutOfMemoryTask(world, rows=9, dropout=0.3, at=number, fits=2, error=error)
    cramped = make_loop(task, folder / "cramped", micro_batch_size=3)
    run(cramped)
    save_file(weights_of(cramped), folder / f"cramped-{world.rank}.safetensors")
    changed = make_loop(ToyTask(world, rows=9, dropout=0.3), folder / "changed", micro_batch_size=3, steps=2)
    run(changed)
    world.barrier()  # until the main process has written its checkpoint
    changed = make_loop(ToyTask(world, rows=9, dropout=0.3), folder / "changed", micro_batch_size=2)
    checkpoint = changed.services.checkpoints.newest()
    assert checkpoint is not None
    changed.restore(checkpoint)
    changed.state.micro_batch_size = 2
    run(changed)
    save_file(weights_of(changed), folder / f"changed-{world.rank}.safetensors")


def probe_micro_batch(world: World, folder: Path) -> None:
    """Probe the micro batch size where rank 1 has less memory than rank 0, then where it has none."""
    found = {}
    for name, rows in (("some", 12), ("none", 0)):
        room = (rows if world.rank == 1 else 1000) * ROW_BYTES
        try:
            found[name] = largest_micro_batch(
                MemoryHungryTask(world),
                [16, 8, 4, 2, 1],
                world=world,
                precision="fp32",
                later_bytes=0,
                available=partial(int, room),
            )
        except OutOfMemoryError as problem:
            found[name] = str(problem)
    (folder / f"found-{world.rank}.json").write_text(json.dumps(found))


def eight_sequence_config(folder: Path, micro_batch_size: int | str = 2) -> PretrainConfig:
    """Return the small pretraining job with six steps of 8 sequences."""
    return config_with(
        data={"text": [str(folder / "corpus.txt")]},
        train={"steps": 6, "global_batch_size": 8, "micro_batch_size": micro_batch_size, "log_every": 1},
        validation={"every": 3},
    )


class RecordingPretraining(BertPretraining):
    """Pretraining that records the sequences of each step and requests a stop after one of the steps."""

    def follow(self, loop: Loop, stop: StopRequest, stop_at: int, notes: Path) -> None:
        """Start recording."""
        self._loop, self._stop, self._stop_at, self._notes = loop, stop, stop_at, notes

    def train_batch(self, cursor: dict[str, int]) -> tuple[Batch, dict[str, int]]:
        """Record the batch in STEP-RANK.json and return it."""
        batch, following = super().train_batch(cursor)
        step = self._loop.state.step
        self._stop.requested = step == self._stop_at
        if not self._stop.requested:
            (self._notes / f"{step}-{self._loop.world.rank}.json").write_text(json.dumps(batch.input_ids.tolist()))
        return batch, following


def layout_config(folder: Path, micro_batch_size: int) -> PretrainConfig:
    """Return a job of twenty steps without dropout."""
    return config_with(
        data={"text": [str(folder / "corpus.txt")]},
        train={"steps": 20, "global_batch_size": 8, "micro_batch_size": micro_batch_size, "log_every": 1},
        validation={"every": 20},
    )


def four_rank_config(folder: Path) -> PretrainConfig:
    """Return six steps of LAMB with dropout, with two micro batches for each of four processes."""
    return config_with(
        data={"text": [str(folder / "corpus.txt")]},
        model={"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
        train={"steps": 6, "global_batch_size": 16, "micro_batch_size": 2, "log_every": 2},
        validation={"every": 6},
    )


def pretrain(
    world: World,
    folder: Path,
    config: PretrainConfig,
    *,
    stop_at: int = 100,
    dtype: torch.dtype = torch.float32,
    prepare: Callable[[Loop], None] = lambda loop: None,
) -> None:
    """Resume the small pretraining job until it is stopped or finished, as pretrain does.

    `prepare` is called with the loop before it is restored.
    """
    folder.mkdir(exist_ok=True)
    check_batch(config, folder, world_size=world.size, on_cpu=True)
    store = find_store(config, folder.parent / "cache")
    task, stop = RecordingPretraining(config, store, world), StopRequest()
    task.model.to(dtype)
    loop = Loop(
        task,
        build_optimizer(config.optimizer, task.model.named_parameters()),
        world,
        LoopPolicy(
            config=config.train,
            precision="fp32",
            schedule=lambda step, time_used: 1e-3 * min(step + 1, 4),
            max_grad_norm=1.0,
            validate_every=config.validation.every,
            checkpoint_extra={
                "config": trajectory(config, store.manifest.key),
                "threads": torch.get_num_threads(),
                "device": world.device_name,
            },
        ),
        LoopServices(
            cadence=Cadence(config.checkpoint),
            checkpoints=CheckpointStore(folder / "checkpoints", keep_last=4),
            metrics=MetricsLog(folder / "metrics.jsonl" if world.is_main else None),
            progress=ProgressLine(config.train.steps),
            stop=stop,
            profiler=StepProfiler(ProfileConfig(), world, None),
        ),
    )
    task.follow(loop, stop, stop_at, folder)
    prepare(loop)
    resume(loop, config)
    loop.find_micro_batch(config.micro_batches(world.size, on_cpu=True))
    with suppress(Preempted):
        run(loop)


class MixedWorld(World):
    """Processes that each have another model of GPU."""

    @property
    def device_name(self) -> str:
        """Name of the GPU, another one for each rank."""
        return f"GPU of rank {self.rank}"


def main(folder: Path, ports: list[str]) -> None:
    """Run all scenes."""
    stage = Stage(iter(ports))
    for name in OPTIMIZERS:
        with stage.of(2) as world:
            if world:
                train_sharded_and_unsharded(world, folder, name)
    for size, sharded, steps in ((2, True, 2), (1, False, 4), (3, True, 6)):
        with stage.of(size) as world:
            if world:
                resume_and_train(world, folder / "moved", steps=steps, sharded=sharded)
    with stage.of(2) as world:
        if world:
            run_out_of_memory(world, folder)
            probe_micro_batch(world, folder)
    given, auto = eight_sequence_config(folder), eight_sequence_config(folder, "auto")
    for name, config, size, stop_at in (
        ("still", given, 2, 6),
        *(("fewer", given, 2, 2), ("fewer", given, 3, 4), ("fewer", given, 1, 6)),
        *(("auto", auto, 2, 2), ("auto", auto, 3, 4), ("auto", auto, 1, 6)),
    ):
        with stage.of(size) as world:
            if world:
                pretrain(world, folder / name, config, stop_at=stop_at)
    for stop_at in (2, 6):
        with stage.of(2) as world:
            if world:
                mixed = MixedWorld(world.rank, world.local_rank, world.size, world.device, activity=world.activity)
                pretrain(mixed, folder / "mixed", auto, stop_at=stop_at)
    for dtype, kind in ((torch.float64, "fp64"), (torch.float32, "fp32")):
        with stage.of(1) as world:
            if world:
                pretrain(world, folder / f"{kind}-1x1", layout_config(folder, 8), dtype=dtype)
                pretrain(world, folder / f"{kind}-1x2", layout_config(folder, 4), dtype=dtype)
        with stage.of(2) as world:
            if world:
                pretrain(world, folder / f"{kind}-2x1", layout_config(folder, 4), dtype=dtype)
    for name, stop_at in (("whole-4", 100), ("parts-4", 3), ("parts-4", 100)):
        with stage.of(4) as world:
            if world:
                pretrain(world, folder / name, four_rank_config(folder), stop_at=stop_at)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","))
