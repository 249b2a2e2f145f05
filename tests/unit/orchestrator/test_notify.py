"""The webhook, against a real server on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.folder.run_watch import RunWatch
from orchestrator.runs.status import RunState
from orchestrator.specs.notification import NotifySpec
from orchestrator.support import notify
from orchestrator.support.errors import UsageError
from orchestrator.support.notify import message, post

SECRET = "services/T0/B0/secret"


@dataclass
class Server:
    """Stores the received documents; responds with `codes` in turn, then with 200."""

    url: str
    codes: list[int] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code = found.codes.pop(0) if found.codes else 200
            if code == 200:
                assert self.headers["Content-Type"] == "application/json"
                found.told.append(json.loads(body))
            self.send_response(code)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Server(f"http://127.0.0.1:{httpd.server_address[1]}/{SECRET}")
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield found
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "PAUSE_SECONDS", 0.0)


def document() -> dict[str, Any]:
    return message(run="r-1", handle="local://r-1", event="failed", reason="rank 1 died\nmore", step=7, steps=10)


def test_message_has_event_and_command() -> None:
    assert document()["text"] == "r-1 failed at step 7 of 10: rank 1 died\norchestrator resume r-1"
    done = message(run="r-1", handle="local://r-1", event="completed", reason=None, step=10, steps=10)
    assert done["text"] == "r-1 completed at step 10 of 10\norchestrator report r-1"


def test_failing_server_is_retried(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.codes[:] = [500, 503]
    assert post(server.url, document())
    assert server.told == [document()]
    assert capsys.readouterr().err.count("warning") == 2


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/" + SECRET, "not-a-url/" + SECRET])
def test_unreachable_address_is_reported_but_not_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not post(url, document())
    err = capsys.readouterr().err
    assert err.count("warning") == notify.TRIES
    assert SECRET not in err


def test_http_address_is_required() -> None:
    NotifySpec().check({})
    NotifySpec(on=["failed"]).check({"ORCHESTRATOR_WEBHOOK": "http://x"})
    for environ in ({"ORCHESTRATOR_WEBHOOK": "http://x"}, {"HOOK": "file:///etc/passwd"}):
        with pytest.raises(UsageError, match="HOOK is not an HTTP address"):
            NotifySpec(on=["failed"], variable="HOOK").check(environ)


def run_watch(tmp_path: Path, *events: str) -> RunWatch:
    run = RunFolder(tmp_path / "r-1")
    run.outputs.mkdir(parents=True)
    return RunWatch(run, "local://r-1", NotifySpec(on=list(events)), 100, 0.0)  # type: ignore[arg-type]


def report(tmp_path: Path, *losses: float, first: int = 1) -> None:
    with (tmp_path / "r-1" / "outputs" / "metrics.jsonl").open("a") as stream:
        for step, loss in enumerate(losses, start=first):
            stream.write(json.dumps({"step": step, "time": 0.0, "metrics": {"train_loss": loss}}) + "\n")


def test_divergence_is_sent_once_and_end_with_its_step(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_WEBHOOK", server.url)
    watch = run_watch(tmp_path, "diverging", "failed")
    assert watch.poll() is None  # no report so far
    report(tmp_path, *[5.0] * 6)
    assert watch.poll() is None
    report(tmp_path, *[9.0] * 6, first=7)
    assert "the loss rises" in str(watch.poll())
    report(tmp_path, 9.5, first=13)
    assert "the loss rises" in str(watch.poll())
    watch.ended(RunState.FAILED, "rank 0 ended")
    watch.close()
    assert [(told["event"], told["step"]) for told in server.told] == [("diverging", 12), ("failed", 13)]


def test_events_not_requested_are_not_sent(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_WEBHOOK", server.url)
    watch = run_watch(tmp_path, "completed")
    watch.ended(RunState.FAILED, "rank 0 ended")
    watch.ended(RunState.CANCELLED, "cancelled")
    watch.close()
    assert server.told == []
    watch.ended(RunState.COMPLETED, None)
    watch.close()
    assert [told["event"] for told in server.told] == ["completed"]


def test_truncated_file_of_resumed_job_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = run_watch(tmp_path)
    report(tmp_path, *[5.0] * 6, *[9.0] * 6)
    assert watch.poll() is not None
    (tmp_path / "r-1" / "outputs" / "metrics.jsonl").write_text("")
    report(tmp_path, *[5.0] * 6)
    assert watch.poll() is None
