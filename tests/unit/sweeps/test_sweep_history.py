"""Sweeps that start with trials of earlier ones: which of them count, and that none runs again."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.ui.sweep_view import sweep_text
from orchestrator.reports.pages.sweep_page import render_sweep
from orchestrator.specs.sweep_spec import contradictions
from orchestrator.support.errors import SpecError
from orchestrator.sweeps.design.points import latents, latents_of, propose, values
from orchestrator.sweeps.design.sweep_record import EarlierSweep
from orchestrator.sweeps.driver.history import as_trials, read_history
from orchestrator.sweeps.driver.sweep_status import sweep_status
from tests.unit.sweeps.conftest import sweep
from tests.unit.sweeps.quick_sweeps import Sweeps, record_and_rows, settings, spec_of

SPACE: dict[str, Any] = {
    "a.rate": {"low": 1e-6, "high": 1e-2, "log": True},
    "a.share": {"low": 0.0, "high": 0.3},
    "a.steps": {"low": 10, "high": 95, "q": 10},
    "b.noise": {"mean": 0.1, "sd": 0.02},
    "b.scale": {"mean": 0, "sd": 1, "log": True},
    "b.number": {"randint": 5},
    "c": [16, True, "16", [1, 2], None],
    "optimizer": [{"name": "lamb", "rate": {"low": 1, "high": 2}}, {"name": "adamw", "rate": {"low": 0, "high": 3}}],
}


@pytest.mark.parametrize("index", range(20))
def test_latents_are_recovered_from_settings(index: int) -> None:
    spec = sweep(SPACE)
    drawn = latents(spec, index)
    point = values(spec.space, drawn)
    found = latents_of(spec.space, point.get)
    assert found is not None
    assert found.keys() == drawn.keys()
    for path, value in values(spec.space, found).items():
        assert value == (pytest.approx(point[path], rel=1e-6) if isinstance(value, float) else point[path])
    exact = {name: place for name, place in drawn.items() if name not in {"a.steps", "b.noise", "b.scale"}}
    assert {name: found[name] for name in exact} == exact, "only quantised values have several latents"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a.rate", 1.1e-2),
        ("a.rate", "1e-3"),
        ("a.share", True),
        ("a.steps", 106),
        ("b.scale", -1.0),
        ("b.noise", 0.5),
        ("b.number", 5),
        ("b.number", 1.5),
        ("c", 17),
        ("c", 1),
        ("optimizer.name", "lion"),
        ("optimizer.rate", 4.0),
    ],
)
def test_impossible_value_has_no_latent(path: str, value: Any) -> None:
    spec = sweep(SPACE)
    point = values(spec.space, latents(spec, 0))
    assert latents_of(spec.space, lambda name: value if name == path else point.get(name)) is None


def test_warm_start_counts_points_outside_the_space(sweeps: Sweeps) -> None:
    rates = [1e-4, 1e-3, 1e-2]
    first = sweeps.run(space={"optimizer.learning_rate": rates}, sampling="grid", limits={"trials": None})
    space = {"optimizer.learning_rate": {"low": 5e-4, "high": 1.0, "log": True}, "train.log_every": [1, 2]}
    spec = sweep(space, "tpe", limits={"trials": 3})
    history = read_history(spec, "pretrain", [record_and_rows(first)])
    assert history.earlier == [EarlierSweep(sweep=first.name, used=2, outside=1)]
    assert history.earlier[0].text == f"2 trials of {first.name} (1 other is outside this space)"
    assert [past.latents for past in history.trials] == [
        {"optimizer.learning_rate": 1e-3, "train.log_every": 0},
        {"optimizer.learning_rate": 1e-2, "train.log_every": 0},
    ], "log_every was 1 in all of them"
    assert [past.outcome for past in history.trials] == pytest.approx([1.252, 10.252])
    narrow = sweep({"optimizer.learning_rate": {"low": 2.0, "high": 3.0}}, "tpe", limits={"trials": 3})
    with pytest.raises(SpecError, match="no trial of the earlier sweeps is a point of this space"):
        read_history(narrow, "pretrain", [record_and_rows(first)])


def test_sweep_with_another_objective_is_refused(sweeps: Sweeps) -> None:
    first = sweeps.make()
    for objective, kind in (
        ({"goal": "maximize"}, "pretrain"),
        ({"metric": "train_loss"}, "pretrain"),
        ({}, "finetune"),
    ):
        spec = sweep({"optimizer.learning_rate": [1, 2]}, "tpe", objective=objective, limits={"trials": 3})
        with pytest.raises(SpecError, match=f"sweep {first.name} has another job, metric or goal"):
            read_history(spec, kind, [record_and_rows(first)])


@pytest.mark.parametrize("sampling", ["random", "sobol", "grid"])
def test_sampling_that_ignores_history_is_refused(sampling: str) -> None:
    spec = sweep({"a": [1, 2]}, sampling, warm_start=["search"], limits={"trials": 2})
    assert list(contradictions(spec)) == [
        (("warm_start",), f"{sampling} sampling does not use earlier trials; tpe and gp do")
    ]


def test_warm_start_draws_near_earlier_good_points(sweeps: Sweeps) -> None:
    first = sweeps.run(limits={"trials": 12, "concurrent": 4})
    warm = sweeps.run(limits={"trials": 3}, sampling="tpe", warm_start=[first.name])
    assert len(warm.study().trials) == len(sweeps.runs(warm)) == 3
    spec, earlier = spec_of(warm), as_trials(warm, spec_of(warm).space)
    assert len(earlier) == 12
    assert settings(warm)[0] == values(spec.space, propose(spec, 0, earlier))
    cold = [values(spec.space, propose(spec, number, ())) for number in range(3)]
    assert settings(warm)[0] not in cold

    def middle(points: list[dict[str, Any]]) -> float:
        return statistics.median(math.log10(point["optimizer.learning_rate"]) for point in points)

    assert middle(settings(warm)) < middle(settings(first)), "smaller is better there"
    begun = f"12 trials of {first.name}"
    tags = (sweeps.runs(warm)[0].tags).read_text()
    assert f'"orchestrator.warm_start": "{begun}"' in tags
    status = sweep_status(warm)
    assert status.earlier == [EarlierSweep(sweep=first.name, used=12, outside=0)]
    assert f", warm start from {begun}\n" in sweep_text(status)
    assert f"<dd>{begun}</dd>" in render_sweep(status)


def test_warm_start_changes_the_name_of_the_sweep(sweeps: Sweeps, tmp_path: Path) -> None:
    first = sweeps.run(limits={"trials": 2})
    names = {sweeps.make(sampling="tpe", warm_start=warm).name for warm in ([], [first.name])}
    other = sweeps.run(limits={"trials": 3}, name="other")
    names.add(sweeps.make(sampling="tpe", warm_start=[other.name]).name)
    assert len(names) == 3
