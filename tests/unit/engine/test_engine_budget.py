"""Training with a time budget: the clock determines the progress of the schedule and the last step."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toy import ToyTask, make_loop, reports_in, run, weights_of

from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.loop.policy import TimeBudget
from train_jobs.engine.reporting.metrics import ProgressLine
from train_jobs.engine.runtime.stop import Preempted, StopRequest

SECONDS_A_STEP = 1000.0


class Clock:
    """A clock that only advances during the steps of a task."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def tick(self, batch: int, loss: torch.Tensor) -> torch.Tensor:
        """Advance the clock by one step; the `trouble` of a task with one micro batch."""
        self.now += SECONDS_A_STEP
        return loss


def falling(step: int, time_used: float) -> float:
    return max(1 - time_used, 0.0)


def timed_loop(folder: Path, clock: Clock, *, hours: float | None = 1.0, **changes: Any) -> Loop:
    """Return a loop of at most 100 steps that take 1000 seconds each on `clock`."""
    how = {"steps": 100, "log_every": 1, "validate_every": 100, "micro_batch_size": 100, "checkpoint": {"every": 100}}
    budget = TimeBudget(hours, clock=clock)
    return make_loop(ToyTask(trouble=clock.tick), folder, budget=budget, schedule=falling, **{**how, **changes})


def rates_in(folder: Path) -> list[float]:
    return [metrics["learning_rate"] for _, metrics in reports_in(folder) if "learning_rate" in metrics]


def test_budget_first_step_after_its_end_is_last(tmp_path: Path) -> None:
    """3600 seconds end within the fourth step; the fifth has a rate of zero and performs the final tasks."""
    loop = timed_loop(tmp_path, Clock())
    run(loop)
    assert rates_in(tmp_path) == pytest.approx([1, 1 - 1 / 3.6, 1 - 2 / 3.6, 1 - 3 / 3.6, 0.0])
    assert loop.state.step == 5
    assert [step for step, metrics in reports_in(tmp_path) if "validation_loss" in metrics] == [5]
    state = json.loads((tmp_path / "checkpoints" / "step-00000005" / "state.json").read_text())["loop"]
    assert (state["seconds"], state["out_of_time"]) == (5000.0, True)


def test_budget_last_step_off_interval_is_reported(tmp_path: Path) -> None:
    run(timed_loop(tmp_path, Clock(), log_every=3))
    assert [step for step, metrics in reports_in(tmp_path) if "train_loss" in metrics] == [3, 5]


def test_last_step_of_budget_starts_at_its_end(tmp_path: Path) -> None:
    loop = timed_loop(tmp_path, Clock(), hours=3000 / 3600)
    run(loop)
    assert loop.state.step == 4


def test_budget_run_ends_after_max_steps(tmp_path: Path) -> None:
    loop = timed_loop(tmp_path, Clock(), steps=2)
    run(loop)
    assert (loop.state.step, loop.state.out_of_time, loop.state.seconds) == (2, False, 2000.0)


def test_run_without_budget_records_no_time(tmp_path: Path) -> None:
    loop = timed_loop(tmp_path, Clock(), hours=None, steps=6)
    run(loop)
    assert rates_in(tmp_path) == [1.0] * 6
    assert (loop.state.seconds, loop.state.out_of_time) == (0.0, False)


def stopped(folder: Path, *, at: int, began: float = 0.0) -> None:
    """Run the first attempt of a run, which receives SIGTERM during step `at`."""
    stop, clock = StopRequest(), Clock(began)
    loop = timed_loop(folder, clock, stop=stop)

    def trouble(batch: int, loss: torch.Tensor) -> torch.Tensor:
        stop.requested = batch == at - 1
        return clock.tick(batch, loss)

    loop.task.trouble = trouble  # type: ignore[attr-defined]
    with pytest.raises(Preempted):
        run(loop)


def resumed(folder: Path, *, began: float) -> Loop:
    loop = timed_loop(folder, Clock(began))
    checkpoint = loop.services.checkpoints.newest()
    assert checkpoint is not None
    loop.restore(checkpoint)
    run(loop)
    return loop


@pytest.mark.parametrize("began", [0.0, 1e9])
def test_resumed_run_uses_remaining_time(tmp_path: Path, began: float) -> None:
    stopped(tmp_path, at=2)
    loop = resumed(tmp_path, began=began)
    assert loop.state.step == 5
    assert rates_in(tmp_path) == pytest.approx([1, 1 - 1 / 3.6, 1 - 2 / 3.6, 1 - 3 / 3.6, 0.0])


def test_run_stopped_after_budget_still_makes_last_step(tmp_path: Path) -> None:
    stopped(tmp_path, at=4)
    state = json.loads((tmp_path / "checkpoints" / "step-00000004" / "state.json").read_text())["loop"]
    assert (state["seconds"], state["out_of_time"]) == (4000.0, False)
    loop = resumed(tmp_path, began=0.0)
    assert (loop.state.step, rates_in(tmp_path)[-1]) == (5, 0.0)
    assert [step for step, metrics in reports_in(tmp_path) if "validation_loss" in metrics] == [5]


def test_run_resumed_after_its_end_does_nothing(tmp_path: Path) -> None:
    done = timed_loop(tmp_path, Clock())
    run(done)
    before = reports_in(tmp_path)
    again = resumed(tmp_path, began=0.0)
    assert again.state.step == 5
    assert reports_in(tmp_path) == before
    assert again.last_validation == done.last_validation
    torch.testing.assert_close(weights_of(again), weights_of(done), rtol=0, atol=0)


def test_remaining_time_shown_is_capped_by_budget(tmp_path: Path) -> None:
    stream = io.StringIO()
    steps = 10**12
    run(timed_loop(tmp_path, Clock(), steps=steps, log_every=1, progress=ProgressLine(steps, stream)))
    etas = [line.rpartition("eta ")[2] for line in stream.getvalue().splitlines() if "eta" in line]
    assert etas == ["43:20", "26:40", "10:00", "0:00", "0:00"]


def test_remaining_time_never_exceeds_budget() -> None:
    clock = Clock(50.0)
    budget = TimeBudget(1.0, clock=clock)
    budget.start(600.0)
    clock.now = 150.0
    assert budget.spent() == 700.0
    assert budget.share(900.0) == 0.25
    assert [budget.seconds_left(700.0, wanted) for wanted in (100.0, 5000.0)] == [100.0, 2900.0]
    assert budget.seconds_left(4000.0, 100.0) == 0.0
    assert TimeBudget(None, clock=clock).seconds_left(4000.0, 100.0) == 100.0
