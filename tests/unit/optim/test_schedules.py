"""Learning rates at the critical steps, computed by hand."""

from __future__ import annotations

import itertools
import math

import pytest

from train_jobs.config import ScheduleConfig
from train_jobs.optim.factory import learning_rate

NVIDIA = ScheduleConfig()
STEPS = 7038  # phase 1 of NVIDIA's recipe: the warm-up of 0.2843 is 2000.9 steps


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
def test_nvidia_recipe_has_expected_rates(step: int, expected: float) -> None:
    assert learning_rate(NVIDIA, 6e-3, step=step, total_steps=STEPS) == pytest.approx(expected, rel=1e-11, abs=1e-18)


def test_nvidia_rate_jumps_to_0_846_of_peak() -> None:
    before, after = (learning_rate(NVIDIA, 1.0, step=step, total_steps=STEPS) for step in (1999, 2000))
    assert before == pytest.approx(0.99956, abs=1e-4)
    assert after == pytest.approx(0.846, abs=1e-3)


def test_continuous_schedule_has_no_jump_and_ends_at_zero() -> None:
    config = ScheduleConfig(continuous=True)
    rates = [learning_rate(config, 1.0, step=step, total_steps=STEPS) for step in range(STEPS)]
    assert max(rates) == pytest.approx(1.0, abs=1e-3)
    assert rates[2000] == pytest.approx(math.sqrt((1 - 2001 / STEPS) / (1 - 0.2843)), rel=1e-12)
    assert max(abs(after - before) for before, after in itertools.pairwise(rates[:-100])) < 2e-3
    assert rates[-1] == 0.0


def test_linear_schedule_has_expected_rates() -> None:
    config = ScheduleConfig(warmup_fraction=0.2, power=1.0, continuous=True)
    rates = [learning_rate(config, 8.0, step=step, total_steps=10) for step in range(10)]
    assert rates == pytest.approx([4, 8, 7, 6, 5, 4, 3, 2, 1, 0], abs=1e-12)


def test_jump_at_first_step_after_warm_up() -> None:
    config = ScheduleConfig(warmup_fraction=0.5, power=1.0)
    rates = [learning_rate(config, 1.0, step=step, total_steps=4) for step in range(4)]
    assert rates == [0.5, 0.5, 0.25, 0.0]


def test_constant_schedule_stays_at_peak_after_warm_up() -> None:
    config = ScheduleConfig(name="constant", warmup_fraction=0.5)
    rates = [learning_rate(config, 2.0, step=step, total_steps=4) for step in range(4)]
    assert rates == [1.0, 2.0, 2.0, 2.0]


def test_schedule_without_warm_up_starts_with_decay() -> None:
    config = ScheduleConfig(warmup_fraction=0.0, power=1.0)
    assert learning_rate(config, 1.0, step=0, total_steps=4) == 0.75


@pytest.mark.parametrize("step", [-1, 4])
def test_step_outside_run_raises_assertion(step: int) -> None:
    with pytest.raises(AssertionError, match="of 4"):
        learning_rate(NVIDIA, 1.0, step=step, total_steps=4)


AZUREML_LARGE = ScheduleConfig(name="exponential", warmup_fraction=0.02, decay_rate=0.99, decay_steps=1000)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 0.0),
        (1870, 1e-4),
        (3739, 2e-4 * 3739 / 3740),  # the last step of warm-up
        (3740, 2e-4),
        (4740, 1.98e-4),
        (100_000, 7.601054170331235446815e-5),
        (186_999, 3.170590269285572783416e-5),
    ],
)
def test_azureml_bert_large_has_expected_rates(step: int, expected: float) -> None:
    """0.99^((step - 3740) / 1000) with 40 decimal digits, as configured in its bert-large.json."""
    rate = learning_rate(AZUREML_LARGE, 2e-4, step=step, total_steps=187_000)
    assert rate == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize(("step", "expected"), [(12_499, 4e-4 * 12_499 / 12_500), (13_020, 3.96e-4)])
def test_azureml_bert_base_has_expected_rates(step: int, expected: float) -> None:
    config = ScheduleConfig(name="exponential", warmup_fraction=0.1, decay_rate=0.99, decay_steps=520)
    assert learning_rate(config, 4e-4, step=step, total_steps=125_000) == pytest.approx(expected, rel=1e-12)


def test_exponential_without_warm_up_decays_from_step_0() -> None:
    config = ScheduleConfig(name="exponential", warmup_fraction=0.0, decay_rate=0.5, decay_steps=2)
    rates = [learning_rate(config, 4.0, step=step, total_steps=5) for step in range(5)]
    assert rates == pytest.approx([4, 4 / math.sqrt(2), 2, math.sqrt(2), 1], rel=1e-12)


def test_cosine_schedule_has_expected_rates() -> None:
    config = ScheduleConfig(name="cosine", warmup_fraction=0.25)
    rates = [learning_rate(config, 2.0, step=step, total_steps=8) for step in range(8)]
    falling = [1 + math.cos(math.pi * part / 6) for part in range(7)]  # 2 at the end of warm-up, 0 at the last step
    assert rates == pytest.approx([1, *falling], rel=1e-12, abs=1e-15)
    assert rates[-1] == 0.0


@pytest.mark.parametrize("name", ["polynomial", "exponential", "cosine", "constant"])
def test_time_advances_schedule_ahead_of_steps(name: str) -> None:
    config = ScheduleConfig.model_validate({"name": name, "warmup_fraction": 0.2, "decay_steps": 10})

    def rate(step: int, time_used: float = 0.0) -> float:
        return learning_rate(config, 1.0, step=step, total_steps=128, time_used=time_used)

    later = 64 if name == "exponential" else 63
    assert rate(5, 0.5) == rate(later)
    assert rate(later, 0.25) == rate(later)
    assert rate(5, 0.1) == pytest.approx(0.5), "warm-up too"
    assert rate(5, 1.0) == rate(5, 7.0)


@pytest.mark.parametrize("name", ["polynomial", "cosine"])
@pytest.mark.parametrize("continuous", [True, False])
def test_rate_is_zero_when_time_is_over(name: str, continuous: bool) -> None:
    config = ScheduleConfig.model_validate({"name": name, "continuous": continuous})
    assert learning_rate(config, 1.0, step=9, total_steps=1000, time_used=1.0) == 0.0
    assert learning_rate(config, 1.0, step=9, total_steps=1000, time_used=0.99) > 0.0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "0.006 after a linear warm-up over 28.4% of the steps, then polynomial decay of power 0.5"),
        (
            {"name": "exponential", "hours": 2.5},
            "0.006 after a linear warm-up over 28.4% of the run, then 0.99 times as much every 1,000 steps,"
            " for 2.5 hours at most",
        ),
        ({"name": "cosine"}, "0.006 after a linear warm-up over 28.4% of the steps, then cosine decay"),
        ({"name": "constant"}, "0.006 after a linear warm-up over 28.4% of the steps, then constant"),
    ],
)
def test_schedule_description(changes: dict[str, object], text: str) -> None:
    assert ScheduleConfig.model_validate(changes).text(6e-3) == text
