"""Runs of a small group on an MLflow server, for tests and pictures of MLflow's own page.

The curves are made up, because a scene needs many runs. Records, copies and the registered model are real.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.backends.folder.mlflow_records import tracking_request
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.runs.status import TRIAL_TAG, RunState
from orchestrator.runs.tracked_run import sync
from orchestrator.sweeps.design.sweep_record import SweepRecord, SweepState
from orchestrator.sweeps.driver.control import make_sweep
from orchestrator.sweeps.driver.parent import ParentRun, trial_tags, trials_table
from orchestrator.sweeps.driver.sweep_status import TrialRow
from tests.mlflow_runs import ENDED, STARTED, make_tracked_run
from tests.unit.finetuning.finetune_jobs import write_model
from train_jobs.artifacts.tracking.run_datasets import RunDataset

EXPERIMENT, MODEL, SWEEP = "books", "book-tags", "tags-sweep-77aa0c31"
PRETRAINED, BEST, OTHER = "novels-0c9e41d7", "tags-5b1f20aa", "tags-e02c77f3"
RATES = (3e-4, 1e-3, 3e-3)
STOPPED_AT = 60  # last step of the first trial
TEXTS = RunDataset(
    name="novels.txt",
    sha256="5f21c09b" * 8,
    context="train",
    source={"uri": "novels.txt"},
    profile={"num_rows": 2210, "num_elements": 4_180_212, "vocab_size": 8192},
    columns=[("text", "string")],
)
ROWS = {
    context: RunDataset(
        name=name,
        sha256=digest * 8,
        context=context,
        source={"uri": name},
        profile={"num_rows": rows, "classes": 2},
        columns=[("text", "string"), ("label", "string")],
    )
    for context, name, digest, rows in (
        ("train", "train.jsonl", "30646977", 2048),
        ("validation", "dev.jsonl", "91bbf002", 256),
    )
}


@dataclass
class Scene:
    """Ids of the runs on the server."""

    uri: str
    """Address of the server."""
    experiment: str
    """Id of the experiment of all runs."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Name of a run -> id of its MLflow run."""
    trials: list[str] = field(default_factory=list)
    """Names of the trials of the sweep."""


def curves(rate: float, steps: int, *, score: bool, until: int | None = None) -> list[dict[str, Any]]:
    """Return the reports of a job that learns faster, and then worse, with a higher learning rate.

    Args:
        rate: learning rate.
        steps: steps of the job.
        score: whether it is a fine-tuning, which has a score.
        until: last step of a job that was stopped early.
    """
    lines = []
    speed, floor = 4e3 * rate / (1 + (rate / 1.5e-3) ** 2), 0.2 + 0.1 * abs(math.log10(rate / 1e-3))
    for step in range(10, (until or steps) + 1, 10):
        loss = floor + (7.0 if not score else 0.7) * math.exp(-speed * step / 200)
        metrics = {"train_loss": loss, "learning_rate": rate * (1 - step / steps)}
        if step % 20 == 0:
            metrics["validation_loss"] = loss * 1.04
            if score:
                metrics["validation_score"] = 1 - 0.45 * loss
        lines.append({"step": step, "time": STARTED + step, "metrics": metrics})
    return lines


def add_run(home: Path, uri: str, name: str, rate: float, epochs: int, **more: Any) -> RunFolder:
    """Create the folder of a completed run; `kind` and `until` are those of `curves`, the others are tags."""
    tuning, until = more.pop("kind", "finetune") == "finetune", more.pop("until", None)
    facts = {"name": "train.jsonl, dev.jsonl" if tuning else "novels.txt", "files": 2 if tuning else 1}
    plan = {
        "environment": {"python": "3.11.7", "torch": "2.13.0"},
        "spec": {
            "kind": "finetune" if tuning else "pretrain",
            "recipe": "tiny",
            "tags": {},
            "code": {"entry": "train_jobs"},
        },
        "data": {**facts, "sha256": "5f21c09b" * 8, "total_bytes": 9_210_330},
        "snapshot": {"git": {"commit": "2c1272f0" * 5, "branch": "main", "dirty": False}},
    }
    run = make_tracked_run(home, name, RunState.COMPLETED, uri=uri, plan=plan)
    request = run.read_json("request.json") | {"experiment": EXPERIMENT}
    (run.path / "request.json").write_text(json.dumps(request))
    config = {
        "optimizer": {"learning_rate": rate, "weight_decay": 0.01},
        "train": {"epochs": epochs, "global_batch_size": 16},
    }
    (run.path / "config.json").write_text(json.dumps(config))
    (run.path / "tags.json").write_text(json.dumps({"orchestrator.handle": f"local://{name}", **more}))
    reports = curves(rate, 100 * epochs, score=tuning, until=until)
    run.metrics.write_text("".join(json.dumps(one) + "\n" for one in reports))
    return run


def copy(run: RunFolder, *datasets: RunDataset) -> str:
    """Copy a run and return the id of its MLflow run."""
    return sync(tracking_request(run).model_copy(update={"datasets": list(datasets)})).run_id


def build_scene(home: Path, uri: str) -> Scene:
    """Fill a server: a pretraining, two fine-tunings, a sweep, and a registered model."""
    ids = {PRETRAINED: copy(add_run(home, uri, PRETRAINED, 1e-3, 4, kind="pretrain"), TEXTS)}
    start = {"orchestrator.parent": f"local://{PRETRAINED}"}
    for name, rate in ((BEST, 1e-3), (OTHER, 1e-4)):
        run = add_run(home, uri, name, rate, 3, **start)
        write_model(run.outputs)
        ids[name] = copy(run, *ROWS.values())
    rows = add_sweep(home, uri, ids, start)
    LocalBackend(home).register_model(BEST, MODEL, alias="champion")
    return Scene(uri, _experiment(uri), ids, [row.runs[0] for row in rows])


def add_sweep(home: Path, uri: str, ids: dict[str, str], start: Mapping[str, str]) -> list[TrialRow]:
    """Create and copy a sweep with six trials, one of which was stopped; add their ids and return its table."""
    space = {"optimizer.learning_rate": list(RATES), "train.epochs": [2, 4]}
    record = SweepRecord(
        name=SWEEP,
        created=STARTED,
        kind="finetune",
        sweep={
            "space": space,
            "limits": {"trials": 6},
            "objective": {"metric": "validation_score", "goal": "maximize"},
        },
        trial={"backend": "local", "tracking": {"uri": uri, "experiment": EXPERIMENT}},
        compute={},
        changes={},
        snapshot="abc",
        warnings=[],
    )
    folder, rows = make_sweep(record, home), []
    parent = ParentRun(folder, home)
    for number, (rate, epochs) in enumerate((rate, epochs) for rate in RATES for epochs in (2, 4)):
        name = f"{SWEEP}-t{number:04}"
        own = {**start, **parent.tags(), TRIAL_TAG: str(number)}
        run = add_run(home, uri, name, rate, epochs, until=None if number else STOPPED_AT, **own)
        ids[name] = copy(run, *ROWS.values())
        score = json.loads(run.metrics.read_text().splitlines()[-1])["metrics"]["validation_score"]
        settings = {"optimizer.learning_rate": rate, "train.epochs": epochs}
        rows.append(
            TrialRow(trial=number, state="completed", settings=settings, runs=[name], outcome=score, best=score)
        )
    best = max(rows, key=lambda row: row.outcome or 0)
    why = f"stopped at report 3: {rows[0].outcome:.2f} x 1.2 < {best.outcome:.2f}"
    rows[0] = rows[0].model_copy(update={"state": "stopped", "why": why})
    rows = [row.model_copy(update={"incumbent": row is best}) for row in rows]
    folder.write_state(SweepState(state=RunState.COMPLETED, ended=ENDED))
    tags = {run: trial_tags(row) for row in rows for run in row.runs}

    def collect(to: Path) -> None:
        (to / "tables").mkdir()
        (to / "tables" / "trials.json").write_text(json.dumps(trials_table(rows)))

    ids[SWEEP] = sync(parent.request().model_copy(update={"trials": tags, "collect": collect})).run_id
    return rows


def _experiment(uri: str) -> str:
    from mlflow.tracking import MlflowClient

    found = MlflowClient(tracking_uri=uri).get_experiment_by_name(EXPERIMENT)
    assert found is not None
    return str(found.experiment_id)
