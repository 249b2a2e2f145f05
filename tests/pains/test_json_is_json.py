"""Pain 3: JSON mixed with prose. With `-o json`, stdout of every verb is one document."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from orchestrator.cli.main import build_parser
from orchestrator.runs.status import RunState
from tests.conftest import Console, write_spec
from tests.run_folders import make_run, report

WITHOUT_DOCUMENT = {"completion"}  # prints a script
SWEEP = ("show", "best", "report", "extend", "retry")
MODEL = ("register", "deploy", "endpoints", "traffic", "rollback", "delete", "sign", "verify", "convert")
ASSET = ("create", "list", "show")
CLUSTER = ("create", "list", "show", "scale", "delete")
SUBMIT = ("submit", "pretrain", "-f", "job.yaml")
SUCCEEDING = {
    "submit": [(*SUBMIT, "--dry-run"), SUBMIT, (*SUBMIT, "-d")],
    "plan": [("plan", "pretrain", "-f", "job.yaml")],
    "validate": [("validate", "pretrain", "-f", "job.yaml")],
    "list": [("list",), ("list", "--state", "running"), ("list", "--limit", "1")],
    "status": [("status", "done"), ("status", "done", "--watch"), ("status", "broken")],
    "logs": [("logs", "done"), ("logs", "broken")],
    "report": [("report", "done", "--to", "report.html")],
    "attach": [("attach", "done")],
    "wait": [("wait", "done", "--timeout", "1s")],
    "cancel": [("cancel", "done", "failed"), ("cancel", "done", "--no-wait")],
    "preempt": [],  # needs a running run: tests/contract
    "resume": [],  # likewise
    "debug": [],  # likewise: tests/e2e/test_looking_inside.py
    "download": [("download", "done", "plan", "--to", "to")],
    "data fetch": [],  # needs a test server: tests/unit/fetch
    "data show": [],  # needs a store: tests/e2e/test_preparing.py
    "data verify": [],  # likewise
    **{
        f"data asset {action}": [] for action in ASSET
    },  # needs a workspace of Azure ML: tests/wire/test_azure_data_assets.py
    "prune": [
        ("prune", "--keep-last", "4", "--dry-run"),
        ("prune", "--keep-last", "4", "-y"),
        ("prune", "--keep-last", "9"),
    ],
    "diff": [("diff", "done", "failed"), ("diff", "done", "failed", "--code")],
    "cost": [("cost", "done"), ("cost", "--all")],
    **{f"cluster {action}": [] for action in CLUSTER},  # needs a workspace of Azure ML
    "supervise": [("supervise", "done")],
    "skus": [("skus",), ("skus", "--gpus", "H100:8")],
    "home share": [],  # needs ACLs: tests/unit/orchestrator/test_other_users.py
    "home unshare": [("home", "unshare")],
    "init": [("init", "project"), ("init", "everything", "--full", "--template", "finetune")],
    "explain": [("explain", "train.steps"), ("explain", "checkpoint", "--kind", "finetune")],
    "doctor": [("doctor",)],
    "mlflow sync": [],  # tests/unit/orchestrator/test_mlflow_sync.py
    "sweep list": [("sweep", "list")],
    **{f"sweep {action}": [] for action in SWEEP},  # needs a sweep: tests/unit/sweeps
    **{f"model {action}": [] for action in MODEL},  # tests/contract, tests/wire, tests/unit/lineage/test_model_trust.py
    "model convert": [("model", "convert", "pickled")],
}
FAILING = {
    "submit": [("submit", "pretrain", "--set", "train.stpes=1"), ("submit", "pretrain", "-b", "nowhere")],
    "plan": [("plan", "pretrain", "-f", "missing.yaml")],
    "validate": [("validate", "pretrain", "--data", "missing.txt")],
    "list": [("list", "--state", "faled"), ("list", "-b", "nowhere")],
    "status": [("status", "missing")],
    "logs": [("logs", "missing"), ("logs", "done", "--rank", "7")],
    "report": [("report", "done", "--to", "missing/report.html")],
    "attach": [("attach", "missing"), ("attach", "failed")],
    "wait": [("wait", "missing"), ("wait", "failed")],
    "cancel": [("cancel", "missing")],
    "preempt": [("preempt", "done")],
    "resume": [("resume", "done")],
    "debug": [("debug", "done"), ("debug", "missing")],
    "download": [("download", "done", "nothing")],
    "data fetch": [("data", "fetch", "what?"), ("data", "fetch", "squad", "--date", "20260101"), ("data", "fetch")],
    "data show": [("data", "show", "missing"), ("data", "show")],
    "data verify": [("data", "verify", "missing")],
    "data asset create": [("data", "asset", "create", "notes", "missing"), ("data", "asset", "create")],
    "data asset list": [("data", "asset", "list", "--xyzzy")],
    "data asset show": [("data", "asset", "show")],
    "prune": [("prune",), ("prune", "--older-than", "soon")],
    "diff": [("diff", "done"), ("diff", "done", "broken")],
    "cost": [("cost",), ("cost", "broken")],
    **{f"cluster {action}": [("cluster", action, "--min-nodes", "-1")] for action in CLUSTER},
    "supervise": [("supervise", "missing")],
    "skus": [("skus", "T4"), ("skus", "--gpus", "B100")],
    "home share": [("home", "share", "--group", "no-such-team"), ("home", "share")],
    "home unshare": [("home", "unshare", "one")],
    "init": [("init", "project", "--template", "other"), ("init", "project", "--recipe", "base")],
    "explain": [("explain", "train.stepps"), ("explain", "train.steps", "--kind", "other")],
    "doctor": [("doctor", "-b", "nowhere")],
    "mlflow sync": [("mlflow", "sync", "missing"), ("mlflow", "sync"), ("mlflow", "sync", "--all", "--to", "x")],
    "sweep list": [("sweep", "list", "--all")],
    **{f"sweep {action}": [("sweep", action, "missing")] for action in SWEEP if action != "extend"},
    "sweep extend": [("sweep", "extend", "missing", "--trials", "3"), ("sweep", "extend", "missing")],
    "model register": [("model", "register", "failed"), ("model", "register", "missing")],
    "model deploy": [("model", "deploy", "done"), ("model", "deploy", "failed", "--endpoint", "bert")],
    "model endpoints": [("model", "endpoints", "bert")],  # without a workspace
    "model traffic": [("model", "traffic", "bert", "blue=90,blue=10", "-y"), ("model", "traffic", "bert")],
    "model rollback": [("model", "rollback", "bert"), ("model", "rollback")],
    "model sign": [("model", "sign", "missing", "--key", "missing.pem"), ("model", "sign", "done")],
    "model verify": [("model", "verify", "missing", "--key", "missing.pub")],
    "model convert": [("model", "convert", "missing"), ("model", "convert"), ("model", "convert", "damaged")],
    "model delete": [("model", "delete", "missing", "-y"), ("model", "delete", "missing")],
}


def verbs_with_documents(parser: argparse.ArgumentParser | None = None) -> set[str]:
    """Return all verbs; those of groups as `data fetch`."""
    styled = set()
    (action,) = (a for a in (parser or build_parser())._actions if isinstance(a, argparse._SubParsersAction))
    for verb, below in action.choices.items():
        if any(isinstance(a, argparse._SubParsersAction) for a in below._actions):
            styled |= {f"{verb} {name}" for name in verbs_with_documents(below)}
        elif "--output" in below._option_string_actions:
            styled.add(verb)
        else:
            assert verb in WITHOUT_DOCUMENT
    return styled


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home with finished runs, one of them damaged, and a spec whose run already exists."""
    folder = tmp_path_factory.mktemp("json")
    console = Console(home=folder / "home", cwd=folder)
    write_spec(folder / "job.yaml", data={"text": []})
    plan = console("plan", "pretrain", "-f", "job.yaml", "-o", "json").json["plan"]
    attempts: list[dict[str, Any]] = [{"started": 0.0, "ended": 60.0}]
    for age, (name, state) in enumerate([(plan["name"], "completed"), ("done", "completed"), ("failed", "failed")]):
        run = make_run(console.home, name, RunState(state), age=age, plan=plan, attempts=attempts, ended=60.0)
        report(run, 5, train_loss=float("nan"), validation_loss=2.0)
        run.rank_log(0).write_text("a line\n")
        run.code.mkdir()
    (folder / "pickled").mkdir()
    torch.save({"weight": torch.ones(2)}, folder / "pickled" / "pytorch_model.bin")
    (folder / "damaged").mkdir()
    (folder / "damaged" / "pytorch_model.bin").write_bytes(b"")
    (make_run(console.home, "broken", age=9).path / "plan.json").write_text("{")
    make_run(console.home, "old", age=99, plan=plan)
    return folder


@pytest.fixture
def shell(home: Path) -> Console:
    """Return a console on the shared home; only `prune` changes it and deletes the oldest run."""
    return Console(home=home / "home", cwd=home)


def refuse_constants(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def cases(table: dict[str, list[tuple[str, ...]]]) -> list[Any]:
    return [pytest.param(words, id=" ".join(words)) for rows in table.values() for words in rows]


def test_all_verbs_with_document_have_cases() -> None:
    assert verbs_with_documents() == SUCCEEDING.keys() == FAILING.keys()


@pytest.mark.parametrize("words", cases(SUCCEEDING))
def test_success_prints_one_document(shell: Console, words: tuple[str, ...]) -> None:
    if words[0] in WITHOUT_DOCUMENT:
        pytest.skip(f"{words[0]} prints lines")
    done = shell(*words, "-o", "json", ORCHESTRATOR_TRIAN__STEPS="1")  # causes a warning in verbs that plan
    assert "Traceback" not in done.err
    document = json.loads(done.out, parse_constant=refuse_constants)
    assert "error" not in document
    if words[0] in {"submit", "plan", "validate"}:
        assert "warning: ORCHESTRATOR_TRIAN__STEPS is ignored" in done.err


@pytest.mark.long
@pytest.mark.parametrize("words", cases(FAILING))
def test_error_prints_one_document(shell: Console, words: tuple[str, ...]) -> None:
    if words[0] in WITHOUT_DOCUMENT:
        pytest.skip(f"{words[0]} prints lines")
    done = shell(*words, "-o", "json")
    assert done.code != 0
    assert "Traceback" not in done.err
    document = json.loads(done.out)
    if isinstance(document, dict) and "error" in document:
        assert document["error"]["kind"] != "bug"
        assert f"error[{document['error']['kind']}]: " in done.err


def test_yaml_output_is_same_document(shell: Console) -> None:
    for words in (("status", "done"), ("cost", "done"), ("diff", "done", "failed")):
        assert yaml.safe_load(shell(*words, "-o", "yaml").out) == shell(*words, "-o", "json").json
