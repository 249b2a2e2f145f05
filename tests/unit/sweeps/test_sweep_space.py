"""Points of a search space: their distributions, and their dependence on space, seed and number alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import pytest
import torch

from orchestrator.specs.space import Parameter
from orchestrator.specs.sweep_spec import as_tree, grid_size, trial_count
from orchestrator.sweeps.design.points import MAX_DIMENSIONS, draw, latent, sobol, value
from tests.unit.sweeps.conftest import sweep
from tests.unit.sweeps.laws import CASES, DRAWS, distance_to, law_of, limit

CONDITIONAL: dict[str, Any] = {
    "optimizer": [
        {"name": "adamw", "learning_rate": {"low": 1e-5, "high": 1e-4, "log": True}},
        {"name": "lamb", "learning_rate": {"low": 1e-3, "high": 1e-2, "log": True}, "trust_ratio": ["matrices", "all"]},
    ],
    "train.global_batch_size": [16, 32],
}


@pytest.mark.parametrize(
    ("name", "sampling"), [*((name, "random") for name in CASES), ("loguniform", "sobol"), ("qnormal", "sobol")]
)
def test_ten_thousand_draws_follow_their_distribution(name: str, sampling: str) -> None:
    spec = sweep({"x": CASES[name][0]}, sampling, seed=3)
    found = [draw(spec, index)["x"] for index in range(DRAWS)]
    assert distance_to(law_of(name), found) < limit(DRAWS)


def test_distance_detects_another_distribution() -> None:
    found = [draw(sweep({"x": {"low": 1e-5, "high": 1e-3, "log": True}}), index)["x"] for index in range(DRAWS)]
    linear: Callable[[float], float] = lambda x: (x - 1e-5) / (1e-3 - 1e-5)  # noqa: E731
    slightly_off: Callable[[float], float] = lambda x: math.log(x / 1e-5) / math.log(120)  # noqa: E731
    assert distance_to(linear, found) > limit(DRAWS)
    assert distance_to(slightly_off, found) > limit(DRAWS)


def test_quantised_values_are_multiples_counted_from_zero() -> None:
    spec = sweep({"x": {"low": 0.05, "high": 1.0, "q": 0.1}, "steps": {"low": 95, "high": 1004, "q": 10}})
    found = [draw(spec, index) for index in range(2000)]
    assert {point["x"] for point in found} <= {0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0}
    assert {point["steps"] for point in found} == set(range(100, 1001, 10))
    assert all(type(point["steps"]) is int and type(point["x"]) is float for point in found)


def test_choices_reach_the_trial_unchanged() -> None:
    options = [True, None, 3, 0.5, "a.b", [0.9, 0.98]]
    spec = sweep({"x": options}, "grid")
    found = [draw(spec, index)["x"] for index in range(6)]
    assert found == options
    assert [type(value) for value in found] == [type(value) for value in options]


def test_point_depends_only_on_seed_and_number() -> None:
    space = {"x": {"low": 0, "high": 1}, "y": {"mean": 0, "sd": 1}}
    for sampling in ("random", "sobol"):
        once, again, other = (sweep(space, sampling, seed=seed) for seed in (1, 1, 2))
        assert [draw(once, index) for index in (5, 0, 3)] == [draw(again, index) for index in (5, 0, 3)]
        assert draw(once, 5) != draw(other, 5)
        assert len({draw(once, index)["x"] for index in range(100)}) == 100


def test_added_parameter_does_not_change_other_draws() -> None:
    few, more = sweep({"x": {"low": 0, "high": 1}}), sweep({"new": [1, 2], "x": {"low": 0, "high": 1}})
    assert [draw(few, index)["x"] for index in range(5)] == [draw(more, index)["x"] for index in range(5)]


def test_parameters_are_independent() -> None:
    spec = sweep({"x": {"low": 0, "high": 1}, "y": {"low": 0, "high": 1}})
    points = [draw(spec, index) for index in range(4000)]
    quarters = Counter((point["x"] < 0.5, point["y"] < 0.5) for point in points)
    assert all(abs(count - 1000) < 126 for count in quarters.values())  # 4.6 standard deviations


def test_only_the_chosen_option_is_drawn() -> None:
    spec = sweep(CONDITIONAL)
    found = [draw(spec, index) for index in range(200)]
    for point in found:
        low = point["optimizer.learning_rate"] < 1e-3
        assert point["optimizer.name"] == ("adamw" if low else "lamb")
        assert ("optimizer.trust_ratio" in point) == (not low)
        assert point["train.global_batch_size"] in (16, 32)
    assert 60 < sum(point["optimizer.name"] == "adamw" for point in found) < 140


def test_grid_has_every_combination_once_last_key_fastest() -> None:
    space = {
        "a": [1, 2],
        "optimizer": [{"name": "adamw"}, {"name": "lamb", "trust_ratio": ["matrices", "all"], "eps": [1, 2]}],
        "b": {"randint": 2},
    }
    spec = sweep(space, "grid")
    assert grid_size(spec.space) == trial_count(spec) == 2 * (1 + 2 * 2) * 2
    points = [draw(spec, index) for index in range(20)]
    assert len({tuple(sorted(point.items())) for point in points}) == 20
    assert points[:3] == [
        {"a": 1, "optimizer.name": "adamw", "b": 0},
        {"a": 1, "optimizer.name": "adamw", "b": 1},
        {"a": 1, "optimizer.name": "lamb", "optimizer.trust_ratio": "matrices", "optimizer.eps": 1, "b": 0},
    ]
    assert points[-1] == {"a": 2, "optimizer.name": "lamb", "optimizer.trust_ratio": "all", "optimizer.eps": 2, "b": 1}
    for index in (-1, 20):
        with pytest.raises(IndexError, match="20 points"):
            draw(spec, index)


def test_trial_limit_truncates_but_never_extends_a_grid() -> None:
    assert trial_count(sweep({"a": [1, 2, 3]}, "grid", limits={"trials": 2})) == 2
    assert trial_count(sweep({"a": [1, 2, 3]}, "grid", limits={"trials": 9})) == 3
    assert trial_count(sweep({"a": {"low": 0, "high": 1}}, limits={"trials": 9})) == 9


def test_sobol_is_the_sequence_of_joe_and_kuo() -> None:
    for dimensions, points in ((32, 600), (MAX_DIMENSIONS, 3)):
        theirs = torch.quasirandom.SobolEngine(dimensions).draw(points, dtype=torch.float64)
        ours = [[coordinate / 2**32 for coordinate in sobol(index, dimensions)] for index in range(points)]
        assert torch.equal(theirs, torch.tensor(ours, dtype=torch.float64))


def test_sobol_points_of_recorded_sweeps_are_stable() -> None:
    """A sweep that started before its points came from SciPy continues with the same ones."""
    assert sobol(1_000_003, 5) == [1187450880, 2413424640, 334991360, 1796354048, 3773812736]


def test_sobol_points_are_spread_evenly_with_any_seed() -> None:
    spec = sweep({"x": {"low": 0, "high": 1}, "y": {"low": 0, "high": 1}}, "sobol", seed=7)
    points = [draw(spec, index) for index in range(64)]
    for key in ("x", "y"):
        assert sorted(int(point[key] * 64) for point in points) == list(range(64))
    cells = Counter((int(point["x"] * 8), int(point["y"] * 8)) for point in points)
    assert set(cells.values()) == {1}
    assert len(cells) == 64


def test_settings_are_nested_into_sections() -> None:
    found = as_tree({"optimizer": "lamb", "train.steps": 5, "train.log_every": 1, "resume": "never"})
    assert found == {"optimizer": {"name": "lamb"}, "train": {"steps": 5, "log_every": 1}, "resume": "never"}


def test_tails_of_a_normal_distribution_are_finite() -> None:
    normal = Parameter.model_validate({"mean": 10, "sd": 2})
    ends = [value(normal, latent(normal, unit)) for unit in (0.0, 1.0)]
    assert ends == pytest.approx([NormalDist(10, 2).inv_cdf(1e-9), NormalDist(10, 2).inv_cdf(1 - 1e-9)])
