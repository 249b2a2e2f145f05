"""Learning rates at the points that matter, by hand."""

from __future__ import annotations

import itertools
import math

import pytest

from train_jobs.config import ScheduleConfig
from train_jobs.optim.schedules import learning_rate

NVIDIA = ScheduleConfig()
STEPS = 7038  # phase 1 of NVIDIA's recipe: 0.2843 of it is 2000.9 steps of warm-up


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 6e-3 / STEPS / 0.2843),
        (999, 6e-3 * (1000 / STEPS) / 0.2843),
        (1999, 6e-3 * (2000 / STEPS) / 0.2843),  # the last step of warm-up
        (2000, 6e-3 * math.sqrt(1 - 2001 / STEPS)),  # the jump
        (STEPS - 2, 6e-3 * math.sqrt(1 / STEPS)),
        (STEPS - 1, 0.0),
    ],
)
def test_nvidias_recipe(step: int, expected: float) -> None:
    assert learning_rate(NVIDIA, 6e-3, step=step, total_steps=STEPS) == pytest.approx(expected, rel=1e-11, abs=1e-18)


def test_the_junction_jumps_to_0_846_of_the_peak() -> None:
    before, after = (learning_rate(NVIDIA, 1.0, step=step, total_steps=STEPS) for step in (1999, 2000))
    assert before == pytest.approx(0.99956, abs=1e-4)
    assert after == pytest.approx(0.846, abs=1e-3)


def test_continuous_has_no_jump_and_ends_at_zero() -> None:
    config = ScheduleConfig(continuous=True)
    rates = [learning_rate(config, 1.0, step=step, total_steps=STEPS) for step in range(STEPS)]
    assert max(rates) == pytest.approx(1.0, abs=1e-3)
    assert rates[2000] == pytest.approx(math.sqrt((1 - 2001 / STEPS) / (1 - 0.2843)), rel=1e-12)
    assert max(abs(after - before) for before, after in itertools.pairwise(rates[:-100])) < 2e-3
    assert rates[-1] == 0.0


def test_linear() -> None:
    config = ScheduleConfig(warmup_fraction=0.2, power=1.0, continuous=True)
    rates = [learning_rate(config, 8.0, step=step, total_steps=10) for step in range(10)]
    assert rates == pytest.approx([4, 8, 7, 6, 5, 4, 3, 2, 1, 0], abs=1e-12)


def test_the_jump_is_at_the_first_step_that_is_not_before_the_end_of_warm_up() -> None:
    config = ScheduleConfig(warmup_fraction=0.5, power=1.0)
    rates = [learning_rate(config, 1.0, step=step, total_steps=4) for step in range(4)]
    assert rates == [0.5, 0.5, 0.25, 0.0]


def test_constant_after_warm_up() -> None:
    config = ScheduleConfig(name="constant", warmup_fraction=0.5)
    rates = [learning_rate(config, 2.0, step=step, total_steps=4) for step in range(4)]
    assert rates == [1.0, 2.0, 2.0, 2.0]


def test_no_warm_up_starts_with_the_decay() -> None:
    config = ScheduleConfig(warmup_fraction=0.0, power=1.0)
    assert learning_rate(config, 1.0, step=0, total_steps=4) == 0.75


@pytest.mark.parametrize("step", [-1, 4])
def test_steps_outside_of_the_run_are_our_mistake(step: int) -> None:
    with pytest.raises(AssertionError, match="of 4"):
        learning_rate(NVIDIA, 1.0, step=step, total_steps=4)
