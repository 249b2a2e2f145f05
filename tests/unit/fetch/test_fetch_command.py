"""`orchestrator data fetch`: its output and progress."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.cli.ui import terminal as transfer
from orchestrator.fetch.remote_file import public_address
from tests.conftest import Console, wait_for
from tests.unit.fetch.conftest import Site, cut, stall, status
from tests.unit.fetch.test_fetch_data import publish_dump


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_fetch_prints_paths_to_stdout_and_progress_to_stderr(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    dump, index, _ = publish_dump(site)
    site.scripts[f"dewiki/20260101/{dump}"] = [status(503, Retry_After="0")]
    words = ["data", "fetch", "wikipedia:de", "--mirror", f"{site.url}/empty", "--mirror", site.url]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out == f"data/wikipedia/{index}\ndata/wikipedia/{dump}\n"
    assert f"{dump}: fetched, checked: sha1" in err
    assert "it answers 503 Service Unavailable; trying again in 0 s" in err
    assert main([*words[:3], "--mirror", site.url, "--to", "data/wikipedia", "-o", "json"]) == 0
    out, err = capsys.readouterr()
    files = json.loads(out)["files"]
    assert json.loads(out)["name"] == "wikipedia:de"
    assert files[1] == {"path": f"data/wikipedia/{dump}", "bytes": 80_000, "new": False, "checked": "sha1"}
    assert err == ""


PASSWORD = "Zq4wkL0w"


@pytest.mark.parametrize("user", [f"bob:{PASSWORD}@", f"{PASSWORD}@", f"bob:p/{PASSWORD}@"])
def test_password_of_a_mirror_is_not_shown(site: Site, capsys: pytest.CaptureFixture[str], user: str) -> None:
    address = site.url.replace("://", f"://{user}")
    site.publish("RTE.zip", b"x", status(503, Retry_After="0"))
    for mirror in (address, user + address.rpartition("@")[2]):
        assert main(["data", "fetch", "glue:RTE", "--mirror", mirror, "-o", "json"]) != 0
        out, err = capsys.readouterr()
        assert "error" in json.loads(out)
        assert PASSWORD not in out + err


def test_password_of_a_mirror_is_not_stored(site: Site, console: Console) -> None:
    """The facts of an unfinished file are private; the finished file has the mode of a new file."""
    dump, _, _ = publish_dump(site)
    place = console.cwd / "data" / "wikipedia"
    site.scripts[f"dewiki/20260101/{dump}"] = [cut(50_000), status(404)]
    words = ("data", "fetch", "wikipedia:de", "--mirror", site.url.replace("://", f"://bob:{PASSWORD}@"))
    done = console(*words)
    assert done.code == 5
    assert PASSWORD not in done.out + done.err
    facts = place / f".{dump}.part.json"
    assert site.url in facts.read_text()
    assert PASSWORD not in facts.read_text()
    assert facts.stat().st_mode & 0o777 == 0o600
    assert console(*words).code == 0
    new = console.cwd / "new"
    new.touch()
    assert (place / dump).stat().st_mode == new.stat().st_mode


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://bob:pw@host:80/a@b/c?sig=x#y", "http://host:80/a@b/c"),
        ("http://bob:p/w@host/x", "http://host/x"),
        ("bob:pw@host/x", "host/x"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("http://[::1]:80/x", "http://[::1]:80/x"),
        ("http://host", "http://host"),
    ],
)
def test_address_is_shown_without_secrets(url: str, shown: str) -> None:
    assert public_address(url) == shown


def test_ctrl_c_keeps_partial_file_and_command_resumes(site: Site, console: Console) -> None:
    dump, index, _ = publish_dump(site)
    site.scripts[f"dewiki/20260101/{dump}"] = [stall(50_000)]
    words = ("data", "fetch", "wikipedia:de", "--mirror", site.url)
    command = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=console.cwd,
        env=console.environ(),
    )
    folder = console.cwd / "data" / "wikipedia"
    partial = folder / f".{dump}.part"
    wait_for(lambda: partial.exists() and partial.stat().st_size == 50_000)
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert (command.returncode, out) == (130, "")
    assert "repeat the command to continue" in err
    assert console(*words).out == f"data/wikipedia/{index}\ndata/wikipedia/{dump}\n"
    assert site.ranges()[-1] == "bytes=50000-"
    assert sorted(path.name for path in folder.iterdir()) == [index, dump]


def test_error_is_a_single_json_document(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "fetch", "wikipedia:xx", "--mirror", site.url, "-o", "json"]) == 5
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["kind"] == "not-found"
    assert err.startswith("error[not-found]: no dump xxwiki of latest")


def test_fetch_needs_a_name_and_data_an_action(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data"]) == main(["data", "fetch"]) == main(["data", "fetsh", "glue"]) == 2
    assert capsys.readouterr().err.count("error[usage]") == 3


def test_fetch_help_has_example_and_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["data", "fetch", "--help"])
    text = capsys.readouterr().out
    assert "example:\n  orchestrator data fetch wikipedia:de --to dumps/" in text
    assert max(map(len, text.splitlines())) <= 80


class Terminal(io.StringIO):
    """A stream that is a terminal if `live`."""

    def __init__(self, *, live: bool) -> None:
        super().__init__()
        self.live = live

    def isatty(self) -> bool:
        return self.live


def progress_output(monkeypatch: pytest.MonkeyPatch, *, live: bool) -> str:
    """Return the output for a file of 300 MB, of which 100 MB exist, at 10 MB/s."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal(live=live)
    clock = [0.0]
    monkeypatch.setattr(transfer.time, "monotonic", lambda: clock[0])
    line = transfer.TransferLine(terminal)
    for second in range(21):
        clock[0] = float(second)
        line("a.bz2", 100_000_000 + second * 10_000_000, 300_000_000)
    line("b.bz2", 5, None)
    clock[0] += 100
    line("b.bz2", 6, None)
    line.end()
    line.end()
    return terminal.getvalue()


def frames(text: str) -> list[str]:
    """Return the drawn frames without cursor movements."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).split("\r")


def test_terminal_shows_bytes_speed_and_remaining(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [
        line.replace("\u2501", "").replace("\u2578", "").replace("\u257a", "")
        for line in frames(progress_output(monkeypatch, live=True))
    ]
    first = [line for line in drawn if line.startswith("a.bz2")]
    assert "120.0/300.0 MB" in first[1]
    assert "150.0/300.0 MB 10.0 MB/s 0:00:15" in " ".join(first[4].split())
    assert "300.0/300.0 MB 10.0 MB/s 0:00:00" in " ".join(first[-1].split())
    assert "6/? bytes" in drawn[-1]
    assert drawn[-1].endswith("\n")


def test_log_gets_one_line_per_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        progress_output(monkeypatch, live=False)
        == "a.bz2: 300 MB of 300 MB, 10.0 MB/s, 0 s left\nb.bz2: 6 B, 0.0 MB/s\n"
    )


def test_restarted_file_restarts_its_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Terminal(live=False)
    clock = [0.0]
    monkeypatch.setattr(transfer.time, "monotonic", lambda: clock[0])
    line = transfer.TransferLine(log)
    for second, done in ((0, 90_000_000), (10, 0), (44, 340_000_000)):
        clock[0] = float(second)
        line("a.bz2", done, None)
    assert log.getvalue() == "a.bz2: 340 MB, 10.0 MB/s\n"


def test_small_file_prints_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(live=True)
    line = transfer.TransferLine(terminal)
    line("a.bz2", 0, 10)
    line("a.bz2", 10, 10)
    line.end()
    assert terminal.getvalue() == ""
