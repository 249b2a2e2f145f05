"""Times at which checkpoints are due, and the retention rules."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from train_jobs.artifacts.commit import Commit
from train_jobs.config import CheckpointConfig
from train_jobs.engine.checkpoint.checkpoints import Cadence, Retention

FOUND = [Commit(10, 5.0), Commit(15, None), Commit(20, 3.0), Commit(30, 4.0), Commit(40, 3.0)]


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention(1), {40}),
        (Retention(3), {20, 30, 40}),
        (Retention(99), {10, 15, 20, 30, 40}),
        (Retention(1, best=1), {20, 40}),
        (Retention(1, best=2), {20, 40}),
        (Retention(1, best=3), {20, 30, 40}),
        (Retention(1, best=99), {10, 20, 30, 40}),
        (Retention(1, every=10), {10, 20, 30, 40}),
        (Retention(1, every=15), {15, 30, 40}),
        (Retention(2, best=1, every=10), {10, 20, 30, 40}),
        (Retention(2, best=1, every=15), {15, 20, 30, 40}),
    ],
)
def test_retention_keeps_union_of_rules(retention: Retention, kept: set[int]) -> None:
    assert retention.steps_to_keep(FOUND) == kept
    assert retention.steps_to_keep(FOUND[::-1]) == kept


def test_retention_without_checkpoints_keeps_none() -> None:
    assert Retention(3, best=2, every=1).steps_to_keep([]) == set()


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        ({"every": 4}, [4, 8, 12]),
        ({"keep_every": 5}, [5, 10]),
        ({"every": 4, "keep_every": 6}, [4, 6, 8, 12]),
        ({}, []),
    ],
)
def test_cadence_saves_at_configured_steps(config: dict[str, int], steps: list[int]) -> None:
    cadence = Cadence(CheckpointConfig(**config))
    assert [step for step in range(1, 13) if cadence.at_step(step)] == steps


def test_cadence_clock_counts_from_last_restart() -> None:
    now = [1000.0]
    cadence = Cadence(CheckpointConfig(every_minutes=2.5), clock=lambda: now[0])
    found = []
    for moment in (1149.9, 1150.0, 9999.0):
        now[0] = moment
        found.append(cadence.by_clock())
    assert found == [False, True, True]
    cadence.restart()
    assert not cadence.by_clock()
    now[0] += 150
    assert cadence.by_clock()


def test_cadence_without_minutes_ignores_clock() -> None:
    now = [0.0]
    cadence = Cadence(CheckpointConfig(every=1, every_minutes=None), clock=lambda: now[0])
    now[0] = 1e12
    assert not cadence.by_clock()


@pytest.mark.parametrize(
    ("keep_best", "loss", "best", "is_best"),
    [
        (0, 1.0, [], False),
        (1, 9.0, [], True),
        (1, 3.0, [3.0], False),
        (1, 2.9, [3.0], True),
        (2, 9.0, [3.0], True),
        (2, 4.0, [3.0, 4.0], False),
        (2, 3.5, [3.0, 4.0], True),
        (1, 3.5, [3.0, 4.0], False),  # resumed with fewer to keep
        (3, float("nan"), [], False),
        (3, float("inf"), [], False),
    ],
)
def test_cadence_best_losses_are_lowest(keep_best: int, loss: float, best: list[float], is_best: bool) -> None:
    assert Cadence(CheckpointConfig(keep_best=keep_best)).is_best(loss, best) == is_best


def test_config_that_never_saves_is_refused() -> None:
    with pytest.raises(ValidationError, match="every and every_minutes are both null"):
        CheckpointConfig(every=None, every_minutes=None)
    assert CheckpointConfig().every_minutes == 10
    assert CheckpointConfig(every=1, every_minutes=None).every == 1
