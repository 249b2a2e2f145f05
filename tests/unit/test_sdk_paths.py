"""Paths in the SDK: every public method accepts strings."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import orchestrator
from orchestrator import Orchestrator, Run, Sweep
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.jobs import builders
from orchestrator.runs.status import Handle
from orchestrator.support.errors import UsageError
from orchestrator.sweep import Sweeps
from tests.conftest import MICRO, SMALL_TEXT, write_bert
from tests.run_folders import make_run, report
from tests.unit.sweeps.test_sweep_table import add, make
from train_jobs.config import SpecError

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
SPACE = {"optimizer.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}}


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_snapshot: None) -> Orchestrator:
    """Return an SDK whose home and spec files are in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text(SMALL_TEXT)
    job = {**json.loads(json.dumps(MICRO)), "data": {"text": ["notes.txt"]}}
    Path("job.yaml").write_text(yaml.safe_dump(job))
    Path("sweep.yaml").write_text(yaml.safe_dump({"space": SPACE, "trial": job, "limits": {"trials": 2}}))
    return Orchestrator(home="home", environ=NO_GPU)


def run_of(sdk: Orchestrator) -> Run:
    """Return a completed run with metrics and predictions."""
    plan = sdk.plan(file="job.yaml").as_dict()
    folder = make_run(Path("home"), "one", plan=json.loads(json.dumps(plan)))
    for step in (1, 2, 3):
        report(folder, step, at=1000.0 + step, train_mlm_loss=9.0 - step / 10, learning_rate=1e-4 * step)
    (folder.outputs / "predictions.jsonl").write_text("{}\n")
    return Run(LocalBackend(Path("home")), Handle("local", "one"))


def sweep_of() -> Sweep:
    """Return a sweep with five finished trials."""
    found = make(Path("home"))
    for outcome in (3.0, 2.0, 1.0, 4.0, 5.0):
        add(found, [outcome + 1, outcome], "completed", outcome)
    return found


def not_a_job_file(sdk: Orchestrator) -> str:
    """Return the error of a job file that no backend accepts."""
    with pytest.raises(UsageError) as refused:
        sdk.prepare_file("job.unknown")
    return refused.value.message


def unusable_key(sdk: Orchestrator) -> str:
    """Return the error of a deployment with a file that has no key."""
    run = run_of(sdk)
    write_bert(Path("home/runs/one/outputs/model"))
    Path("signing.pub").touch()
    with pytest.raises(SpecError) as refused:
        run.deploy_model("words", require_signature="signing.pub")
    return refused.value.message


CALLS: dict[str, tuple[Callable[[Orchestrator], Any], Any]] = {
    "Orchestrator.plan": (lambda sdk: sdk.plan(file="job.yaml").spec.kind, "pretrain"),
    "Orchestrator.plan_phases": (lambda sdk: type(sdk.plan_phases(file="job.yaml")).__name__, "PretrainPlan"),
    "Orchestrator.prepare_file": (
        not_a_job_file,
        "cannot submit job.unknown: no backend accepts this type of job file",
    ),
    "Run.deliver": (lambda sdk: run_of(sdk).deliver("out.jsonl"), Path("out.jsonl")),
    "Run.deploy_model": (unusable_key, "cannot use the key signing.pub"),
    "Run.download": (lambda sdk: run_of(sdk).download("predictions", to="dl"), [Path("dl/predictions.jsonl")]),
    "Run.pictures": (lambda sdk: run_of(sdk).pictures("pics")[0].parent, Path("pics")),
    "Run.report": (lambda sdk: run_of(sdk).report("r.html"), Path("r.html")),
    "Sweep.pictures": (lambda sdk: sweep_of().pictures("pics")[0], Path("pics/reports.png")),
    "Sweep.report": (lambda sdk: sweep_of().report("s.html"), Path("s.html")),
    "Sweeps.plan": (lambda sdk: sdk.sweeps.plan(file="sweep.yaml").record.kind, "pretrain"),
    "evaluate": (lambda sdk: orchestrator.evaluate("m", "a.tsv").values["input"], ["a.tsv"]),
    "finetune": (lambda sdk: orchestrator.finetune("m", "a.tsv").values["data"], "a.tsv"),
    "predict": (lambda sdk: orchestrator.predict("m", "a.tsv", output="o.tsv").values["output"], "o.tsv"),
    "prepare": (lambda sdk: orchestrator.prepare("notes.txt", store="s").values["store"], "s"),
    "pretrain": (lambda sdk: sdk.plan(orchestrator.pretrain("notes.txt", start=None)).data.files, 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_public_method_accepts_strings_as_paths(sdk: Orchestrator, name: str) -> None:
    call, expected = CALLS[name]
    assert call(sdk) == expected


def path_parameters() -> dict[str, list[str]]:
    """Return the annotations of all parameters of public methods and functions that are paths."""
    found: dict[str, list[str]] = {}
    methods = [(kind.__name__ + ".", vars(kind)) for kind in (Orchestrator, Run, Sweep, Sweeps)]
    jobs = {name: getattr(builders, name) for name in orchestrator.__all__ if name in vars(builders) and name.islower()}
    for prefix, members in [*methods, ("", jobs)]:
        for name, member in members.items():
            if name.startswith("_") or not inspect.isfunction(member):
                continue
            annotations = [str(one.annotation) for one in inspect.signature(member).parameters.values()]
            if paths := [text for text in annotations if "Path" in text]:
                found[prefix + name] = paths
    return found


def test_every_parameter_that_is_a_path_is_covered() -> None:
    found = path_parameters()
    assert sorted(found) == sorted(CALLS)
    assert [name for name, texts in found.items() for text in texts if not re.search("PathLike|PathText", text)] == []
