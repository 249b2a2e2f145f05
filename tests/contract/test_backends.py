"""Behaviour of every backend. A new backend is added to BACKENDS and must pass.

Runs are submitted by the command line in a separate process, because a backend may block it until the run finishes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from orchestrator.backends import load_backend, require
from orchestrator.backends.base import Backend
from orchestrator.backends.capabilities import CopiesToMlflow, Inspects
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.log_query import LogQuery
from orchestrator.client import Orchestrator
from orchestrator.run import Run
from orchestrator.runs.status import Handle, RunState, RunStatus
from orchestrator.support.errors import ConflictError, NotFoundError, UsageError
from tests.conftest import SMALL_TEXT, Console, last_step, processes_of, wait_for, write_bert, write_corpus, write_spec
from tests.mlflow_runs import wait_for_copy
from tests.unit.reports.drawings import empty_figures, figures, references

BACKENDS = ("local", "debug", "polite", "azure")
AZURE = {"cluster": "cpu-ds3", "sku": "Standard_DS3_v2"}  # settings that only a job on Azure needs
STEPS = 300
LIVE = {"checkpoint": {"every": 50}, "validation": {"every": STEPS}}


def slow_settings(seed: int) -> dict[str, Any]:
    """Return the sections of a run that takes a while; another seed is another run."""
    return {**LIVE, "train": {"steps": STEPS, "log_every": 2, "seed": seed}}


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=() if one == "local" else pytest.mark.long) for one in BACKENDS],
    ids=BACKENDS,
)
def name(request: pytest.FixtureRequest, packages: Path) -> str:
    """Return a backend's name."""
    return str(request.param)


@pytest.fixture(scope="module", autouse=True)
def cloud(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Start the double of Azure for azure; environment variables alone direct clients to it."""
    if name != "azure":
        yield
        return
    from orchestrator.testing import AzureDouble

    with AzureDouble(tmp_path_factory.mktemp("azure")) as double, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.2")
        yield
        assert (double.violations, double.refused) == ([], [])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """Return a separate home for each backend."""
    return tmp_path_factory.mktemp(f"home-{name}")


@pytest.fixture
def backend(name: str, home: Path) -> Backend:
    """Return the backend as another process loads it."""
    return load_backend(name, home)


@pytest.fixture(scope="module")
def module_console(home: Path, cloud: None, tmp_path_factory: pytest.TempPathFactory) -> Console:
    """Return the command line with that home."""
    folder = tmp_path_factory.mktemp("work")
    write_corpus(folder / "corpus.txt")
    kept = {key: value for key, value in os.environ.items() if key.startswith("ORCHESTRATOR_AZURE_")}
    return Console(home=home, cwd=folder, variables=kept)


@pytest.fixture
def shell(module_console: Console, home: Path, name: str) -> Iterator[Console]:
    """Return the command line; no process of a run outlives the test."""
    yield module_console
    backend = load_backend(name, home)
    folders = [folder for run in backend.names() if (folder := backend.folder(run)) is not None]

    def found() -> dict[int, str]:
        return {pid: command for folder in folders for pid, command in processes_of(folder).items()}

    # the copy to MLflow of a run that has just ended may take some seconds more
    wait_for(lambda: not any("mlflow_sync" in one for one in found().values()), what="the copies to MLflow")
    left = found()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left behind: {left}"


def spec_words(console: Console, where: str, /, **sections: Any) -> tuple[str, ...]:
    text: dict[str, Any] = {"data": {"text": [str(console.cwd / "corpus.txt")]}}
    machines = {"compute": AZURE, "azure": {"preflight": False}} if where == "azure" else {}
    write_spec(console.cwd / "job.yaml", **text, **machines, **sections)
    return ("submit", "pretrain", "-f", "job.yaml", "-b", where)


@pytest.fixture(scope="module")
def completed(module_console: Console, name: str) -> RunStatus:
    """Return a completed run."""
    done = module_console(*spec_words(module_console, name, tags={"team": "nlp"}), "-o", "json")
    assert done.code == 0, done.err
    return RunStatus.model_validate(done.json)


def start(console: Console, backend: Backend, *words: str) -> tuple[subprocess.Popen[str], str]:
    """Yield a run that has taken a few steps, and the command that started it."""
    before = set(backend.names())
    command = console.start(*words)
    run = wait_for(lambda: set(backend.names()) - before or command.poll() is not None, what="the run")
    assert command.poll() is None, command.communicate()[1]
    (run,) = run
    wait_for(lambda: last_reported(backend, run) >= 6, what="step 6")
    return command, run


def last_reported(backend: Backend, run: str) -> int:
    """Return the last step that a run reported."""
    folder = backend.folder(run)
    if folder is not None:
        return last_step(folder)
    return max((int(report["step"]) for report in backend.metrics(run)), default=0)


def log_lines(backend: Backend, name: str, query: LogQuery) -> list[str]:
    """Return the texts of a run's log."""
    return [line.text for block in backend.logs(name, query) for line in block.lines()]


def mlflow_status(backend: Backend, run: str) -> str:
    from mlflow.tracking import MlflowClient

    status = copied(backend, run)
    return str(MlflowClient(tracking_uri=status.tracking_uri).get_run(status.mlflow_run_id).info.status)


def copied(backend: Backend, run: str) -> RunStatus:
    """Return the status of an ended run once MLflow has everything of it."""
    if isinstance(backend, CopiesToMlflow):
        wait_for_copy(RunFolder(Path(str(backend.folder(run)))))
    return backend.describe(run)


def test_request_is_pure_and_equals_dry_run(shell: Console, name: str, home: Path) -> None:
    words = spec_words(shell, name)
    shown = shell(*words, "--dry-run", "-o", "json").json["request"]
    assert shown["name"].startswith("micro-")
    orchestrator = Orchestrator(home=home, environ={})
    plan = orchestrator.plan(file=shell.cwd / "job.yaml", overrides={"backend": name})
    before = sorted(home.rglob("*"))
    submission = orchestrator.prepare(plan)
    assert orchestrator.prepare(plan) == submission
    assert submission.as_dict()["request"] == shown
    assert json.loads(submission.documents["request.json"]) == shown
    assert (submission.backend, submission.run) == (name, shown["name"])
    assert "train_jobs.pretrain" in " ".join(submission.command)
    assert sorted(home.rglob("*")) == before


def test_finetuning_request_names_no_local_data(shell: Console, name: str, home: Path) -> None:
    write_bert(shell.cwd / "bert")
    (shell.cwd / "table.tsv").write_text("text\tlabel\nw1\tx\nw2\ty\n")
    data = {"train": str(shell.cwd / "table.tsv"), "validation": str(shell.cwd / "table.tsv"), "max_length": 32}
    machines = {"compute": AZURE, "azure": {"preflight": False}} if name == "azure" else {}
    spec = {"init_from": str(shell.cwd / "bert"), "data": data, "backend": name, "tags": {"a": "b"}, **machines}
    orchestrator = Orchestrator(home=home, environ={})
    plan = orchestrator.plan("finetune", overrides={**_dotted(spec)})
    before = sorted(home.rglob("*"))
    submission = orchestrator.prepare(plan)
    assert orchestrator.prepare(plan) == submission
    assert sorted(home.rglob("*")) == before
    text = submission.request.model_dump_json()
    assert "train_jobs.finetune" in text
    assert "--cache" not in text
    if name == "azure":
        assert str(shell.cwd) not in text


def _dotted(tree: dict[str, Any]) -> dict[str, Any]:
    """Return sections as dotted keys, the form of `overrides`."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= {f"{key}.{inner}": one for inner, one in value.items()} if isinstance(value, dict) else {key: value}
    return found


def test_completed_run_has_a_full_status(backend: Backend, completed: RunStatus) -> None:
    status = backend.describe(completed.name)
    # the MLflow run may be opened after the end of a short run, which does not wait for it
    assert status == completed.model_copy(update={"mlflow_run_id": status.mlflow_run_id})
    assert status.state == RunState.COMPLETED
    assert (status.exit_code, status.ranks, status.attempt) == (0, {0: 0}, 1)
    assert (status.step, status.steps) == (12, 12)
    assert status.handle == str(backend.handle(completed.name))
    assert Handle.parse(status.handle) == backend.handle(completed.name)
    assert status.tags == {"team": "nlp"}
    assert status.created <= (status.started or 0) <= (status.ended or 0)
    assert completed.name in backend.names()
    assert status in backend.list()
    steps = [report["step"] for report in backend.metrics(completed.name) if "train_loss" in report["metrics"]]
    assert steps == [2, 4, 6, 8, 10, 12]
    assert backend.result(completed.name)["steps"] == 12
    plan = backend.plan(completed.name)
    assert plan["run_hash"] == status.run_hash
    assert plan["job"]["train"]["steps"] == 12


def test_finished_run_page_is_the_same_on_every_backend(backend: Backend, completed: RunStatus, tmp_path: Path) -> None:
    run = Run(backend, backend.handle(completed.name))
    page = run.report(tmp_path / "page.html").read_text()
    drawn = figures(page)
    assert len(drawn["MLM loss (nats per token)"]) == 6 + 2, "six reports of training, two of validation"
    assert empty_figures(page) == []
    assert "Learning rate" in drawn
    assert "Peak memory of rank 0 (GB)" in drawn
    assert "Planned and actual" in page
    assert references(page) == []


def test_logs_of_completed_run_are_complete(backend: Backend, completed: RunStatus) -> None:
    lines = log_lines(backend, completed.name, LogQuery())
    assert any(line.startswith("exported ") for line in lines)
    assert log_lines(backend, completed.name, LogQuery(follow=True)) == lines
    assert log_lines(backend, completed.name, LogQuery(tail=2)) == lines[-2:]
    with pytest.raises(NotFoundError):
        list(backend.logs(completed.name, LogQuery(ranks=(7,))))


def test_mlflow_has_each_metric_once(backend: Backend, completed: RunStatus) -> None:
    from mlflow.tracking import MlflowClient

    run_id = copied(backend, completed.name).mlflow_run_id
    assert run_id is not None
    client = MlflowClient(tracking_uri=completed.tracking_uri)
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["orchestrator.handle"] == completed.handle
    history = client.get_metric_history(run_id, "train_loss")
    assert [metric.step for metric in history] == [2, 4, 6, 8, 10, 12]


def test_download_copies_outputs(backend: Backend, completed: RunStatus, tmp_path: Path) -> None:
    (model,) = backend.fetch(completed.name, ("model",), tmp_path / "here")
    assert (model / "model.safetensors").is_file()
    with pytest.raises(NotFoundError):
        backend.fetch(completed.name, ("modle",), tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_model_is_registered_once_with_its_lineage(backend: Backend, completed: RunStatus) -> None:
    found = backend.register_model(completed.name, "words")
    assert found["name"] == "words"
    assert found["tags"]["orchestrator.run"] == completed.name
    assert found["tags"]["orchestrator.lineage"] == backend.lineage(completed.name).lineage.head.hash
    assert backend.register_model(completed.name, "words") == found
    assert backend.register_model(completed.name)["name"] == "micro"


def test_endpoint_answers_until_deleted(backend: Backend, completed: RunStatus, name: str, home: Path) -> None:
    if name in {"debug", "polite"}:
        pytest.skip("the same as on local")
    found = backend.deploy_model(completed.name, "masked-words")
    with pytest.raises(ConflictError):
        backend.deploy_model(completed.name, "masked-words")
    if name == "local":
        data = json.dumps({"inputs": ["[MASK] ba [MASK]"], "top": 3}).encode()
        with urlopen(found["uri"], data=data, timeout=60) as reply:
            (masks,) = json.load(reply)["outputs"]
        assert [len(mask) for mask in masks] == [3, 3]
        assert 1 > masks[0][0]["probability"] >= masks[0][1]["probability"] > 0
        with pytest.raises(HTTPError) as failure:
            urlopen(found["uri"], data=b"{}", timeout=60)
        with failure.value as refused:
            assert (refused.code, "inputs" in json.load(refused)["error"]) == (400, True)
        kept = Orchestrator(home=home, environ={}).pruning(keep_last=0).kept
        assert kept[completed.name] == "endpoint masked-words needs its files"
    else:
        assert found["uri"].endswith("/score")
        with pytest.raises(UsageError, match="does not check the signature"):
            backend.deploy_model(completed.name, "signed-words", key=Path("signing.pub"))
    backend.delete_endpoint("masked-words")
    assert completed.name not in Orchestrator(home=home, environ={}).pruning(keep_last=0).kept
    with pytest.raises(NotFoundError):
        backend.delete_endpoint("masked-words")
    for wrong in ("UPPER", "x"):
        with pytest.raises((UsageError, NotFoundError)):
            backend.deploy_model(completed.name, wrong)


def test_finished_run_refuses_changes(backend: Backend, completed: RunStatus) -> None:
    backend.cancel(completed.name)
    assert backend.describe(completed.name).state == RunState.COMPLETED
    for order in (backend.preempt, backend.resume, *_inspections(backend)):
        with pytest.raises(ConflictError):
            order(completed.name)


def _inspections(backend: Backend) -> list[Callable[[str], Any]]:
    """Return the methods that inspect processes, if the backend has any."""
    return [backend.stacks] if isinstance(backend, Inspects) else []


def test_missing_capability_names_backends_that_have_it(backend: Backend, completed: RunStatus) -> None:
    if isinstance(backend, Inspects):
        assert require(backend, Inspects) is backend
        return
    with pytest.raises(UsageError) as refusal:
        Run(backend, backend.handle(completed.name)).stacks()
    assert refusal.value.facts == {"supported by": "debug, local"}
    assert "orchestrator download RUN stacks" in str(refusal.value.fix)


def test_every_method_refuses_a_missing_run(backend: Backend, tmp_path: Path) -> None:
    unknown = "no-such-run"
    questions = (backend.describe, backend.metrics, backend.plan, backend.result, backend.folder)
    orders = (backend.cancel, backend.preempt, backend.resume, backend.delete, *_inspections(backend))
    for ask in (*questions, *orders):
        with pytest.raises(NotFoundError):
            list(found) if (found := ask(unknown)) else None
    with pytest.raises(NotFoundError):
        list(backend.logs(unknown, LogQuery()))
    with pytest.raises(NotFoundError):
        backend.fetch(unknown, ("model",), tmp_path)


def test_invalid_input_fails_run_without_restart(shell: Console, backend: Backend, name: str) -> None:
    """The plan counts two documents; only the job finds out that they are identical."""
    document = SMALL_TEXT.replace("\n\n", " ")
    (shell.cwd / "same.txt").write_text(f"{document}\n{document}")
    words = spec_words(shell, name, max_restarts=3)
    failed = shell(*words, "--data", "same.txt", "-o", "json")
    assert failed.code == 2
    status = failed.json
    assert (status["state"], status["exit_code"], status["attempt"]) == ("failed", 2, 1)
    assert status["reason"].startswith("error[data]")
    backend.delete(status["name"])
    assert status["name"] not in backend.names()


@pytest.mark.long
@pytest.mark.live
def test_cancel_saves_and_resume_continues(shell: Console, backend: Backend, name: str) -> None:
    words = spec_words(shell, name, **slow_settings(1))
    command, run = start(shell, backend, *words)
    status = backend.describe(run)
    assert status.state == RunState.RUNNING
    assert not status.state.terminal
    with pytest.raises(ConflictError):
        backend.resume(run)
    with pytest.raises(ConflictError):
        backend.delete(run)
    backend.cancel(run)
    command.communicate(timeout=60)
    assert command.returncode == 75
    status = backend.describe(run)
    assert (status.state, status.reason) == (RunState.CANCELLED, "cancelled")
    assert mlflow_status(backend, run) == "KILLED"
    again = shell(*words)
    assert (again.code, again.out) == (1, "")
    assert f"orchestrator resume {run}" in again.err
    assert "--new" in again.err
    resumed = shell("resume", run, "-o", "json")
    assert resumed.code == 0, resumed.err
    assert (resumed.json["state"], resumed.json["attempt"]) == ("completed", 2)
    assert mlflow_status(backend, run) == "FINISHED"
    assert any("resumed at step" in line for line in log_lines(backend, run, LogQuery()))
    steps = [report["step"] for report in backend.metrics(run) if "train_loss" in report["metrics"]]
    assert steps == list(range(2, STEPS + 2, 2))


@pytest.mark.live
def test_preempted_run_restarts_automatically(shell: Console, backend: Backend, name: str) -> None:
    command, run = start(shell, backend, *spec_words(shell, name, **slow_settings(2), max_restarts=1))
    backend.preempt(run)
    command.communicate(timeout=120)
    assert command.returncode == 0
    status = backend.describe(run)
    assert (status.state, status.attempt) == (RunState.COMPLETED, 2)
    assert [attempt.state for attempt in status.attempts] == [RunState.PREEMPTED, RunState.COMPLETED]


@pytest.mark.long
@pytest.mark.live
def test_run_of_killed_supervisor_can_be_resumed(shell: Console, backend: Backend, name: str) -> None:
    if name == "azure":
        pytest.skip("Azure runs have no supervisor on this machine")
    command, run = start(shell, backend, *spec_words(shell, name, **slow_settings(3)))
    folder = Path(str(backend.folder(run)))
    os.kill(json.loads((folder / "state.json").read_text())["pid"], signal.SIGKILL)
    wait_for(lambda: backend.describe(run).state == RunState.FAILED, what="the failed state")
    assert "supervisor lost" in str(backend.describe(run).reason)
    command.communicate(timeout=60)
    wait_for(
        lambda: not any("mlflow_sync" not in one for one in processes_of(folder).values()),
        seconds=45,
        what="the end of the job",
    )
    resumed = shell("resume", run, "-o", "json")
    assert resumed.code == 0, resumed.err
    assert backend.describe(run).state == RunState.COMPLETED
