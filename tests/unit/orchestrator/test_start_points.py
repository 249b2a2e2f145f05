"""What a name stands for that something starts from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.jobs.start_points import model_of
from orchestrator.runs.status import RunState
from orchestrator.support.errors import NotFoundError


@pytest.fixture
def attach(tmp_path: Path) -> Callable[[str], Any]:
    """Finds a run of all of GLUE that had data of two tasks, and one of a single task."""
    for task in ("MRPC", "RTE"):
        (tmp_path / "outputs" / task / "model").mkdir(parents=True)
        (tmp_path / "outputs" / task / "model" / "config.json").write_text("{}")

    def found(name: str) -> Any:
        models = {"glue": None, "local://glue": None, "one": str(tmp_path / "one")}
        if name not in models:
            raise NotFoundError(f"no run {name}")
        status = SimpleNamespace(name=name.rpartition("/")[2], state=RunState.COMPLETED, model=models[name])
        return SimpleNamespace(folder=tmp_path if models[name] is None else tmp_path / "one", status=lambda: status)

    return found


@pytest.mark.parametrize("name", ["glue/MRPC", "local://glue/MRPC"])
def test_a_run_of_all_of_glue_has_a_model_for_each_task(attach: Any, tmp_path: Path, name: str) -> None:
    assert model_of(name, attach) == tmp_path / "outputs" / "MRPC" / "model"


def test_a_run_with_one_model_needs_no_task(attach: Any, tmp_path: Path) -> None:
    assert model_of("one", attach) == tmp_path / "one"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("glue", "run glue has a model for each task"),
        ("glue/CoLA", "run glue has no model of CoLA"),
        ("one/MRPC", "the model of MRPC of run one is missing"),
    ],
)
def test_a_task_that_is_not_said_or_not_there(attach: Any, name: str, told: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        model_of(name, attach)
    assert caught.value.message == told
    if name.startswith("glue"):
        assert (caught.value.facts, caught.value.fix) == ({"have": "MRPC, RTE"}, "--model glue/MRPC")


def test_a_name_on_the_hub_that_ends_like_a_task_is_told_whole(attach: Any) -> None:
    with pytest.raises(NotFoundError) as caught:
        model_of("textattack/MRPC", attach)
    assert "textattack/MRPC" in caught.value.facts["hub"]
