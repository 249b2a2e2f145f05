"""Resolution of the name of a start model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.jobs.start_points import model_of
from orchestrator.runs.status import RunState
from orchestrator.support.errors import NotFoundError


def no_registry(tracking_uri: str | None) -> Any:
    raise AssertionError("these names are not of MLflow")


@pytest.fixture
def attach(tmp_path: Path) -> Callable[[str], Any]:
    """Return a lookup for a GLUE run with data of two tasks and for a run of a single task."""
    for task in ("MRPC", "RTE"):
        (tmp_path / "outputs" / task / "model").mkdir(parents=True)
        (tmp_path / "outputs" / task / "model" / "config.json").write_text("{}")

    def lookup(name: str) -> Any:
        models = {"glue": None, "local://glue": None, "one": str(tmp_path / "one")}
        if name not in models:
            raise NotFoundError(f"unknown run {name!r}")
        status = SimpleNamespace(name=name.rpartition("/")[2], state=RunState.COMPLETED, model=models[name])
        return SimpleNamespace(folder=tmp_path if models[name] is None else tmp_path / "one", status=lambda: status)

    return lookup


@pytest.mark.parametrize("name", ["glue/MRPC", "local://glue/MRPC"])
def test_glue_run_has_a_model_for_each_task(attach: Any, tmp_path: Path, name: str) -> None:
    assert model_of(name, attach, no_registry) == tmp_path / "outputs" / "MRPC" / "model"


def test_run_with_one_model_needs_no_task(attach: Any, tmp_path: Path) -> None:
    assert model_of("one", attach, no_registry) == tmp_path / "one"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("glue", "run glue has a model for each task"),
        ("glue/CoLA", "run glue has no model of CoLA"),
        ("one/MRPC", "the model of MRPC of run one is missing"),
    ],
)
def test_missing_or_unknown_task_is_refused(attach: Any, name: str, message: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        model_of(name, attach, no_registry)
    assert caught.value.message == message
    if name.startswith("glue"):
        assert (caught.value.facts, caught.value.fix) == ({"have": "MRPC, RTE"}, "--model glue/MRPC")


def test_hub_name_ending_like_a_task_is_kept_complete(attach: Any) -> None:
    with pytest.raises(NotFoundError) as caught:
        model_of("textattack/MRPC", attach, no_registry)
    assert "textattack/MRPC" in caught.value.facts["hub"]
