"""Bayesian sampling: it finds good points, repeats none after a restart, and respects the space."""

from __future__ import annotations

import math
from typing import Any

import pytest

from orchestrator.specs.space import all_parameters
from orchestrator.specs.sweep_spec import SweepSpec
from orchestrator.sweeps.design.points import Latents, distribution, draw, is_conditional, latents, propose, values
from tests.unit.sweeps.conftest import sweep

SPACE: dict[str, Any] = {
    "rate": {"low": 1e-6, "high": 1e-1, "log": True},
    "batch": [16, 32, [64, 128]],
    "width": {"randint": 5},
    "decay": {"mean": 0.1, "sd": 0.02},
    "steps": {"low": 10, "high": 100, "q": 10},
}
TREE: dict[str, Any] = {
    "optimizer": [
        {"name": "adamw", "rate": {"low": 1e-6, "high": 1e-2, "log": True}},
        {"name": "lamb", "rate": [1, 2]},
    ],
    "seed": {"low": 0, "high": 1},
}


def finished_trial(spec: SweepSpec, drawn: Latents, value: float) -> Any:
    """Return a finished trial of a study with the result `value`."""
    from optuna.trial import create_trial

    names = {name: parameter for name, _, parameter in all_parameters(spec.space)}
    distributions = {name: distribution(names[name]) for name in drawn}
    return create_trial(params=drawn, distributions=distributions, value=value)


def search_distances(spec: SweepSpec, count: int) -> list[float]:
    """Return the distances of the rate from 1e-4, in decades, of `count` trials in a row."""
    past: list[Any] = []
    for index in range(count):
        drawn = propose(spec, index, past)
        rate = values(spec.space, drawn)["rate"]
        past.append(finished_trial(spec, drawn, abs(math.log10(rate / 1e-4))))
    return [trial.value for trial in past]


@pytest.mark.parametrize(
    ("name", "count"), [("tpe", 24), ("bayesian", 24), pytest.param("gp", 15, marks=pytest.mark.slow)]
)
def test_bayesian_sampling_beats_random_sampling(name: str, count: int) -> None:
    found = search_distances(sweep({"rate": SPACE["rate"]}, name, seed=1), count)
    chance = search_distances(sweep({"rate": SPACE["rate"]}, "random", seed=1), count)
    assert sum(found[12:]) < sum(chance[12:]) / 2
    assert min(found) < 0.15


def test_maximize_prefers_larger_results() -> None:
    spec = sweep({"rate": SPACE["rate"]}, "tpe", seed=1, objective={"metric": "x", "goal": "maximize"})
    found = search_distances(spec, 24)
    assert sum(found[12:]) > sum(found[:12])


@pytest.mark.parametrize("name", ["tpe", "gp"])
def test_every_proposal_is_inside_the_space(name: str) -> None:
    spec = sweep(SPACE, name)
    past: list[Any] = []
    for index in range(12):
        drawn = propose(spec, index, past)
        point = values(spec.space, drawn)
        past.append(finished_trial(spec, drawn, float(index)))
        assert list(point) == list(SPACE)
        assert 1e-6 <= point["rate"] <= 1e-1
        assert point["batch"] in (16, 32, [64, 128])
        assert point["width"] in range(5)
        assert point["steps"] in range(10, 101, 10)
        assert 0 < point["decay"] < 0.25


def test_conditional_parameters_are_sampled_only_if_chosen() -> None:
    spec = sweep(TREE, "tpe")
    past: list[Any] = []
    seen = set()
    for index in range(16):
        drawn = propose(spec, index, past)
        seen.add(tuple(drawn))
        past.append(finished_trial(spec, drawn, 1.0))
    assert seen == {
        ("optimizer", "optimizer[0].name", "optimizer[0].rate", "seed"),
        ("optimizer", "optimizer[1].name", "optimizer[1].rate", "seed"),
    }
    assert is_conditional(spec.space)
    assert not is_conditional(sweep(SPACE).space)


def test_propose_is_a_function_of_the_past_trials() -> None:
    spec = sweep({"rate": SPACE["rate"]}, "tpe", seed=5)
    first = propose(spec, 0)
    past = [finished_trial(spec, first, 1.0)]
    assert propose(spec, 0) == first
    assert propose(spec, 1, past) == propose(spec, 1, past) != first
    started: list[Any] = []
    for index in range(12):  # Optuna draws the first ten at random: a sampler with a single seed would repeat them
        started.append(finished_trial(spec, propose(spec, index, started), 1.0))
    assert len({trial.params["rate"] for trial in started}) == 12


def test_fixed_points_do_not_depend_on_past_trials() -> None:
    for name in ("random", "sobol"):
        spec = sweep(SPACE, name)
        assert propose(spec, 4) == latents(spec, 4)
        assert values(spec.space, propose(spec, 4)) == draw(spec, 4)
