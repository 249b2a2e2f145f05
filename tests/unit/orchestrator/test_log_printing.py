"""Output of `orchestrator logs`, on a terminal and elsewhere."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml

from orchestrator.backends.local.backend import LocalBackend
from orchestrator.backends.log_query import LogBlock, LogQuery, LogSource
from orchestrator.cli.main import main
from orchestrator.cli.ui import follow
from orchestrator.cli.ui.follow import LogPrinter
from orchestrator.client import Orchestrator
from orchestrator.run import Run
from orchestrator.runs.status import Handle, RunState
from tests.run_folders import live_run, make_run

PROGRESS = b"reading\nstep 1/3  loss 9\nstep 2/3  loss 8\nvalidation at step 2\nstep 3/3  loss 7\n"
REWRITTEN = "\r\x1b[K"


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home of the command."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    monkeypatch.delenv("ORCHESTRATOR_BACKEND", raising=False)
    return tmp_path


def attach(home: Path) -> Run:
    return Orchestrator(home=home, environ={}).attach("run")


def block(rank: int, data: bytes) -> LogBlock:
    return LogBlock(data, LogSource(rank, rank // 2))


def print_blocks(*blocks: LogBlock, labels: bool = False, stream: io.StringIO | None = None) -> str:
    stream = stream or io.StringIO()
    printer = LogPrinter(stream, labels=labels)
    for block in blocks:
        printer.block(block)
    printer.end()
    printer.leave_line()
    return stream.getvalue()


def test_progress_lines_stay_in_place_on_a_terminal_only() -> None:
    assert print_blocks(block(0, PROGRESS)) == PROGRESS.decode()
    lines = PROGRESS.decode().splitlines()
    assert print_blocks(block(0, PROGRESS), stream=Terminal()) == (
        f"reading\n{REWRITTEN}{lines[1]}{REWRITTEN}{lines[2]}\nvalidation at step 2\n{REWRITTEN}{lines[4]}\n"
    )
    labelled = "".join(f"[0:0] {line}\n" for line in lines)  # lines of several ranks would overwrite each other
    assert print_blocks(block(0, PROGRESS), labels=True, stream=Terminal()) == labelled


def test_every_line_has_its_label_once() -> None:
    blocks = [
        block(0, b"a\n\nb\n"),
        block(3, b"c\n"),
        block(3, b"the beginning "),
        block(3, b"and the end\nd\n"),
        block(0, b"e"),
    ]
    assert print_blocks(*blocks, labels=True) == (
        "[0:0] a\n[0:0] \n[0:0] b\n[1:3] c\n[1:3] the beginning and the end\n[1:3] d\n[0:0] e\n"
    )
    assert (
        print_blocks(block(0, b"cut "), block(3, b"c\n"), block(0, b"off\n"), labels=True)
        == "[0:0] cut \n[1:3] c\n[0:0] off\n"
    )
    assert print_blocks(block(0, b"cut "), block(0, b"off\n"), block(0, b"no end")) == "cut off\nno end\n"
    assert print_blocks(block(0, b"a\n")) == "a\n"


def test_binary_output_reaches_a_file_unchanged(tmp_path: Path) -> None:
    data = b"\xff\xfe\x00 \r\n\xc3"
    with (tmp_path / "out").open("w") as stream:
        stream.write("before it\n")
        LogPrinter(stream).block(block(0, data))
    assert (tmp_path / "out").read_bytes() == b"before it\n" + data


@pytest.fixture
def poll_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a follower report immediately, and at every poll, that there is nothing new."""
    for name in ("QUIET_SECONDS", "BEAT_SECONDS", "BEAT_SECONDS_ELSEWHERE"):
        monkeypatch.setattr(follow, name, 0.0)


@pytest.mark.usefixtures("poll_immediately")
def test_heartbeat_is_printed_while_logs_are_silent(home: Path) -> None:
    with live_run(home, "run", RunState.STARTING) as run:
        screen, file = Terminal(), io.StringIO()
        terminal, elsewhere = (follow.Heartbeat(attach(home), stream) for stream in (screen, file))
        for heartbeat in (terminal, elsewhere):
            heartbeat.beat()
        run.metrics.write_text('{"step": 30, "time": 1.0, "metrics": {}}\n')
        run.write_state(run.state().model_copy(update={"state": RunState.RUNNING}))
        for heartbeat in (terminal, elsewhere):
            heartbeat.beat()
            heartbeat.clear()
            heartbeat.clear()
    starting = "waiting: starting, nothing printed for 0 s"
    running = "waiting: running at step 30 of 100, nothing printed for 0 s"
    assert screen.getvalue() == f"{REWRITTEN}{starting}{REWRITTEN}{running}{REWRITTEN}"
    assert file.getvalue() == f"{starting}\n{running}\n"


def test_heartbeat_waits_for_its_interval(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(follow.time, "monotonic", lambda: clock[0])
    make_run(home, "run")
    screen, file = Terminal(), io.StringIO()
    beats = {stream: follow.Heartbeat(attach(home), stream) for stream in (screen, file)}
    seen = []
    for second in (9, 10, 10.5, 11, 69, 70):
        clock[0] = 1000.0 + second
        for stream, heartbeat in beats.items():
            stream.truncate(0)
            stream.seek(0)
            heartbeat.beat()
        seen.append((second, bool(screen.getvalue()), bool(file.getvalue())))
    assert seen == [
        *((9, False, False), (10, True, True), (10.5, False, False), (11, True, False), (69, True, False)),
        (70, True, True),
    ]
    beats[file].clear()
    clock[0] += 9
    file.truncate(0)
    beats[file].beat()
    assert file.getvalue() == ""


@pytest.mark.usefixtures("poll_immediately")
def test_idle_progress_repeats_only_without_progress_line(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_run(home, "run", RunState.QUEUED) as run:
        run.rank_log(0).write_text("step 1/100\n")
        blocks = attach(home).log_blocks(LogQuery(follow=True))
        lines, nothing = next(blocks), next(blocks)
        blocks.close()
        assert (lines.data, nothing.data) == (b"step 1/100\n", b"")

        class Replayed(Run):
            """A run whose log blocks are fixed."""

            def log_blocks(self, query: LogQuery) -> Iterator[LogBlock]:
                return iter([nothing, lines, nothing])

        replayed = Replayed(LocalBackend(home), Handle("local", "run"))
        waiting, screen, file = "waiting: queued, nothing printed for 0 s\n", Terminal(), io.StringIO()
        assert follow.print_logs(replayed, file, LogQuery(follow=True))
        assert (file.getvalue(), capsys.readouterr().err) == ("step 1/100\n", waiting * 2)
        assert follow.print_logs(replayed, screen, LogQuery(follow=True))
        assert (screen.getvalue(), capsys.readouterr().err) == (f"{REWRITTEN}step 1/100\n", waiting)
        shared = Terminal()  # the visible text: each line replaces the other
        monkeypatch.setattr("sys.stderr", shared)
        assert follow.print_logs(replayed, shared, LogQuery(follow=True))
        assert shared.getvalue() == f"{REWRITTEN}{waiting.strip()}{REWRITTEN}{REWRITTEN}step 1/100\n"


def test_logs_as_one_document(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(home, "run")
    run.rank_log(0).write_bytes(b'say "hi"\r\n\xff\n')
    run.rank_log(1).write_text("\U0001f600 \x85 \x1b[1m: - {")
    os.utime(run.rank_log(0), (100, 100))
    expected = [
        {"node": 0, "rank": 0, "writer": "rank", "text": 'say "hi"'},
        {"node": 0, "rank": 0, "writer": "rank", "text": "\ufffd"},
        {"node": 0, "rank": 1, "writer": "rank", "text": "\U0001f600 \x85 \x1b[1m: - {"},
    ]
    for style, parse in (("json", json.loads), ("yaml", yaml.safe_load)):
        assert main(["logs", "run", "--all-ranks", "-o", style]) == 0
        assert parse(capsys.readouterr().out) == expected
        assert main(["logs", "run", "--grep", "nowhere", "-o", style]) == 0
        assert parse(capsys.readouterr().out) == []
        assert main(["logs", "run", "--rank", "1", "-o", style]) == 0
        assert parse(capsys.readouterr().out) == expected[2:]
        assert main(["logs", "run", "--rank", "9", "-o", style]) == 5
        assert parse(capsys.readouterr().out)["error"]["kind"] == "not-found"


def test_command_passes_its_query(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(home, "run", nodes=2, processes_per_node=1)
    for seconds, name in enumerate(("supervisor", "agent-1", "rank-0", "rank-1")):
        (run.logs / f"{name}.log").write_text(f"first of {name}\nlast of {name}\n")
        os.utime(run.logs / f"{name}.log", (1000 + seconds, 1000 + seconds))
    ours = ["first of rank-0", "last of rank-0"]
    theirs = ["[1:1] first of rank-1", "[1:1] last of rank-1"]
    supervisor = ["[supervisor] first of supervisor", "[supervisor] last of supervisor"]
    agent = ["[1:agent] first of agent-1", "[1:agent] last of agent-1"]
    for words, expected in (
        ([], ours),
        (["-f"], ours),
        (["--rank", "1"], ["first of rank-1", "last of rank-1"]),
        (["--all-ranks"], [f"[0:0] {line}" for line in ours] + theirs),
        (["--rank", "1", "--rank", "0"], [f"[0:0] {line}" for line in ours] + theirs),
        (["--node", "1"], theirs),
        (["--launcher"], supervisor + agent),
        (["--launcher", "--node", "1", "--rank", "1"], agent + theirs),
        (["--tail", "1"], ours[1:]),
        (["--grep", "^f"], ours[:1]),
        (["--since", "1d"], []),
        (["--since", "1970-01-01T00:16:42+00:00"], ours),
        (["--since", "1970-01-01T00:16:43+00:00"], []),
    ):
        assert main(["logs", "run", *words]) == 0
        assert capsys.readouterr().out.splitlines() == expected, words


def test_empty_output_without_request_has_no_hint(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(home, "run").rank_log(1).touch()
    for words in ([], ["--rank", "1"], ["-f"], ["--all-ranks"]):
        assert main(["logs", "run", *words]) == 0
        output = capsys.readouterr()
        assert output.out == ""
        assert "orchestrator logs run --launcher" in output.err
    for words in (["--tail", "3"], ["--launcher"], ["--grep", "x"], ["--since", "1h"]):
        assert main(["logs", "run", *words]) == 0
        assert capsys.readouterr() == ("", "")


def test_follow_ends_with_the_state_of_the_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(home, "run", RunState.CANCELLED).rank_log(0).write_text("x")
    assert main(["logs", "run", "-f"]) == 0
    assert capsys.readouterr() == ("x\n", "cancelled  local://run\n")


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (
            ["--grep", "loss [0-9"],
            ["invalid regular expression 'loss [0-9'", "position 5", r"fix  --grep 'loss\ \[0\-9'"],
        ),
        (["--grep", "a{99999999999}"], ["invalid regular expression"]),
        (["--tail", "-1"], ["invalid number '-1'"]),
        (["--tail", "many"], ["invalid number 'many'"]),
        (["--since", "noon"], ["invalid time 'noon'", "10m", "2026-11-21T10:00"]),
        (["--since", (datetime.now() + timedelta(days=2)).isoformat()], ["it is in the future"]),
        (["--since", "20261121"], ["invalid time '20261121'", "a date is written 2026-11-21"]),
        (["--rank", "0", "--all-ranks"], ["not allowed with argument --rank"]),
        (["--rank", "x"], ["invalid int value: 'x'"]),
        (["-f", "-o", "json"], ["needs an end", "omit -f"]),
    ],
)
def test_contradictory_options_are_usage_errors(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], output: list[str]
) -> None:
    make_run(home, "run")
    assert main(["logs", "run", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error[usage]: ")
    for part in output:
        assert part in err


def test_relative_and_absolute_times_are_local(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(home, "run")
    run.rank_log(0).write_text("an hour and a half ago\n")
    written = time.time() - 5400
    os.utime(run.rank_log(0), (written, written))
    before = datetime.fromtimestamp(written - 60).isoformat(timespec="minutes")
    after = datetime.fromtimestamp(written + 60).isoformat()
    for since, expected in (
        ("2h", True),
        ("1h", False),
        ("95m", True),
        ("5395", False),
        (before, True),
        (after, False),
    ):
        assert main(["logs", "run", "--since", since]) == 0
        assert bool(capsys.readouterr().out) is expected, since
