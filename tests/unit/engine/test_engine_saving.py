"""Saving during the loop: its schedule, its waits, and that it does not change training."""

from __future__ import annotations

import io
import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_disk import Disk
from engine_toy import ToyTask, busy_writer, make_loop, reports_in, run, weights_of

from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.config import CheckpointConfig, StorageError
from train_jobs.engine.checkpoint.checkpoints import Cadence, CheckpointStore
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.loop.state import Meter
from train_jobs.engine.reporting.metrics import ProgressLine
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import Preempted, StopRequest

CPU = torch.device("cpu")


def committed_in(folder: Path) -> list[int]:
    """Return the steps of valid checkpoints, read by an independent store that does not wait for writes."""
    store = CheckpointStore(folder / "checkpoints", keep_last=1)
    steps = [int(path.name[5:]) for path in store.root.iterdir()] if store.root.is_dir() else []
    return sorted(step for step in steps if store.at(step))


def at_batch(number: int, action: Callable[[], object]) -> Callable[[int, torch.Tensor], torch.Tensor]:
    """Return a `trouble` that calls `action` during global batch `number`, counted from 0, after step `number`."""

    def trouble(batch: int, loss: torch.Tensor) -> torch.Tensor:
        if batch == number:
            action()
        return loss

    return trouble


def fail() -> None:
    raise ConnectionError("the machine is gone")


class Graded(ToyTask):
    """A task whose validations return the given losses."""

    losses: tuple[float, ...] = ()

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        self.validations += 1
        return {"loss": self.losses[self.validations - 1]}


def graded_task(*losses: float) -> Graded:
    task = Graded()
    task.losses = losses
    return task


@pytest.mark.parametrize(
    ("keep_best", "kept"),
    [(0, [5, 8]), (1, [4, 5, 8]), (2, [1, 4, 5, 8])],
)
def test_best_checkpoints_saved_at_their_step_and_kept(tmp_path: Path, keep_best: int, kept: list[int]) -> None:
    """Checkpoints are saved at multiples of 5, at the last step, and when a validation is among the best."""
    task = graded_task(5.0, 6.0, 7.0, 4.0, 6.0, float("nan"), 6.5, 6.0)
    checkpoint = {"every": 5, "keep_last": 2, "keep_best": keep_best}
    run(make_loop(task, tmp_path, steps=8, validate_every=1, checkpoint=checkpoint))
    assert committed_in(tmp_path) == kept


def test_checkpoint_records_loss_of_its_own_weights(tmp_path: Path) -> None:
    run(make_loop(graded_task(5.0, float("nan"), 7.0), tmp_path, steps=6, validate_every=2, checkpoint={"every": 1}))
    commits = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("checkpoints/*/COMMIT.json"))]
    found = [(commit["step"], commit["validation_loss"]) for commit in commits]
    assert found == [(1, None), (2, 5.0), (3, None), (4, None), (5, None), (6, 7.0)]


def test_resumed_run_restores_best_losses(tmp_path: Path) -> None:
    """Otherwise the mediocre loss after the resume would count as a new best."""
    first = make_loop(graded_task(5.0, 3.0), tmp_path, steps=4, checkpoint={"every": 100, "keep_best": 1})
    run(first)
    task = graded_task(4.0, 4.5)
    resumed = make_loop(task, tmp_path, steps=8, checkpoint={"every": 100, "keep_last": 1, "keep_best": 1})
    checkpoint = resumed.services.checkpoints.newest()
    assert checkpoint is not None
    resumed.restore(checkpoint)
    run(resumed)
    assert resumed.state.best == [3.0]
    assert committed_in(tmp_path) == [4, 8]


def test_keep_every_steps_are_saved_and_kept(tmp_path: Path) -> None:
    run(make_loop(ToyTask(), tmp_path, steps=8, checkpoint={"every": 5, "keep_last": 1, "keep_every": 3}))
    assert committed_in(tmp_path) == [3, 6, 8]


def clocked_loop(folder: Path, *, minutes: float, steps: int, **options: Any) -> Loop:
    """Return a loop whose clock advances by a minute in every step."""
    now = [0.0]

    def tick(batch: int, loss: torch.Tensor) -> torch.Tensor:
        now[0] += 60
        return loss

    config = CheckpointConfig(every=None, every_minutes=minutes, keep_every=options.pop("keep_every", None))
    cadence = Cadence(config, clock=lambda: now[0])
    now[0] += 1e6  # the time until training begins does not count
    settings = {"steps": steps, "cadence": cadence, "micro_batch_size": 6, "validate_every": 100, **options}
    return make_loop(ToyTask(trouble=tick), folder, **settings)


def test_clock_triggers_checkpoints(tmp_path: Path) -> None:
    run(clocked_loop(tmp_path / "clock", minutes=2.5, steps=8, checkpoint={"asynchronous": False}))
    assert committed_in(tmp_path / "clock") == [3, 6, 8]
    run(clocked_loop(tmp_path / "both", minutes=2.5, steps=9, keep_every=4, checkpoint={"asynchronous": False}))
    assert committed_in(tmp_path / "both") == [3, 4, 7, 8, 9], "every checkpoint sets the clock back"


def test_clock_triggers_no_checkpoint_during_write(tmp_path: Path) -> None:
    loop = clocked_loop(tmp_path, minutes=0.5, steps=6)
    ticks = loop.task.trouble  # type: ignore[attr-defined]
    written = at_batch(4, lambda: loop.services.checkpoints.newest())
    loop.task.trouble = lambda batch, loss: written(batch, ticks(batch, loss))  # type: ignore[attr-defined]
    with busy_writer(loop.services.checkpoints):
        run(loop)
    assert committed_in(tmp_path) == [1, 5, 6]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_any_cadence_resumed_run_is_bit_exact(tmp_path: Path, seed: int, asynchronous: bool) -> None:
    """Saved by the clock as often as possible and killed at random: weights, moments and reports are bit-exact."""
    saving = {"every": None, "every_minutes": 1e-6, "keep_best": 1, "asynchronous": asynchronous}
    how: dict[str, Any] = {"steps": 20, "log_every": 7, "validate_every": 10}
    uninterrupted = make_loop(ToyTask(dropout=0.3), tmp_path / "uninterrupted", **how, checkpoint={"every": 100})
    run(uninterrupted)
    trouble = at_batch(random.Random(seed).randrange(2, 20), fail)
    with pytest.raises(ConnectionError):
        run(make_loop(ToyTask(dropout=0.3, trouble=trouble), tmp_path / "died", **how, checkpoint=saving))
    resumed = make_loop(ToyTask(dropout=0.3), tmp_path / "died", **how, checkpoint=saving)
    checkpoint = resumed.services.checkpoints.newest()
    assert checkpoint is not None
    resumed.restore(checkpoint)
    run(resumed)
    torch.testing.assert_close(weights_of(resumed), weights_of(uninterrupted), rtol=0, atol=0)
    torch.testing.assert_close(
        resumed.optimizer.state_dict()["state"], uninterrupted.optimizer.state_dict()["state"], rtol=0, atol=0
    )
    assert reports_in(tmp_path / "died") == reports_in(tmp_path / "uninterrupted")


def test_time_before_checkpoint_counts_in_next_report(tmp_path: Path) -> None:
    """Otherwise the first rate of a resumed run would cover only a few steps, or none."""
    stop = StopRequest()
    task = ToyTask(trouble=at_batch(2, lambda: setattr(stop, "requested", True)))
    with pytest.raises(Preempted):
        run(make_loop(task, tmp_path, stop=stop, log_every=4))
    stored = json.loads((tmp_path / "checkpoints" / "step-00000003" / "state.json").read_text())["meter"]
    assert stored["steps"] == 3
    assert stored["seconds"] > 0
    meter = Meter.restore(stored, World(rank=0, local_rank=0, size=1, device=CPU))
    assert (meter.steps, meter.seconds) == (3, stored["seconds"])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_pending_sums_are_redistributed_over_world_size(size: int) -> None:
    rows = [[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]]
    worlds = [World(rank=rank, local_rank=rank, size=size, device=CPU) for rank in range(size)]
    stored = {"steps": 6, "seconds": 2.5, "data_seconds": 0.5, "tokens": 9.0, "norms": 3.0, "sums": rows}
    meters = [Meter.restore(stored, world) for world in worlds]
    assert {(meter.steps, meter.seconds) for meter in meters} == {(6, 2.5)}
    assert sum(meter.sums for meter in meters if meter.sums is not None).tolist() == [7.0, 70.0]
    if size == 3:
        assert [meter.sums.tolist() for meter in meters] == rows


def test_meter_accumulates_in_fp64() -> None:
    meter = Meter()
    for value in (2.0**24, 1.0):  # fp32 cannot hold their sum
        meter.add(torch.tensor([value]), 0.0, data_seconds=0.0, sequences=1, tokens=0.0, norm=0.0)
    assert meter.sums is not None
    assert meter.sums.tolist() == [2.0**24 + 1]


def test_empty_meter_stays_empty_after_resume() -> None:
    world = World(rank=0, local_rank=0, size=1, device=CPU)
    empty = Meter()
    empty.add(None, 1.5, data_seconds=0.5, sequences=2, tokens=7.0, norm=math.nan)  # a skipped step
    assert Meter.restore(json.loads(json.dumps(empty.gather(world))), world) == Meter(None, 0, 1.5, 0.5)


def run_on_a_busy_machine(loop: Loop) -> None:
    """Run a loop while the writer thread gets no time."""
    with busy_writer(loop.services.checkpoints):
        run(loop)


def test_run_ends_after_last_checkpoint_is_committed(tmp_path: Path) -> None:
    run_on_a_busy_machine(make_loop(ToyTask(), tmp_path, steps=2))
    assert committed_in(tmp_path) == [2]


@pytest.mark.parametrize("batch", [2, 3])
def test_stop_takes_effect_after_checkpoint_is_committed(tmp_path: Path, batch: int) -> None:
    """The checkpoint of step 4 already exists but is still being written."""
    stop = StopRequest()
    task = ToyTask(trouble=at_batch(batch, lambda: setattr(stop, "requested", True)))
    loop = make_loop(task, tmp_path, stop=stop, checkpoint={"every": 4})
    with pytest.raises(Preempted):
        run_on_a_busy_machine(loop)
    assert committed_in(tmp_path) == [batch + 1]


def test_failed_run_finishes_pending_checkpoint(tmp_path: Path) -> None:
    loop = make_loop(ToyTask(trouble=at_batch(3, fail)), tmp_path)
    with pytest.raises(ConnectionError):
        run_on_a_busy_machine(loop)
    assert committed_in(tmp_path) == [2]


def test_metrics_are_flushed_before_checkpoint_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that dies must not leave a checkpoint without the reports before it."""
    loop = make_loop(ToyTask(), tmp_path, steps=4, checkpoint={"asynchronous": False})
    found = []
    real = loop.services.metrics.sync
    monkeypatch.setattr(loop.services.metrics, "sync", lambda: (found.append(committed_in(tmp_path)), real()))
    run(loop)
    assert found[:2] == [[], [2]]


def test_full_disk_is_reported_at_later_step_and_ends_run(disk: Disk) -> None:
    reached: list[int] = []

    def trouble(batch: int, loss: torch.Tensor) -> torch.Tensor:
        reached.append(batch)
        if batch == 4:  # step 4 is being saved; let it fail
            loop.services.checkpoints.newest()
        return loss

    loop = make_loop(ToyTask(trouble=trouble), disk.folder / "run", steps=100, micro_batch_size=6)
    disk.resize(6 * 4096)  # one checkpoint has four files
    # An idle writer could fail before step 5 begins: the save would then be reported a step earlier.
    with busy_writer(loop.services.checkpoints), pytest.raises(StorageError, match="the checkpoint of step 4"):
        run(loop)
    assert reached == [0, 1, 2, 3, 4]
    assert committed_in(disk.folder / "run") == [2]
    assert [path.name for path in (disk.folder / "run" / "checkpoints").iterdir()] == ["step-00000002"]


def test_run_error_not_hidden_by_failed_checkpoint(disk: Disk) -> None:
    shown = io.StringIO()
    loop = make_loop(ToyTask(), disk.folder / "run", progress=ProgressLine(6, shown))

    def end() -> None:
        disk.resize(2 * 4096)
        fail()

    loop.task.trouble = at_batch(3, end)  # type: ignore[attr-defined]
    with busy_writer(loop.services.checkpoints), pytest.raises(ConnectionError):
        run(loop)
    assert "the checkpoint of step 2" in shown.getvalue()
    assert "error[storage]" in shown.getvalue()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_checkpoint_cost_in_log_and_metrics(tmp_path: Path, asynchronous: bool) -> None:
    shown = io.StringIO()
    loop = make_loop(
        ToyTask(trouble=at_batch(2, lambda: loop.services.checkpoints.newest())),
        tmp_path,
        steps=4,
        log_every=1,
        progress=ProgressLine(4, shown),
        checkpoint={"asynchronous": asynchronous},
    )
    run(loop)
    lines = [line for line in shown.getvalue().splitlines() if line.startswith("checkpoint")]
    assert [line.split(",")[0].rpartition(" in ")[0] for line in lines] == [
        "checkpoint at step 2: 0.0 MB",
        "checkpoint at step 4: 0.0 MB",
    ]
    assert all(re.search(r" s, training waited \d+\.\d", line) for line in lines)
    reports = [(report["step"], report["metrics"]) for _, report in read_reports(tmp_path / "metrics.jsonl")]
    ((step, figures),) = [(step, metrics) for step, metrics in reports if "checkpoint_seconds" in metrics]
    assert step in {3, 4}
    assert figures["checkpoint_seconds"] > 0
    assert figures["checkpoint_wait_seconds"] > 0
    assert asynchronous or figures["checkpoint_wait_seconds"] >= figures["checkpoint_seconds"]
