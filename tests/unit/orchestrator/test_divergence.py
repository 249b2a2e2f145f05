"""Detection of diverging losses and of slow ranks."""

from __future__ import annotations

import math

import pytest

from orchestrator.backends.folder.run_watch import RISE, WINDOW, LossWatch
from orchestrator.backends.run_progress import PaceWatch


def watch(losses: list[float]) -> list[str | None]:
    """Return the message after each report."""
    loss_watch = LossWatch()
    return [loss_watch.add(10 * (index + 1), loss) for index, loss in enumerate(losses)]


def test_falling_loss_with_a_spike_is_not_reported() -> None:
    losses = [9.0 - 0.1 * index for index in range(30)]
    losses[12] = losses[20] = 15.0
    assert watch(losses) == [None] * 30


def test_slow_rise_below_the_threshold_is_not_reported() -> None:
    assert watch([5.0] * 10 + [5.0 + RISE] * 10) == [None] * 20


def test_rising_loss_reported_with_best_step() -> None:
    messages = watch([8.0, 7.0, 6.0, 6.0, 6.0, 6.0] + [7.0] * WINDOW)
    assert messages[: 6 + WINDOW // 2] == [None] * (6 + WINDOW // 2)  # the median has not changed yet
    assert messages[6 + WINDOW // 2] == "the loss rises: 7.000 around step 90, 6.000 around step 50"


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_non_finite_loss_is_reported_immediately(loss: float) -> None:
    assert watch([loss]) == [f"the loss of step 10 is {loss}"]


def paced(*reports: tuple[float, int, float]) -> str | None:
    """Return the warning after reports of (seconds, slowest rank, ratio)."""
    pace = PaceWatch()
    for moment, rank, ratio in reports:
        pace.add(moment, {"slowest_rank": float(rank), "slowest_rank_ratio": ratio})
    return pace.warning


def test_rank_that_is_slow_for_a_minute_is_named() -> None:
    assert paced((0, 3, 4.0), (30, 3, 4.0), (60, 3, 4.25)) == (
        "rank 3 is slow: its work takes 4.2 times as long as that of the others"
    )


@pytest.mark.parametrize(
    "reports",
    [
        [(0, 3, 4.0), (59, 3, 4.0)],
        [(0, 3, 4.0), (30, 3, 1.1), (61, 3, 4.0)],
        [(0, 3, 4.0), (30, 2, 4.0), (61, 3, 4.0)],
        [(0, 3, 2.9), (100, 3, 2.9)],
    ],
    ids=["too short", "interrupted", "not always the same", "not slow enough"],
)
def test_rank_that_is_slow_for_a_moment_is_not_named(reports: list[tuple[float, int, float]]) -> None:
    assert paced(*reports) is None


def test_reports_of_one_process_name_no_rank() -> None:
    pace = PaceWatch()
    pace.add(0.0, {"train_loss": 1.0})
    assert pace.warning is None
