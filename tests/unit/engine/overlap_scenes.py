"""Training scenes of `train.overlap_all_reduce` with two and four processes; see `engine_scenes`."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import torch
from engine_scenes import Stage, four_rank_config, pretrain
from engine_toy import OutOfMemoryTask, ToyTask, make_loop, run, weights_of
from safetensors.torch import save_file

from train_jobs.config import PretrainConfig
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.runtime.distributed import World

BUCKET_BYTES = 4096  # several buckets for the small model


def overlapping(config: PretrainConfig) -> PretrainConfig:
    """Return a config with `train.overlap_all_reduce`."""
    return config.model_copy(update={"train": config.train.model_copy(update={"overlap_all_reduce": True})})


def watch(loop: Loop, notes: Path) -> None:
    """Use small buckets, and record how many there are and how many each step starts during its backward pass."""
    assert loop.gradients.overlap is not None, "the loop has read the setting"
    loop.gradients.overlap_reduction(loop.world, bucket_bytes=BUCKET_BYTES)
    reduction, started = loop.gradients.overlap, []
    finish = reduction.finish

    def record() -> None:
        started.append(len(reduction._waits))
        notes.write_text(json.dumps({"buckets": len(reduction.buckets), "started": started}))
        finish()

    reduction.finish = record  # type: ignore[method-assign]


def run_out_of_memory(world: World, folder: Path, *, overlap: bool) -> None:
    """Run out of memory on rank 1 in step 3 with micro batches of 3, in the backward pass of the last one."""
    error = torch.OutOfMemoryError("CUDA out of memory")
    task = OutOfMemoryTask(
        world, rows=9, dropout=0.3, at=frozenset({2} if world.rank == 1 else {}), fits=2, error=error
    )
    loop = make_loop(task, folder / f"cramped-{overlap}", micro_batch_size=3, overlap_all_reduce=overlap)
    if overlap:
        loop.gradients.overlap_reduction(world, bucket_bytes=64)
    run(loop)
    save_file(weights_of(loop), folder / f"cramped-{overlap}-{world.rank}.safetensors")


def train_sharded(world: World, folder: Path, *, overlap: bool) -> None:
    """Train with sharded moments: the optimizer stores new weights in the buffer of the gradients."""
    loop = make_loop(ToyTask(world, rows=7), folder / f"sharded-{overlap}", sharded=True, overlap_all_reduce=overlap)
    run(loop)
    save_file(weights_of(loop), folder / f"sharded-{overlap}-{world.rank}.safetensors")


def main(folder: Path, ports: list[str]) -> None:
    """Run all scenes."""
    stage = Stage(iter(ports))
    plain = four_rank_config(folder)
    with stage.of(2) as world:
        if world:
            pretrain(world, folder / "plain-2", plain)
            pretrain(
                world,
                folder / "overlap-2",
                overlapping(plain),
                prepare=partial(watch, notes=folder / f"buckets-{world.rank}.json"),
            )
            for overlap in (True, False):
                run_out_of_memory(world, folder, overlap=overlap)
                train_sharded(world, folder, overlap=overlap)
    for name, config, stop_at in (
        ("plain-4", plain, 100),
        ("overlap-4", overlapping(plain), 100),
        *(("parts-4", overlapping(plain), 3), ("parts-4", overlapping(plain), 100)),
    ):
        with stage.of(4) as world:
            if world:
                more = {} if name == "plain-4" else {"prepare": partial(watch, notes=folder / "buckets-4.json")}
                pretrain(world, folder / name, config, stop_at=stop_at, **more)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","))
