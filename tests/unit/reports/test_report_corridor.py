"""Expected range of a loss: chance and frequency levels, and curves of published recipes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from orchestrator.reports.charts.charts import Corridor
from orchestrator.reports.pages.pretraining_report import (
    CURVE,
    NVIDIA_LARGE,
    NVIDIA_LARGE_LONG,
    frequencies_alone,
    levels,
    published,
)
from tests.unit.reports.drawings import overflowing_figures, render
from tests.unit.reports.test_report_run import RESULT, Page, reports_of, status_of


def plan_of_recipe(plan: dict[str, Any], recipe: str, *changed: str) -> dict[str, Any]:
    changes = {key: {"value": 1, "from": "--set"} for key in changed}
    return {**plan, "spec": {**plan["spec"], "recipe": recipe}, "changes": changes}


def inside(corridor: Corridor, step: int, value: float) -> bool:
    _, low, high = corridor.until(step)[-1]
    return low <= value <= high


def test_context_free_model_between_uniform_and_unigram(plan: dict[str, Any]) -> None:
    guess = math.log(plan["job"]["data"]["vocab_size"])
    assert [(level.label, level.value) for level in levels(plan, None)] == [("even guess", guess)]
    assert [level.label for level in levels(plan, 6.0)] == ["even guess", "unigram entropy"]
    corridor = frequencies_alone(plan, 6.0, 100)
    assert corridor is not None
    assert corridor.points == ((0, 6.0, guess), (100, 6.0, guess))
    assert frequencies_alone(plan, None, 100) is None
    page = render(status_of(), reports_of(), plan, RESULT)
    assert "no context learned yet" in Page(page).text
    assert [attributes["class"] for tag, attributes in Page(page).tags if tag == "polygon"] == ["corridor"]
    assert overflowing_figures(page) == []


@pytest.mark.parametrize("key", ["init_from", "phase_from"])
def test_model_with_weights_starts_below_uniform_level(plan: dict[str, Any], key: str) -> None:
    job = {**plan["job"], key: "/models/bert"}
    assert [level.label for level in levels({**plan, "job": job}, 6.0)] == ["unigram entropy"]
    assert frequencies_alone({**plan, "job": job}, 6.0, 100) is None


def test_published_curve_inside_corridor_plateau_outside(plan: dict[str, Any]) -> None:
    corridor, ends = published(plan_of_recipe(plan, NVIDIA_LARGE))
    assert corridor is not None
    assert ends == ()
    assert all(inside(corridor, step, loss) for step, loss in CURVE)
    assert all(low < high for _, low, high in corridor.points)
    assert not inside(corridor, 2000, 6.4), "BERT-large that stays on its plateau"
    assert not inside(corridor, 200, 11.0), "a model that does not learn"
    assert "read off a picture" in corridor.source


def test_corridor_of_running_run_ends_at_its_step(plan: dict[str, Any]) -> None:
    page = render(status_of(), reports_of(), plan_of_recipe(plan, NVIDIA_LARGE), {})
    text = Page(page).text
    assert "Loss, MLM and NSP (nats)" in text
    assert "as published" in text
    assert overflowing_figures(page) == []
    corridor, _ = published(plan_of_recipe(plan, NVIDIA_LARGE))
    assert corridor is not None
    assert corridor.until(40)[-1][0] == 40
    assert corridor.until(10**6)[-1][0] == CURVE[-1][0]


def test_changed_recipe_has_no_published_corridor(plan: dict[str, Any]) -> None:
    assert published(plan_of_recipe(plan, NVIDIA_LARGE, "train.steps")) == (None, ())
    assert published(plan_of_recipe(plan, NVIDIA_LARGE, "train.log_every"))[0] is not None
    assert published(plan) == (None, ())
    nothing, (end,) = published(plan_of_recipe(plan, NVIDIA_LARGE_LONG))
    assert (nothing, end.value) == (None, 1.265)
