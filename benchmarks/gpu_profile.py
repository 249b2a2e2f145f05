"""Profile of a pretraining step on a GPU: the host's stages, the kernels, and the time that the device computes.

    python -m benchmarks.gpu_profile [--recipe large] [--length 128] [--micro-batch 128] [--each-layer] [--kernels 40]

The step is that of benchmarks.pretrain_throughput: AdamW, resident batches, bf16, dropout. If the device computes for
less than a step takes, it waits for the host. `--each-layer` compiles one layer for all instead of all layers together.
Raw output: benchmarks/results/gpu-profile-h200-2026-11-27.txt.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.input_pipeline import timed_steps
from benchmarks.machine import describe
from benchmarks.throughput_peers import pretraining_loop
from benchmarks.throughput_setup import prepare
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.runtime import distributed
from train_jobs.tasks import pretraining

WARMUP, STEPS, PROFILED = 5, 20, 3


@contextmanager
def stage_seconds(loop: Loop) -> Iterator[Counter[str]]:
    """Count the host's seconds in each stage of a step."""
    seconds: Counter[str] = Counter()
    doing = loop.world.activity.doing

    @contextmanager
    def timed(stage: str, **more: Any) -> Iterator[None]:
        started = time.perf_counter()
        with doing(stage, **more):
            yield
        seconds[stage] += time.perf_counter() - started

    loop.world.activity.doing = timed  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        loop.world.activity.doing = doing  # type: ignore[method-assign]


def step_seconds(loop: Loop, count: int) -> float:
    """Return the mean seconds of a step."""
    started = time.perf_counter()
    timed_steps(loop, count)
    if loop.world.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / count


def busy_microseconds(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of spans."""
    total, end = 0.0, 0.0
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def report(loop: Loop, kernels: int) -> None:
    """Print the figures of a loop that is warm."""
    with stage_seconds(loop) as seconds:
        mean = step_seconds(loop, STEPS)
    stages = ", ".join(f"{stage} {1000 * took / STEPS:.1f}" for stage, took in seconds.items())
    print(f"step {1000 * mean:.1f} ms; of the host, in ms: {stages}")
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if loop.world.device.type == "cuda" else []
    with profile(activities=activities) as found:
        step_seconds(loop, PROFILED)
    on_device = [one for one in found.events() or [] if one.device_type == torch.autograd.DeviceType.CUDA]
    busy = busy_microseconds([(one.time_range.start, one.time_range.end) for one in on_device])
    print(
        f"kernels and copies a step {len(on_device) / PROFILED:.0f}; device busy {busy / PROFILED / 1000:.1f} ms a step"
    )
    averages = found.key_averages()
    key = "self_device_time_total" if on_device else "self_cpu_time_total"
    print(averages.table(sort_by=key, row_limit=kernels, max_name_column_width=80))


def main() -> None:
    """Print stages, kernels and busy time of one setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="gpu")
    parser.add_argument("--recipe", default="base")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, default=128)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--optimizer", choices=["adamw", "lamb"], default="adamw")
    parser.add_argument("--each-layer", action="store_true")
    parser.add_argument("--kernels", type=int, default=40, help="rows of the table")
    arguments = parser.parse_args()
    vars(arguments).update(dropout=0.1, data=[], vocabulary=None, warmup=WARMUP, backend="inductor")
    if arguments.each_layer:
        pretraining.compile_model = partial(_each_layer, pretraining.compile_model)
    with tempfile.TemporaryDirectory() as place:
        setup = prepare(arguments, Path(place))
        print(f"{describe('torch')}\n{setup.describe()}\n")
        world = distributed.start(arguments.device)
        precision = "bf16" if arguments.device == "gpu" else "fp32"
        loop = pretraining_loop(Path(place), Path(place, "run"), world, precision=precision)
        with loop.prefetching():
            step_seconds(loop, WARMUP)
            report(loop, arguments.kernels)


def _each_layer(compile_model: Any, model: torch.nn.Module, **_: bool) -> None:
    compile_model(model, together=False)


if __name__ == "__main__":
    main()
