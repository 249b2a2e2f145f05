"""Profiled steps: their output files, their selection, and that profiling does not change training."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_toy import ALONE, ToyTask, make_loop, run, weights_of
from torch.autograd import DeviceType

from train_jobs.config import ProfileConfig
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.reporting.profiler import OPERATIONS, TRACE, Clock, StepProfiler, operations
from train_jobs.engine.runtime.stop import Preempted, StopRequest

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def profiled(folder: Path, config: ProfileConfig, *, messages: list[str] | None = None, **changes: Any) -> Loop:
    """Run and return a loop with a profiler that writes to `folder`/profile."""
    loop = make_loop(ToyTask(dropout=0.3), folder, **changes)
    loop.services = replace(
        loop.services,
        profiler=StepProfiler(
            config, loop.world, folder / "profile", log=[].append if messages is None else messages.append
        ),
    )
    run(loop)
    return loop


def table_in(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "profile" / OPERATIONS).read_text())
    return document


def names_in(folder: Path) -> list[str]:
    """Return the names of the events of the trace in order of time."""
    trace = json.loads(gzip.decompress((folder / "profile" / TRACE).read_bytes()))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    return [event["name"] for event in sorted(events, key=lambda event: event["ts"])]


def test_profile_writes_trace_and_table(tmp_path: Path) -> None:
    messages: list[str] = []
    profiled(tmp_path, ProfileConfig(steps=2), messages=messages)
    assert {path.name for path in (tmp_path / "profile").iterdir()} == {TRACE, OPERATIONS}
    assert messages == [f"profiled steps 4 to 5: {tmp_path / 'profile' / TRACE}"]
    names = names_in(tmp_path)
    stages = ["data", "agreement", *["forward", "backward"] * 3, "reduction", "reduction", "optimizer"]
    ours = [name for name in names if name in {*stages, "validation", "checkpoint"} or name.startswith("step ")]
    assert ours == ["step 4", *stages, "step 5", *stages]
    assert names.count("aten::addmm") == 14  # including the validation between the steps
    table = table_in(tmp_path)
    assert (table["trace"], table["device"], table["steps"]) == (TRACE, "cpu", [4, 5])
    assert [stage["name"] for stage in table["stages"]] == [*dict.fromkeys(stages), "other"]
    assert sum(stage["ms"] for stage in table["stages"]) == pytest.approx(table["step_ms"])
    assert sum(stage["share"] for stage in table["stages"]) == pytest.approx(1)
    assert all(stage["ms"] > 0 for stage in table["stages"])
    found = {row["name"]: row for row in table["operations"]}
    assert not found.keys() & {*stages, "step 4"}
    assert found["aten::addmm"]["calls"] == 2 * 3 * 2  # steps, micro batches, layers; without the validation
    assert found["aten::addmm"]["self_cpu_ms"] > 0


def test_profiled_run_is_bit_exact(tmp_path: Path) -> None:
    alone = make_loop(ToyTask(dropout=0.3), tmp_path / "alone")
    run(alone)
    watched = profiled(tmp_path / "watched", ProfileConfig(steps=3, start=2))
    torch.testing.assert_close(weights_of(watched), weights_of(alone), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        (ProfileConfig(steps=1), [4, 4]),
        (ProfileConfig(steps=2, start=1), [1, 2]),
        (ProfileConfig(steps=1, start=6), [6, 6]),
        (ProfileConfig(steps=5, start=4), [4, 6]),  # all that remain
    ],
)
def test_profiled_steps_follow_config(tmp_path: Path, config: ProfileConfig, steps: list[int]) -> None:
    profiled(tmp_path, config)
    assert table_in(tmp_path)["steps"] == steps


def resumed(folder: Path, config: ProfileConfig) -> None:
    """Resume from step 4 and train to step 10."""
    run(make_loop(ToyTask(), folder, steps=4))
    loop = make_loop(ToyTask(), folder, steps=10)
    checkpoint = loop.services.checkpoints.newest()
    assert checkpoint is not None
    loop.restore(checkpoint)
    loop.services = replace(loop.services, profiler=StepProfiler(config, loop.world, folder / "profile"))
    run(loop)


def test_resumed_run_profiles_after_new_warm_up(tmp_path: Path) -> None:
    resumed(tmp_path, ProfileConfig(steps=2))
    assert table_in(tmp_path)["steps"] == [8, 9]


def test_resumed_run_does_not_profile_earlier_steps(tmp_path: Path) -> None:
    resumed(tmp_path / "part", ProfileConfig(steps=4, start=3))
    assert table_in(tmp_path / "part")["steps"] == [5, 6]
    resumed(tmp_path / "none", ProfileConfig(steps=2, start=3))
    assert not (tmp_path / "none" / "profile").exists()


@pytest.mark.parametrize(("steps", "folder"), [(0, "profile"), (2, None)])
def test_disabled_profiler_writes_nothing(tmp_path: Path, steps: int, folder: str | None) -> None:
    loop = make_loop(ToyTask(), tmp_path)
    loop.services = replace(
        loop.services,
        profiler=StepProfiler(ProfileConfig(steps=steps), loop.world, tmp_path / folder if folder else None),
    )
    run(loop)
    assert not (tmp_path / "profile").exists()


def test_unwritable_trace_does_not_stop_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "profile").write_text("in the way")
    messages: list[str] = []
    loop = profiled(tmp_path, ProfileConfig(steps=2), messages=messages)
    assert loop.state.step == 6
    assert messages == []
    assert capsys.readouterr().err.startswith("warning: cannot write the profile: ")


def test_failed_step_stops_profiler(tmp_path: Path) -> None:
    stop = StopRequest()

    def trouble(batch: int, loss: torch.Tensor) -> torch.Tensor:
        stop.requested = batch == 3
        return loss

    loop = make_loop(ToyTask(trouble=trouble), tmp_path / "stopped", stop=stop)
    loop.services = replace(
        loop.services, profiler=StepProfiler(ProfileConfig(steps=3, start=4), loop.world, tmp_path / "profile")
    )
    with pytest.raises(Preempted):
        run(loop)
    assert loop.world.activity.observer is None
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]


def event(name: str, cpu: float, device: float, *, on: Any = DeviceType.CPU, ours: bool = False) -> SimpleNamespace:
    """Return a profiler event as torch reports it, with times in microseconds."""
    return SimpleNamespace(
        name=name,
        self_cpu_time_total=cpu,
        self_device_time_total=device,
        device_type=on,
        is_user_annotation=ours,
    )


EVENTS = [
    event("small", 1000.0, 5000.0),
    event("large", 2000.0, 1000.0),
    event("small", 0.0, 4000.0),
    event("large", 1000.0, 0.0),
    event("forward", 50_000.0, 0.0, ours=True),
    event("kernel", 0.0, 10_000.0, on=DeviceType.CUDA),
]


def test_operations_are_sorted_by_device_time() -> None:
    on_cpu, on_gpu = operations(EVENTS, CPU), operations(EVENTS, CUDA)
    assert [(row["name"], row["share"]) for row in on_cpu] == [("large", 0.75), ("small", 0.25)]
    assert [(row["name"], row["share"]) for row in on_gpu] == [("small", 0.9), ("large", 0.1)]
    assert on_cpu[0] == {"name": "large", "calls": 2, "self_cpu_ms": 3.0, "self_device_ms": 1.0, "share": 0.75}


def test_operations_keep_top_rows_with_share() -> None:
    rows = operations([event(str(number), float(number), 0.0) for number in range(1, 41)], CPU)
    assert [row["name"] for row in rows] == [str(number) for number in range(40, 10, -1)]
    assert rows[0]["share"] == pytest.approx(40 / (40 * 41 / 2))
    assert operations([], CPU) == []
    assert operations([event("free", 0.0, 0.0)], CPU)[0]["share"] == 0


def test_profile_times_are_means_over_steps() -> None:
    clock = Clock()
    for number, seconds in ((7, 0.5), (8, 1.5)):
        clock.stage("forward", seconds / 4)
        clock.stage("forward", seconds / 4)
        clock.step(number, seconds)
    assert clock.as_dict() == {
        "steps": [7, 8],
        "step_ms": 1000.0,
        "stages": [{"name": "forward", "ms": 500.0, "share": 0.5}, {"name": "other", "ms": 500.0, "share": 0.5}],
    }


def test_observer_is_set_only_during_profiled_steps(tmp_path: Path) -> None:
    seen: list[bool] = []
    task = ToyTask(trouble=lambda batch, loss: seen.append(task.world.activity.observer is not None) or loss)
    loop = make_loop(task, tmp_path, micro_batch_size=6)
    loop.services = replace(
        loop.services,
        profiler=StepProfiler(ProfileConfig(steps=2, start=2), ALONE, tmp_path / "profile", log=lambda text: None),
    )
    run(loop)
    assert seen == [False, True, True, False, False, False]
