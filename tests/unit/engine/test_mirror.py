"""The MLflow mirror against a real store: every value arrives once despite crashes."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from train_jobs.artifacts.lineage import ExternalFacts, Lineage, Link
from train_jobs.artifacts.tracking.mlflow_copy import Destination, Mirror
from train_jobs.config import PretrainConfig, StorageError
from train_jobs.engine.reporting import metrics
from train_jobs.engine.reporting.metrics import MetricsLog
from train_jobs.tools import mirror
from train_jobs.tools.mirror import MirrorThread

CONFIG = PretrainConfig.model_validate({"data": {"text": ["notes"]}})
NOWHERE = "http://127.0.0.1:9"


@dataclass
class Store:
    """A tracking store and one of its runs."""

    uri: str
    client: MlflowClient
    run_id: str

    def history(self, key: str) -> list[tuple[int, float]]:
        """Return (step, value) pairs ordered by step."""
        found = self.client.get_metric_history(self.run_id, key)
        return sorted((metric.step, metric.value) for metric in found)

    def steps(self, key: str) -> list[int]:
        return [step for step, _ in self.history(key)]

    def mirror(self, path: Path) -> Mirror:
        """Return a new mirror without the state of earlier ones."""
        return Mirror(path, Destination(self.uri, self.run_id))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, MlflowClient]:
    """Return a SQLite store; creating its tables takes seconds."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    client.search_experiments()
    return uri, client


@pytest.fixture
def store(server: tuple[str, MlflowClient]) -> Store:
    """Return a new run in the store."""
    uri, client = server
    return Store(uri, client, client.create_run("0").info.run_id)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def environ(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables that the submitter of a job sets."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    monkeypatch.setenv("MLFLOW_RUN_ID", store.run_id)


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables of a server that is down."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")


def write(path: Path, *steps: int, from_step: int = 0, keys: tuple[str, ...] = ("train_loss",)) -> None:
    """Report `steps` like a run that resumes at `from_step`."""
    log = MetricsLog(path)
    log.open(from_step=from_step)
    for step in steps:
        log.report(step, dict.fromkeys(keys, step / 8))
    log.close()


def wait_for(store: Store, key: str, steps: list[int]) -> None:
    limit = time.monotonic() + 20
    while store.steps(key) != steps:
        assert time.monotonic() < limit, f"{key} has steps {store.steps(key)}, not {steps}"
        time.sleep(0.05)


def test_mirror_copies_each_value_once_with_step_and_time(store: Store, path: Path) -> None:
    write(path, 2, 4, keys=("train_loss", "learning_rate"))
    mirror = store.mirror(path)
    assert mirror.catch_up() == 4
    assert mirror.catch_up() == 0
    assert store.history("train_loss") == store.history("learning_rate") == [(2, 0.25), (4, 0.5)]
    (first, _) = store.client.get_metric_history(store.run_id, "train_loss")
    assert first.timestamp == int(json.loads(path.read_text().splitlines()[0])["time"] * 1000)


def test_mirror_reads_only_new_lines(store: Store, path: Path) -> None:
    write(path, 2)
    mirror = store.mirror(path)
    assert mirror.catch_up() == 1
    path.write_text(path.read_text().replace("train_loss", "other_loss"))
    write(path, 4, from_step=2)
    with path.open("a") as stream:
        stream.write('{"step": 6, "time": 1')
    assert mirror.catch_up() == 1
    with path.open("a") as stream:
        stream.write('7.5, "metrics": {"train_loss": 3.0}}\n')
    assert mirror.catch_up() == 1
    assert store.history("train_loss") == [(2, 0.25), (4, 0.5), (6, 3.0)]


def test_mirror_after_crash_copies_only_rest(store: Store, path: Path) -> None:
    write(path, 2, 4)
    assert store.mirror(path).catch_up() == 2
    write(path, 6, 8, from_step=4)
    assert store.mirror(path).catch_up() == 2
    assert store.mirror(path).catch_up() == 0
    assert store.steps("train_loss") == [2, 4, 6, 8]


def test_mirror_skips_steps_repeated_by_resumed_run(store: Store, path: Path) -> None:
    write(path, 2, 4, 6)
    store.mirror(path).catch_up()
    write(path, 4, 6, 8, from_step=2)
    assert store.mirror(path).catch_up() == 1
    assert store.steps("train_loss") == [2, 4, 6, 8]


@pytest.mark.parametrize("again", [True, False])
def test_values_of_a_resumed_run_replace_discarded_ones(store: Store, path: Path, again: bool) -> None:
    """Losses on a GPU and speeds differ when a resumed run repeats a step: the last value of the step is that one."""

    def line(step: int, at: float, loss: float) -> str:
        return json.dumps({"step": step, "time": at, "metrics": {"train_loss": loss}}) + "\n"

    first = line(1, 1.0, 3.0)
    path.write_text(first + line(2, 2.0, 2.0) + line(3, 3.0, math.nan))
    mirror = store.mirror(path)
    assert mirror.catch_up() == 3
    path.write_text(first + line(2, 12.0, 2.5) + (line(3, 13.0, 1.5) if again else ""))
    assert store.mirror(path).catch_up() == (2 if again else 1)
    assert store.mirror(path).catch_up() == 0
    assert (2, 2.0) in store.history("train_loss"), "MLflow deletes no value"
    points = store.client.get_metric_history(store.run_id, "train_loss")
    last = {point.step: point.value for point in sorted(points, key=lambda point: point.timestamp)}
    assert last[2] == 2.5
    if again:
        assert store.client.get_run(store.run_id).data.metrics["train_loss"] == last[3] == 1.5


@pytest.mark.parametrize("time", [{}, {"time": 5.0}])
def test_last_line_of_a_repeated_step_wins(store: Store, path: Path, time: dict[str, float]) -> None:
    """Lines without a time all have that of the file, so times cannot order them: their place in the file does."""

    def lines(*losses: float) -> str:
        reports = [{"step": step, **time, "loss": loss} for step, loss in enumerate(losses, start=1)]
        return "".join(json.dumps(report) + "\n" for report in reports)

    path.write_text(lines(9.0, 4.5, 3.0) + lines(1.0, 0.5, 0.25))
    assert store.mirror(path).catch_up() == 3
    assert store.history("loss") == [(1, 1.0), (2, 0.5), (3, 0.25)]
    live = store.mirror(path)
    assert live.catch_up() == 0
    for text, copied in (("", 0), (lines(1.0, 0.5, 0.125), 1), (lines(8.0), 1)):
        with path.open("a") as stream:
            stream.write(text)
        os.utime(path, (path.stat().st_mtime + 60,) * 2)
        assert live.catch_up() == copied
        assert store.mirror(path).catch_up() == 0, "a new process reads the earlier lines again"
    points = store.client.get_metric_history(store.run_id, "loss")
    last = {point.step: point.value for point in sorted(points, key=lambda point: point.timestamp)}
    assert last == {1: 8.0, 2: 0.5, 3: 0.125}
    assert store.client.get_run(store.run_id).data.metrics["loss"] == 0.125


def test_infinite_value_without_a_time_is_copied_once(store: Store, path: Path) -> None:
    """MLflow stores infinity as the largest number, which is no other value."""
    path.write_text('{"step": 1, "loss": Infinity, "gain": -Infinity}\n')
    assert store.mirror(path).catch_up() == 2
    os.utime(path, (path.stat().st_mtime + 60,) * 2)
    assert store.mirror(path).catch_up() == 0


def test_mirror_without_metrics_file_copies_nothing(store: Store, path: Path) -> None:
    assert store.mirror(path).catch_up() == 0


def test_mirror_splits_large_requests(store: Store, path: Path) -> None:
    keys = tuple(f"metric_{number}" for number in range(7))
    write(path, *range(1, 301), keys=keys)
    assert store.mirror(path).catch_up() == 2100
    assert all(store.steps(key) == list(range(1, 301)) for key in keys)


def test_mirror_accepts_non_finite_values(store: Store, path: Path) -> None:
    log = MetricsLog(path)
    log.open(from_step=0)
    log.report(1, {"train_loss": float("nan"), "gradient_norm": float("inf")})
    log.close()
    assert store.mirror(path).catch_up() == 2
    assert math.isnan(store.history("train_loss")[0][1])
    assert store.history("gradient_norm")[0][1] > 1e300
    assert store.mirror(path).catch_up() == 0


@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "KILLED"])
def test_end_sets_final_run_status_and_time(store: Store, path: Path, status: str) -> None:
    write(path, 2)
    mirror = store.mirror(path)
    mirror.catch_up()
    mirror.end(status, 1234.5)
    info = store.client.get_run(store.run_id).info
    assert (info.status, info.end_time) == (status, 1234500)


def test_run_is_tagged_with_lineage_hash(store: Store, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def tag() -> str | None:
        store.mirror(path).end("KILLED")
        return store.client.get_run(store.run_id).data.tags.get("orchestrator.lineage")

    write(path, 2)
    assert tag() is None
    facts = ExternalFacts(weights="aa", file="", architectures=[], vocabulary="", revision=None)
    for name in ("begun", "completed"):
        lineage = Lineage(links=(Link.make("external", name, facts),))
        path.with_name("lineage.json").write_text(lineage.text())
        assert tag() == lineage.head.hash
    assert capsys.readouterr().err == ""
    path.with_name("lineage.json").write_text("{")
    assert tag() == lineage.head.hash
    assert "lineage.json is truncated" in capsys.readouterr().err


@pytest.mark.usefixtures("environ")
def test_mirror_thread_copies_during_job(store: Store, path: Path) -> None:
    thread = MirrorThread(path, every_seconds=0.05)
    thread.start()
    log = MetricsLog(path)
    log.open(from_step=0)
    log.report(2, {"train_loss": 1.0})
    wait_for(store, "train_loss", [2])
    log.report(4, {"train_loss": 0.5})
    wait_for(store, "train_loss", [2, 4])
    log.close()
    thread.close()
    assert store.client.get_run(store.run_id).info.status == "RUNNING", "to end the run is not the job's to say"


@pytest.mark.usefixtures("environ")
def test_close_copies_rest_immediately(store: Store, path: Path) -> None:
    write(path, 2, 4)
    thread = MirrorThread(path, every_seconds=3600)
    thread.start()
    started = time.monotonic()
    thread.close()
    assert time.monotonic() - started < 20
    assert store.steps("train_loss") == [2, 4]


@pytest.mark.parametrize("missing", ["MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI"])
@pytest.mark.usefixtures("environ")
def test_job_without_tracking_has_no_thread(
    store: Store, path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(missing)
    write(path, 2)
    thread = MirrorThread(path, every_seconds=0.01)
    thread.start()
    thread.close()
    assert store.steps("train_loss") == []


@pytest.mark.usefixtures("unreachable")
def test_unavailable_server_warns_once_and_continues(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(path, 2)
    thread = MirrorThread(path, every_seconds=0.05)
    thread.start()
    shown = ""
    limit = time.monotonic() + 30
    while "warning" not in shown and time.monotonic() < limit:
        time.sleep(0.05)
        shown += capsys.readouterr().err
    for step in (4, 6, 8):  # many more rounds fail
        write(path, step, from_step=step - 2)
        time.sleep(0.2)
    thread.close()
    assert not thread._thread.is_alive()
    shown += capsys.readouterr().err
    assert shown.count("warning: the copy in MLflow is behind") == 1
    assert str(path) in shown


def test_recovered_server_receives_all_values(
    store: Store, path: Path, unreachable: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(path, 2, 4)
    thread = MirrorThread(path, every_seconds=0.05)
    thread.start()
    limit = time.monotonic() + 30
    while "warning" not in capsys.readouterr().err:
        assert time.monotonic() < limit
        time.sleep(0.05)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    monkeypatch.setenv("MLFLOW_RUN_ID", store.run_id)
    wait_for(store, "train_loss", [2, 4])
    thread.close()


def test_partially_failed_request_is_completed_later(
    store: Store, path: Path, environ: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of three requests fails: the values of the first are not sent again, the others are not lost."""
    write(path, *range(1, 1251), keys=("a", "b"))
    log_batch, calls = MlflowClient.log_batch, []

    def unreliable(self: MlflowClient, run_id: str, **content: Any) -> Any:
        calls.append(len(content["metrics"]))
        if len(calls) == 2:
            raise ConnectionError("gone")
        return log_batch(self, run_id, **content)

    monkeypatch.setattr(MlflowClient, "log_batch", unreliable)
    thread = MirrorThread(path, every_seconds=0.05)
    thread.start()
    wait_for(store, "b", list(range(1, 1251)))
    thread.close()
    assert store.steps("a") == list(range(1, 1251))
    assert calls == [1000, 1000, 1000, 500]
    assert "gone" in capsys.readouterr().err


def test_hanging_server_delays_end_by_a_second(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts connections and never answers; the import of MLflow is not its delay."""
    import mlflow.tracking  # noqa: F401

    write(path, 2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        file = path.with_name("tracking.json")
        file.write_text(json.dumps({"tracking_uri": f"http://127.0.0.1:{server.getsockname()[1]}", "run_id": "0" * 32}))
        monkeypatch.setenv("ORCHESTRATOR_TRACKING", str(file))
        thread = MirrorThread(path, every_seconds=0.01)
        thread.start()
        time.sleep(0.3)
        started = time.monotonic()
        thread.close(completed=True)
        assert time.monotonic() - started < 1.5
        assert not path.with_name("mirrored.json").exists()


@pytest.mark.parametrize("importing", [0.0, 7.0])
def test_end_waits_one_second_and_the_rest_of_an_import(
    path: Path, monkeypatch: pytest.MonkeyPatch, importing: float
) -> None:
    """The thread never ends; its clock advances only while the end waits, so a busy machine changes nothing."""
    moment = 100.0

    class EndlessThread:
        def is_alive(self) -> bool:
            return True

        def join(self, seconds: float) -> None:
            nonlocal moment
            moment += seconds
            if moment >= 100 + importing and mirror.IMPORTING.locked():
                mirror.IMPORTING.release()

    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: moment))
    monkeypatch.setenv("ORCHESTRATOR_TRACKING", str(path.with_name("tracking.json")))
    thread = MirrorThread(path)
    thread._thread = EndlessThread()  # type: ignore[assignment]
    if importing:
        mirror.IMPORTING.acquire()
    thread.close(completed=True)
    assert moment - 100 == pytest.approx(importing + 1, abs=2 * metrics.POLL_SECONDS)


def test_missing_store_is_not_created_by_mirror(path: Path, tmp_path: Path) -> None:
    """MLflow would create it in place, without the lock; a kill would leave it broken."""
    write(path, 2)
    with pytest.raises(StorageError, match=r"mlflow\.db does not exist"):
        Mirror(path, Destination(f"sqlite:///{tmp_path / 'mlflow.db'}", "0" * 32))
    assert not (tmp_path / "mlflow.db").exists()


@pytest.fixture
def announcement(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that will name the run."""
    for name in ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "tracking.json"
    monkeypatch.setenv("ORCHESTRATOR_TRACKING", str(file))
    return file


def announce(file: Path, store: Store) -> None:
    file.write_text(json.dumps({"tracking_uri": store.uri, "run_id": store.run_id}))


def test_run_announced_during_training_gets_all_metrics(
    store: Store, path: Path, announcement: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(path, 2, 4)
    thread = MirrorThread(path, every_seconds=0.05)
    thread.start()
    time.sleep(0.3)  # several rounds without a run to report to
    announce(announcement, store)
    wait_for(store, "train_loss", [2, 4])
    write(path, 6, from_step=4)
    thread.close(completed=True)
    assert store.steps("train_loss") == [2, 4, 6]
    assert store.client.get_run(store.run_id).info.status == "FINISHED"
    word = json.loads((path.parent / "mirrored.json").read_text())
    assert word == {"run_id": store.run_id, "status": "FINISHED", "bytes": path.stat().st_size}
    assert capsys.readouterr().err == ""


def test_incomplete_job_leaves_mlflow_run_open(store: Store, path: Path, announcement: Path) -> None:
    announce(announcement, store)
    (path.parent / "mirrored.json").write_text("{}")  # from an attempt that completed with fewer steps
    write(path, 2)
    thread = MirrorThread(path, every_seconds=0.05)
    thread.start()
    thread.close()
    assert store.steps("train_loss") == [2]
    assert store.client.get_run(store.run_id).info.status == "RUNNING"
    assert not (path.parent / "mirrored.json").exists()


def test_run_opened_by_platform_is_not_ended(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    monkeypatch.setenv("MLFLOW_RUN_ID", store.run_id)
    monkeypatch.delenv("ORCHESTRATOR_TRACKING", raising=False)
    write(path, 2)
    thread = MirrorThread(path, CONFIG, every_seconds=0.05)
    thread.start()
    thread.close(completed=True)
    assert store.steps("train_loss") == [2]
    run = store.client.get_run(store.run_id)
    assert run.info.status == "RUNNING"
    assert run.data.params["optimizer.learning_rate"] == str(CONFIG.optimizer.learning_rate)
    assert run.data.params["data.text"] == "notes"


def test_refused_parameters_do_not_block_metrics(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    monkeypatch.setenv("MLFLOW_RUN_ID", store.run_id)
    monkeypatch.delenv("ORCHESTRATOR_TRACKING", raising=False)
    store.client.log_param(store.run_id, "optimizer.learning_rate", "another")
    write(path, 2)
    thread = MirrorThread(path, CONFIG, every_seconds=0.05)
    thread.start()
    thread.close(completed=True)
    assert store.steps("train_loss") == [2]
    assert "warning: MLflow keeps earlier values of optimizer.learning_rate" in capsys.readouterr().err
    assert store.client.get_run(store.run_id).data.params["data.text"] == "notes"


def test_run_opened_by_orchestrator_has_parameters(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announcement = path.with_name("tracking.json")
    announcement.write_text(json.dumps({"tracking_uri": store.uri, "run_id": store.run_id}))
    monkeypatch.setenv("ORCHESTRATOR_TRACKING", str(announcement))
    write(path, 2)
    thread = MirrorThread(path, CONFIG, every_seconds=0.05)
    thread.start()
    thread.close()
    assert store.steps("train_loss") == [2]
    assert store.client.get_run(store.run_id).data.params == {}


def test_mirror_copies_machines_and_seeds_beside_metrics(store: Store, path: Path) -> None:
    write(path, 2)
    for place in ("system/node-0.jsonl", "seed-7/metrics.jsonl"):
        (path.parent / place).parent.mkdir()
    write(path.parent / "system" / "node-0.jsonl", 0, 1, keys=("system/cpu_utilization_percentage",))
    write(path.parent / "seed-7" / "metrics.jsonl", 2, 4)
    mirror = store.mirror(path)
    assert mirror.catch_up() == 5
    assert mirror.copied_bytes == sum(file.stat().st_size for file in path.parent.rglob("*.jsonl"))
    assert store.mirror(path).catch_up() == 0
    assert store.steps("system/cpu_utilization_percentage") == [0, 1]
    assert store.steps("seed-7/train_loss") == [2, 4]
