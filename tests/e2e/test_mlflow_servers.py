"""Runs on real MLflow servers: equal to a local store, each value once, whatever the network does to a copy."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.backends.folder.mlflow_sync import is_behind, sync_run
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.cli.main import main
from orchestrator.runs.tracked_run import Synced, default_uri
from orchestrator.support.errors import ServiceError
from tests.conftest import Console, processes_of, wait_for, write_corpus, write_spec
from tests.mlflow_runs import STEPS, make_tracked_run, stored, wait_for_copy
from tests.mlflow_servers import (
    Fault,
    MlflowServer,
    active_runs,
    at_random,
    cut,
    delayed,
    everything,
    lost_answer,
    postgres,
    proxied,
    running,
    server_python,
    too_large,
)
from tests.unit.finetuning.finetune_jobs import write_model
from train_jobs.artifacts.metrics_file import metric_files
from train_jobs.artifacts.tracking.run_files import FILES_TAG
from train_jobs.engine.reporting.metrics import MetricsLog
from train_jobs.tools.mirror import MirrorThread

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with running(MlflowServer(tmp_path_factory.mktemp("server"))) as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home whose commands wait for nothing: a client that repeats immediately."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def submitted(console: Console, uri: str, **sections: object) -> RunFolder:
    """Train a small model that is tracked at an address."""
    corpus = str(write_corpus(console.cwd / "corpus.txt"))
    write_spec(console.cwd / "job.yaml", data={"text": [corpus]}, tracking={"uri": uri}, **sections)
    done = console("submit", "pretrain", "-f", "job.yaml", "-o", "json")
    assert done.code == 0, done.err
    return RunFolder(console.folder(done.json["name"]))


def expected_values(run: RunFolder) -> int:
    """Return the number of values that a run reported."""
    lines = [line for file in metric_files(run.metrics) for line in file.read_text().splitlines()]
    return sum(len(json.loads(line)["metrics"]) for line in lines)


def copied_values(uri: str, run_id: str, scratch: Path) -> int:
    return sum(len(values) for values in everything(uri, run_id, scratch)["metrics"].values())


@pytest.mark.slow
def test_server_has_what_a_local_store_has(tmp_path: Path, server: MlflowServer) -> None:
    console = Console(home=tmp_path / "home", cwd=tmp_path)
    run = submitted(console, server.uri)
    here = everything(server.uri, wait_for_copy(run), tmp_path / "here")
    store = f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}"
    done = console("mlflow", "sync", run.name, "--to", store, "-o", "json")
    assert done.code == 0, done.err
    there = everything(store, done.json["runs"][0]["run_id"], tmp_path / "there")
    assert here == there
    assert here["info"]["status"] == "FINISHED"
    assert {"spec.yaml", "report.html", "lineage.json"} <= here["files"].keys()
    assert not is_behind(run)
    again = console("mlflow", "sync", run.name, "-o", "json")
    assert again.json["runs"][0]["values"] == 0
    assert everything(server.uri, str(run.mlflow_run_id), tmp_path / "again") == here


@pytest.mark.slow
def test_server_that_was_away_gets_the_run_later(tmp_path: Path) -> None:
    """It is away while a run starts, trains and ends, and comes back with what it had."""
    console = Console(home=tmp_path / "home", cwd=tmp_path, variables={"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"})
    folder = tmp_path / "server"
    folder.mkdir()
    with running(MlflowServer(folder)) as server:
        first = wait_for_copy(submitted(console, server.uri))
        server.kill()
        other = submitted(console, server.uri, train={"steps": 16})
        wait_for(lambda: bool(other.behind_file.read_text()), what="the warning")
        shown = console("status", other.name).out
        assert other.state().state == "completed"
        assert f"orchestrator mlflow sync {other.name}" in shown
        # the copy that began at the end of the run would find the server again
        wait_for(lambda: not any("mlflow_sync" in one for one in processes_of(other.path).values()), what="the copies")
        server.start()
        for values in (expected_values(other), 0):
            done = console("mlflow", "sync", other.name, "-o", "json")
            assert (done.code, done.json["runs"][0]["values"]) == (0, values), done.err
        assert len(active_runs(server.uri)) == 2
        assert not is_behind(other)
        histories = everything(server.uri, str(other.mlflow_run_id), tmp_path / "read")["metrics"]
        assert all(len({step for step, _, _ in kept}) == len(kept) for kept in histories.values())
        assert everything(server.uri, first, tmp_path / "first")["info"]["status"] == "FINISHED"


@pytest.mark.slow
def test_run_on_a_failing_server_arrives_once(tmp_path: Path, server: MlflowServer) -> None:
    """A sixth of all requests of the job and of the copies fails. The job does not notice; the command repairs."""
    prompt = {"MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0", "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0"}
    console = Console(home=tmp_path / "home", cwd=tmp_path, variables=prompt)
    with proxied(server.uri, at_random(7, 0.17)) as proxy:
        run = submitted(console, proxy.uri, train={"steps": 20})
        assert run.state().state == "completed"
        wait_for(lambda: console("mlflow", "sync", run.name).code == 0, seconds=600, what="a copy")
        assert proxy.faults > 3
    (found,) = [one for one in active_runs(server.uri) if one.info.run_name == run.name]
    store = f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}"
    copied = console("mlflow", "sync", run.name, "--to", store, "-o", "json").json["runs"][0]
    assert copied["values"] == expected_values(run)
    here = everything(server.uri, found.info.run_id, tmp_path / "here")
    there = everything(store, copied["run_id"], tmp_path / "there")
    differing = [name for name, content in there["files"].items() if here["files"].get(name) != content]
    assert differing == []
    assert here == there


SECRET = "quokka-4711-password"  # of the server's only user


@pytest.fixture(scope="module")
def private_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """Return a server that asks for a user and a password."""
    python, folder = server_python("flask_wtf"), tmp_path_factory.mktemp("private")
    (folder / "auth.ini").write_text(
        f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{folder}/users.db\nadmin_username = admin\n"
        f"admin_password = {SECRET}\nauthorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    variables = {"MLFLOW_FLASK_SERVER_SECRET_KEY": "test", "MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini")}
    server = MlflowServer(folder, words=("--app-name", "basic-auth"), variables=variables, python=python)
    with running(server):
        yield server


@pytest.mark.slow
def test_wrong_password_leaves_a_note_and_is_repaired(
    tmp_path: Path, private_server: MlflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = {"MLFLOW_TRACKING_USERNAME": "admin"}
    console = Console(home=tmp_path / "home", cwd=tmp_path, variables={**user, "MLFLOW_TRACKING_PASSWORD": "wrong"})
    run = submitted(console, private_server.uri)
    assert run.state().state == "completed"
    refused = console("mlflow", "sync", run.name)
    assert refused.code == 7
    assert "reason  the server refused the credentials" in refused.err
    assert "export MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN" in refused.err
    assert "the server refused the credentials" in console("status", run.name).out
    elsewhere = console("mlflow", "sync", "--all", "--to", private_server.uri)
    assert (elsewhere.code, "error[auth]: cannot sign in to MLflow" in elsewhere.err) == (3, True)
    right = {**user, "MLFLOW_TRACKING_PASSWORD": SECRET}
    repaired = console("mlflow", "sync", run.name, "-o", "json", **right)
    assert repaired.code == 0, repaired.err
    for name, value in right.items():
        monkeypatch.setenv(name, value)
    found = everything(private_server.uri, repaired.json["runs"][0]["run_id"], tmp_path / "read")
    assert (found["info"]["status"], "report.html" in found["files"]) == ("FINISHED", True)
    # the job itself, and the process that copies, sign in with what the command had
    second = submitted(
        Console(home=console.home, cwd=tmp_path, variables=right), private_server.uri, train={"steps": 16}
    )
    wait_for_copy(second)
    holding = [path for path in console.home.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert holding == [], "a password belongs in no file"


# Faults between a copy and its server


@pytest.mark.parametrize(("fault", "requests"), [(lost_answer, 2), (cut, 1)], ids=["lost", "cut"])
def test_lost_answer_to_a_creation_leaves_one_run(
    home: Path, server: MlflowServer, fault: Fault, requests: int
) -> None:
    """The server has created the run. MLflow's client repeats the request after a 500, but not after half an answer."""
    failed: list[str] = []

    def choose(method: str, path: str, number: int) -> Fault | None:
        if not path.endswith("runs/create") or failed:
            return None
        failed.append(path)
        return fault

    with proxied(server.uri, choose) as proxy:
        run = make_tracked_run(home, f"created-{requests}", uri=proxy.uri)
        if fault is cut:
            with pytest.raises(ServiceError, match="cannot copy created-1 to MLflow"):
                sync_run(run)
        assert sync_run(run).values == 80
        assert proxy.requests.count(("POST", "/api/2.0/mlflow/runs/create")) == requests
    named = [one for one in active_runs(server.uri) if one.info.run_name == run.name]
    assert [one.info.status for one in named] == ["FINISHED"]


def test_refused_upload_of_a_model_is_an_error_of_the_server(home: Path, server: MlflowServer) -> None:
    """A proxy may limit the size of bodies; the next attempt registers the model."""

    def choose(method: str, path: str, number: int) -> Fault | None:
        return too_large if method == "PUT" and path.endswith("model.safetensors") else None

    with proxied(server.uri, choose) as proxy:
        run = make_tracked_run(home, "refused", uri=proxy.uri, plan={"environment": {"python": "3.11", "torch": "2"}})
        assert write_model(run.model.parent) == run.model
        with pytest.raises(ServiceError, match="cannot register the model of run refused") as caught:
            LocalBackend(home).register_model("refused")
        assert "413" in str(caught.value.facts["reason"])
        proxy.choose = lambda *_: None
        assert LocalBackend(home).register_model("refused")["version"] == "1"


@pytest.mark.parametrize("seed", [1, 2, pytest.param(range(3, 23), marks=pytest.mark.slow)])
def test_random_faults_lose_nothing_and_repeat_nothing(
    home: Path, server: MlflowServer, seed: int | range, tmp_path: Path
) -> None:
    """A third of all requests fails: 429, 500 before and after the deed, cut, reset, late."""
    for one in (seed,) if isinstance(seed, int) else seed:
        with proxied(server.uri, at_random(one, 0.33)) as proxy:
            run = make_tracked_run(home, f"faults-{one}", uri=proxy.uri)
            sync_until_copied(run)
            assert not is_behind(run)
            assert proxy.faults > 3
        (found,) = [known for known in active_runs(server.uri) if known.info.run_name == run.name]
        read = everything(server.uri, found.info.run_id, tmp_path / f"read-{one}")
        assert read["info"]["status"] == "FINISHED"
        assert {key: [step for step, _, _ in kept] for key, kept in read["metrics"].items()} == {
            "loss": list(STEPS),
            "rate": list(STEPS),
        }
        assert json.loads(read["files"]["artifacts.json"]).keys() | {"artifacts.json"} == read["files"].keys()


@pytest.mark.slow
def test_batch_survives_a_restart_of_its_server(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server is killed in the middle of a batch and started again: all runs arrive, each once."""
    names = [f"run-{number:02}" for number in range(12)]
    for name in names:
        make_tracked_run(home, name)
    folder = tmp_path / "server"
    folder.mkdir()
    with running(MlflowServer(folder)) as server:
        restarted: list[threading.Thread] = []

        def choose(method: str, path: str, number: int) -> Fault | None:
            if number == 60:
                server.kill()
                restarted.append(threading.Thread(target=server.start))
                restarted[0].start()
            return None

        with proxied(server.uri, choose) as proxy:
            assert main(["mlflow", "sync", "--all", "--to", proxy.uri]) == 0, capsys.readouterr().err
        restarted[0].join()
        assert capsys.readouterr().out.splitlines()[-1] == "12 of 12 in MLflow"
        assert sorted(one.info.run_name for one in active_runs(server.uri)) == names
        for one in active_runs(server.uri):
            assert one.info.status == "FINISHED"
            assert copied_values(server.uri, one.info.run_id, tmp_path / one.info.run_id) == 80


@pytest.mark.slow
def test_thousand_runs_in_a_batch_arrive_once(tmp_path: Path) -> None:
    """A second copy to the same server adds nothing."""
    console, folder = Console(home=tmp_path / "home", cwd=tmp_path), tmp_path / "server"
    names = [f"run-{number:04}" for number in range(1000)]
    for name in names:
        make_tracked_run(console.home, name)
    folder.mkdir()
    with running(MlflowServer(folder)) as server:
        for values in (80, 0):
            done = console("mlflow", "sync", "--all", "--to", server.uri, "-o", "json", timeout=1800)
            assert done.code == 0, done.err
            assert {one["name"]: one["values"] for one in done.json["runs"]} == dict.fromkeys(names, values)
            assert stored(folder, "server.db") == [(name, "FINISHED", 80) for name in names]
        found = active_runs(server.uri)
        assert sorted(one.info.run_name for one in found) == names
        assert all(FILES_TAG in one.data.tags for one in found), "every run has its artifacts"


@pytest.mark.slow
def test_server_on_postgres_has_what_a_local_store_has(home: Path, tmp_path: Path) -> None:
    """Also when a third of its requests fails."""
    folder, python = tmp_path / "server", server_python("psycopg2")
    folder.mkdir()
    with postgres() as backend, running(MlflowServer(folder, backend=backend, python=python)) as server:
        for seed in range(5):
            run = make_tracked_run(home, f"run-{seed}")
            local = sync_run(run)
            with proxied(server.uri, at_random(seed, 0.33 if seed else 0)) as proxy:
                copied = sync_until_copied(run, proxy.uri)
            assert sync_run(run, server.uri) == Synced(copied, "FINISHED", 0, None)
            here = everything(server.uri, copied, tmp_path / f"here-{seed}")
            assert here == everything(default_uri(home), local.run_id, tmp_path / f"there-{seed}")
        assert len(active_runs(server.uri)) == 5


def sync_until_copied(run: RunFolder, uri: str | None = None) -> str:
    """Copy a run again and again until a copy succeeds; return the id of its MLflow run."""
    for _ in range(50):
        with suppress(ServiceError):
            return sync_run(run, uri).run_id
    raise AssertionError("50 copies failed")


# A slow server


@pytest.mark.slow
def test_slow_server_takes_no_hundredth_of_a_core(
    server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request takes 2 s. The thread that copies while a job trains waits, and leaves the core to the job."""
    client = server.client()
    run_id = client.create_run("0", run_name="slow").info.run_id
    with proxied(server.uri, lambda method, path, number: delayed(2.0)) as proxy:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.uri)
        monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
        mirror, log = MirrorThread(tmp_path / "metrics.jsonl"), MetricsLog(tmp_path / "metrics.jsonl")
        mirror.start()
        log.open(from_step=0)
        clock = time.pthread_getcpuclockid(mirror._thread.ident or 0)
        spent, began = time.clock_gettime(clock), time.monotonic()
        steps = range(1, 401)
        for step in steps:  # ten reports a second for 40 s
            log.report(step, dict.fromkeys(("loss", "rate", "norm", "speed"), 1 / step))
            time.sleep(0.1)
        share = (time.clock_gettime(clock) - spent) / (time.monotonic() - began)
        log.close()
        mirror.close()
    print(f"{share:.2%} of a core")
    assert share < 0.01
    assert [one.step for one in client.get_metric_history(run_id, "loss")] == list(steps)


# A server away for longer than the client of MLflow repeats a request

OUTAGE_SECONDS = float(os.environ.get("ORCHESTRATOR_TEST_OUTAGE_SECONDS", "300"))
REPEATED_SECONDS = (
    600  # the client repeats a request for about four minutes; waits between repetitions reach two minutes
)


@pytest.mark.slow
@pytest.mark.timeout(OUTAGE_SECONDS + 2 * REPEATED_SECONDS)
def test_outage_while_a_job_trains_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The client gives up at least once, with its own settings. The job copies the rest when the server is back."""
    folder, file = tmp_path / "server", tmp_path / "metrics.jsonl"
    folder.mkdir()
    with running(MlflowServer(folder)) as server:
        client = server.client()
        run_id = client.create_run("0", run_name="outage").info.run_id
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
        mirror, log, steps = MirrorThread(file), MetricsLog(file), itertools.count(1)

        def report() -> int:
            """Report a step, one a second, and return it."""
            time.sleep(1)
            log.report(step := next(steps), {"loss": 1 / step})
            return step

        def copied() -> list[int]:
            return [one.step for one in client.get_metric_history(run_id, "loss")]

        log.open(from_step=0)
        mirror.start()
        wait_for(lambda: report() and copied(), what="the first copy")
        server.kill()
        away = time.monotonic()
        while time.monotonic() < away + OUTAGE_SECONDS:
            last = report()
        server.start()
        wait_for(lambda: report() and last in copied(), seconds=REPEATED_SECONDS, what="the copy of the outage")
        last = report()
        log.close()
        mirror.close()
        assert copied() == list(range(1, last + 1))
    assert capfd.readouterr().err.count("the copy in MLflow is behind") > 0, "the client gave up"
