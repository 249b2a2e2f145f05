"""The webhook, against a real server on loopback."""

from __future__ import annotations

import json
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
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
from tests.conftest import Console, wait_for
from tests.fuzz.readers import answering
from train_jobs.artifacts.redaction import redact

SECRET = "services/T0/B0/secret"


@dataclass
class Server:
    """Stores the received documents; responds with `codes` in turn, then with 200."""

    url: str
    codes: list[int] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    answer: int = 0  # bytes of the body of a response
    logins: list[str | None] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code = found.codes.pop(0) if found.codes else 200
            if code == 200:
                assert self.headers["Content-Type"] == "application/json"
                found.told.append(json.loads(body))
                found.logins.append(self.headers["Authorization"])
            self.send_response(code)
            if 300 <= code < 400:
                self.send_header("Location", found.url)
            self.end_headers()
            with suppress(OSError):
                for _ in range(found.answer // 65536):
                    self.wfile.write(bytes(65536))

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
    assert post(server.url, document(), allow_private=True)
    assert server.told == [document()]
    assert capsys.readouterr().err.count("warning") == 2


def test_login_in_the_address_is_sent_as_basic_authentication(server: Server) -> None:
    assert post(server.url.replace("//", "//me:p%40w@"), document(), allow_private=True)
    assert post(server.url, document(), allow_private=True)
    assert server.logins == ["Basic " + b64encode(b"me:p@w").decode(), None]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/" + SECRET, "not-a-url/" + SECRET])
def test_unreachable_address_is_reported_but_not_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not post(url, document(), allow_private=True)
    err = capsys.readouterr().err
    assert err.count("warning") == notify.TRIES
    assert SECRET not in err


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 500 \x1b[31m\x1b]0;owned\x07\r\n\r\n", "status 500"),
        (b"\x1b[2J" * 1000 + b"\r\n", "the response is not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 200, "the response is not valid HTTP"),
        (b"HTTP/1.1 302 x\r\nLocation: file:///" + SECRET.encode() + b"\r\n\r\n", "status 302"),
    ],
)
def test_text_of_the_server_is_not_printed(
    answer: bytes, reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "TRIES", 1)
    with socket.create_server(("127.0.0.1", 0)) as one, answering(one, answer):
        assert not post(f"http://127.0.0.1:{one.getsockname()[1]}/hook", document(), allow_private=True)
    assert capsys.readouterr().err == f"warning: cannot notify the webhook at 127.0.0.1: {reason}\n"


def test_http_address_is_required() -> None:
    NotifySpec().check({})
    NotifySpec(on=["failed"]).check({"ORCHESTRATOR_WEBHOOK": "http://x"})
    for environ in ({"ORCHESTRATOR_WEBHOOK": "http://x"}, {"HOOK": "file:///etc/passwd"}):
        with pytest.raises(UsageError, match="HOOK is not an HTTP address"):
            NotifySpec(on=["failed"], variable="HOOK").check(environ)


PRIVATE = [
    "127.0.0.1", "localhost", "LOCALHOST.", "127.1", "2130706433", "0x7f.1", "%31%32%37.0.0.1", "0.0.0.0", "10.0.0.1",
    "172.16.0.1", "192.168.1.1", "169.254.169.254", "168.63.129.16", "100.64.0.1", "224.0.0.1", "[::1]", "[::]",
    "[fe80::1]", "[fd00::1]", "[::ffff:127.0.0.1]", "[2002:7f00:1::]", "[64:ff9b::a00:1]",
]  # fmt: skip


@pytest.mark.parametrize("host", PRIVATE)
def test_private_literal_is_refused_before_the_start(host: str) -> None:
    environ = {"ORCHESTRATOR_WEBHOOK": f"https://{host}:8080/{SECRET}"}
    with pytest.raises(UsageError, match="ORCHESTRATOR_WEBHOOK is a private address") as failure:
        NotifySpec(on=["failed"]).check(environ)
    assert SECRET not in str(failure.value)
    NotifySpec(on=["failed"], allow_private=True).check(environ)
    NotifySpec().check(environ)


@pytest.mark.parametrize("host", ["8.8.8.8", "[2606:4700::1111]", "hooks.example.org", "[::ffff:8.8.8.8]"])
def test_public_host_is_accepted(host: str) -> None:
    NotifySpec(on=["failed"]).check({"ORCHESTRATOR_WEBHOOK": f"https://{host}/x"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "%31%32%37.0.0.1", "webhook.internal"])
def test_private_address_is_refused_when_sending(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    resolve = socket.getaddrinfo

    def resolved(name: str, *more: Any, **flags: Any) -> Any:
        return resolve("127.0.0.1" if name == "webhook.internal" else name, *more, **flags)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)  # a name server cannot be had in a test
    url = server.url.replace("127.0.0.1", host)
    assert not post(url, document())
    err = capsys.readouterr().err
    assert "notify.allow_private" in err
    assert err.count("warning") == 1
    assert SECRET not in err
    assert server.told == []
    assert post(url, document(), allow_private=True)


def test_name_that_changes_its_address_gets_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve, answers = socket.getaddrinfo, iter(["8.8.8.8", "127.0.0.1"])
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, *more, **flags: resolve(next(answers), *more, **flags))
    assert not post(server.url.replace("127.0.0.1", "rebinding.example"), document())
    assert server.told == []


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed(server: Server, capsys: pytest.CaptureFixture[str], code: int) -> None:
    server.codes[:] = [code] * notify.TRIES
    assert not post(server.url, document(), allow_private=True)
    err = capsys.readouterr().err
    assert f"it redirects (status {code})" in err
    assert SECRET not in err
    assert server.told == []


@pytest.mark.parametrize("proxied", ["http", "https"])
def test_private_host_behind_proxy_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], proxied: str
) -> None:
    proxy = server.url.removesuffix(f"/{SECRET}")
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert not post(f"{proxied}://10.0.0.1/{SECRET}", document())
    assert "notify.allow_private" in capsys.readouterr().err
    assert server.told == []
    if proxied == "http":  # the proxy's own address may be private
        assert post(f"http://8.8.8.8/{SECRET}", document())


@pytest.mark.parametrize("answer", [b"HTTP/1.1 ", b"HTTP/1.1 100 Continue\r\n\r\n", b"X: y\r\n", b"z" * 65536])
def test_endless_answer_is_bounded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: bytes
) -> None:
    monkeypatch.setattr(notify, "SECONDS", 0.6)
    monkeypatch.setattr(notify, "TRIES", 1)
    over = threading.Event()

    def drip(listening: socket.socket) -> None:
        one, _ = listening.accept()
        with one, suppress(OSError):
            one.sendall(answer)
            while not over.wait(0.1):
                one.sendall(answer if answer.startswith(b"HTTP/1.1 100") or len(answer) > 1000 else b"1")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=[listening])
        thread.start()
        began = time.monotonic()
        assert not post(f"http://127.0.0.1:{listening.getsockname()[1]}/{SECRET}", document(), allow_private=True)
        assert time.monotonic() - began < 5
        over.set()
        thread.join()
    assert "warning: cannot notify" in capsys.readouterr().err


def test_large_answer_is_not_read(server: Server) -> None:
    server.answer = 300 * 1024 * 1024
    began = time.monotonic()
    assert post(server.url, document(), allow_private=True)
    assert time.monotonic() - began < 5


def run_watch(tmp_path: Path, *events: str) -> RunWatch:
    run = RunFolder(tmp_path / "r-1")
    run.outputs.mkdir(parents=True)
    return RunWatch(run, "local://r-1", NotifySpec(on=list(events), allow_private=True), 100, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["local", "debug"])
def test_job_and_its_logs_do_not_get_the_address(
    console: Console, untracked: None, server: Server, backend: str
) -> None:
    """The job prints the values of all variables."""
    (console.cwd / "t.py").write_text("import os\nprint('variables', *os.environ.values())\n")
    options = ("--set", "notify.on=[completed]", "--set", "notify.allow_private=true", "--set", "notify.variable=HOOK")
    done = console("submit", "command", "-b", backend, *options, "--", "python", "t.py", HOOK=server.url)
    assert done.code == 0, done.err
    wait_for(lambda: len(server.told) == 1, what="the message")
    (log,) = console.home.rglob("rank-0.log")
    assert "variables" in done.err + log.read_text()
    assert SECRET not in done.out + done.err
    written = b"".join(path.read_bytes() for path in console.home.rglob("*") if path.is_file())
    assert SECRET.encode() not in written


def test_address_is_redacted_in_the_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_WEBHOOK", f"https://hooks.example/{SECRET}")
    run_watch(tmp_path)
    assert redact(f"posts to https://hooks.example/{SECRET}.") == "posts to REDACTED."


def report(tmp_path: Path, *losses: float, first: int = 1) -> None:
    with (tmp_path / "r-1" / "outputs" / "metrics.jsonl").open("a") as stream:
        for step, loss in enumerate(losses, start=first):
            stream.write(json.dumps({"step": step, "time": 0.0, "metrics": {"train_loss": loss}}) + "\n")


def test_slow_rank_of_an_earlier_attempt_is_none_of_this_one(tmp_path: Path) -> None:
    watch = run_watch(tmp_path)

    def add(moment: float) -> None:
        values = {"train_loss": 5.0, "slowest_rank": 1.0, "slowest_rank_ratio": 4.0}
        with (tmp_path / "r-1" / "outputs" / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps({"step": 1, "time": moment, "metrics": values}) + "\n")

    add(1000.0)
    add(1060.0)
    assert "rank 1 is slow" in str(watch.poll())
    watch.begin(9000.0)
    assert watch.poll() is None
    add(9010.0)
    assert watch.poll() is None
    add(9070.0)
    assert "rank 1 is slow" in str(watch.poll())


def test_lines_that_are_no_reports_are_counted(tmp_path: Path) -> None:
    watch, metrics = run_watch(tmp_path), tmp_path / "r-1" / "outputs" / "metrics.jsonl"
    for text, warning in (
        ('{"step": 1, "loss": 1.5}', None),
        ('\n\n{"step": 2, "stage": "warm-up", "loss": 1.5}\n{"step": 3', None),
        (', "time": 1.0, "metrics": {"loss": "a"}}\n', "metrics.jsonl: 1 line is not a report"),
        ("[1]\n", "metrics.jsonl: 2 lines are not reports"),
    ):
        with metrics.open("a") as stream:
            stream.write(text)
        found = watch.poll()
        assert found is None if warning is None else str(found).startswith(warning)
    assert str(watch.poll()).endswith("the first one is line 4")
    before = watch.poll()
    watch.begin()
    assert watch.poll() == before, "the lines of earlier attempts are still in the file"


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
