"""Logs of run folders: selection, offset, order and tail."""

from __future__ import annotations

import os
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.backends.folder.log_files import CELL
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.backends.log_query import LogBlock, LogLine, LogQuery
from orchestrator.client import Orchestrator
from orchestrator.runs.status import RunState
from orchestrator.support.errors import NotFoundError
from tests.conftest import wait_for
from tests.run_folders import live_run, make_run

RANK_0, ALL = LogQuery(), LogQuery(ranks=None)


def read(home: Path, query: LogQuery = RANK_0, name: str = "run") -> bytes:
    """Return the result of a query, unchanged."""
    return b"".join(block.data for block in LocalBackend(home).logs(name, query))


def texts(home: Path, query: LogQuery = RANK_0, name: str = "run") -> list[str]:
    """Return lines, with labels where several logs are read."""
    return [
        f"[{block.source.label}] {line.text}" if query.several else line.text
        for block in LocalBackend(home).logs(name, query)
        for line in block.lines()
    ]


def write_log(run: RunFolder, rank: int, *seconds: tuple[float, str]) -> None:
    """Write the log of a rank with its marks: offsets at given times."""
    log, offset = run.rank_log(rank), 0
    with log.with_suffix(".times").open("w") as marks:
        for moment, text in seconds:
            with log.open("a") as stream:
                stream.write(text)
            offset += len(text.encode())
            marks.write(f"{moment:014.3f} {offset:016d}\n")
            os.utime(log, (moment, moment))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"no end",
        b"one\ntwo\n",
        b"\n\n\nlast",
        b"\xff\xfe\n\x80 not UTF-8\n",
        b"carriage\r\nreturn\rs\r\n",
        "\u00fcber alles Ma\u00df\n\U0001f600".encode(),
        b"\n".join(b"%d" % number * (number % 300) for number in range(5000)),
    ],
)
def test_logs_are_returned_as_written(tmp_path: Path, data: bytes) -> None:
    run = make_run(tmp_path, "run")
    run.rank_log(0).write_bytes(data)
    assert read(tmp_path) == data
    expected = data.decode(errors="replace").split("\n")
    expected = [text.removesuffix("\r") for text in (expected if expected[-1] else expected[:-1])]
    assert texts(tmp_path) == expected
    assert texts(tmp_path, LogQuery(follow=True)) == expected


def lines_of_all_lengths(seed: int) -> bytes:
    """Return mostly short lines, some that fill a cell, some that fill several."""
    draw = random.Random(seed)
    lengths = draw.choices([0, 1, 50, CELL // 2, CELL - 1, CELL, CELL + 1, 5 * CELL // 2, 3 * CELL], k=25)
    text = b"\n".join(draw.choice(b"abc").to_bytes() * length for length in lengths)
    text += b"\n" + b"a" * draw.randint(1, 2 * CELL) + b"end of the line"
    return text + draw.choice([b"", b"\n"])


@pytest.mark.parametrize("seed", range(10))
def test_long_lines_are_split_into_the_same_pieces(tmp_path: Path, seed: int) -> None:
    run, data = make_run(tmp_path, "run"), lines_of_all_lengths(seed)
    run.rank_log(0).write_bytes(data)
    ends = [place.end() for place in re.finditer(rb"\n", data)]
    marks = zip((1, 2, 3), sorted(random.Random(seed).sample(ends, 3)), strict=True)
    run.rank_log(0).with_suffix(".times").write_text("".join(f"{second:014.3f} {end:016d}\n" for second, end in marks))
    assert read(tmp_path) == data
    pieces = texts(tmp_path)
    assert "".join(pieces) == data.replace(b"\n", b"").decode()
    assert max(len(piece) for piece in pieces) <= 2 * CELL
    short = Counter(line for line in data.decode().splitlines() if len(line) < CELL)
    assert short <= Counter(pieces)  # short lines are not split
    some = re.compile("b|^$|end of the line")
    for since in (None, 1.5, 2.5, 3.5):
        later = texts(tmp_path, LogQuery(since=since))
        fitting = [piece for piece in later if some.search(piece)]
        for count in (0, 1, 2, 7, len(later), len(later) + 5):
            assert texts(tmp_path, LogQuery(since=since, tail=count)) == (later[-count:] if count else [])
            assert texts(tmp_path, LogQuery(since=since, tail=count, grep=some)) == (fitting[-count:] if count else [])


def test_tail_counts_only_matching_lines(tmp_path: Path) -> None:
    run = make_run(tmp_path, "run")
    run.rank_log(0).write_text("".join(f"step {number}\n" for number in range(50_000)) + "half a step")
    assert texts(tmp_path, LogQuery(tail=2)) == ["step 49999", "half a step"]
    of_seven = LogQuery(grep=re.compile(r"step (7|77|777)$"))
    assert texts(tmp_path, of_seven) == ["step 7", "step 77", "step 777"]
    assert texts(tmp_path, replace(of_seven, tail=2)) == ["step 77", "step 777"]
    assert texts(tmp_path, replace(of_seven, tail=20)) == ["step 7", "step 77", "step 777"]
    assert texts(tmp_path, LogQuery(tail=3, grep=re.compile("nowhere"))) == []


def test_since_returns_newer_lines(tmp_path: Path) -> None:
    write_log(make_run(tmp_path, "run"), 0, (100, "a\nb\nc, half"), (200, " and whole\nd\n"), (300, "e\n"))
    everything = ["a", "b", "c, half and whole", "d", "e"]
    for since, expected in ((99, everything), (100, everything), (101, everything[2:]), (200, everything[2:])):
        assert texts(tmp_path, LogQuery(since=since)) == expected
    assert texts(tmp_path, LogQuery(since=201)) == ["e"]
    assert texts(tmp_path, LogQuery(since=301)) == []
    assert texts(tmp_path, LogQuery(since=150, tail=2)) == ["d", "e"]
    assert texts(tmp_path, LogQuery(since=150, tail=9)) == everything[2:]
    assert texts(tmp_path, LogQuery(since=150, grep=re.compile("[ae]$"))) == ["c, half and whole", "e"]


def test_lines_of_several_ranks_are_sorted_by_time(tmp_path: Path) -> None:
    run = make_run(tmp_path, "run", nodes=2, processes_per_node=2)
    write_log(run, 0, (100, "a\nb\n"), (103, "c\n"))
    write_log(run, 1, (101, "d, half"), (104, " and whole\n"))
    write_log(run, 3, (100, "e\n"), (102, "f\n"), (105, "g"))
    assert texts(tmp_path, ALL) == [
        *("[0:0] a", "[0:0] b", "[1:3] e", "[1:3] f", "[0:0] c", "[0:1] d, half and whole", "[1:3] g")
    ]
    assert texts(tmp_path, LogQuery(ranks=(3, 0, 3), since=102)) == ["[1:3] f", "[0:0] c", "[1:3] g"]
    assert texts(tmp_path, LogQuery(ranks=None, node=1)) == ["[1:3] e", "[1:3] f", "[1:3] g"]
    assert texts(tmp_path, LogQuery(ranks=None, tail=1)) == ["[0:0] c", "[0:1] d, half and whole", "[1:3] g"]
    assert texts(tmp_path, LogQuery(ranks=(3,))) == ["e", "f", "g"]
    assert texts(tmp_path, LogQuery(ranks=None, grep=re.compile("^[eg]"))) == ["[1:3] e", "[1:3] g"]


def test_outdated_marks_after_truncation_are_harmless(tmp_path: Path) -> None:
    run = make_run(tmp_path, "run")
    write_log(run, 0, (100, "a" * 50 + "\n"), (200, "b" * 50 + "\n"))
    write_log(run, 1, (150, "c\n"))
    run.rank_log(0).write_text("new\n")
    assert sorted(texts(tmp_path, ALL)) == ["[0:0] new", "[0:1] c"]
    assert texts(tmp_path, LogQuery(since=150)) == []  # nothing, according to the marks; no crash


def test_logs_of_the_launcher(tmp_path: Path) -> None:
    run = make_run(tmp_path, "run", nodes=2, processes_per_node=1)
    for name in ("supervisor", "agent-0", "agent-1", "mirror", "rank-0"):
        (run.logs / f"{name}.log").write_text(f"{name}\n")
        os.utime(run.logs / f"{name}.log", (100, 100))
    launcher = ["[supervisor] supervisor", "[0:agent] agent-0", "[1:agent] agent-1", "[mirror] mirror"]
    assert texts(tmp_path, LogQuery(ranks=(), launcher=True)) == launcher
    assert texts(tmp_path, LogQuery(ranks=None, launcher=True)) == [*launcher, "[0:0] rank-0"]
    assert texts(tmp_path, LogQuery(ranks=(), launcher=True, node=1)) == ["[1:agent] agent-1"]
    (block,) = LocalBackend(tmp_path).logs("run", LogQuery(ranks=(), launcher=True, node=1))
    (line,) = block.lines()
    assert line == LogLine("agent-1", rank=None, node=1, writer="agent")


@pytest.mark.parametrize(
    ("query", "message", "facts"),
    [
        (LogQuery(ranks=(4,)), "run run has no rank 4", {"ranks": "0 to 3"}),
        (LogQuery(ranks=(0, -1)), "run run has no rank -1", {"ranks": "0 to 3"}),
        (LogQuery(node=2), "run run has no node 2", {"nodes": "0 to 1"}),
        (LogQuery(node=-1), "run run has no node -1", {"nodes": "0 to 1"}),
        (LogQuery(ranks=(1,), node=1), "node 1 of run run has no rank 1", {"ranks": "2 to 3"}),
    ],
)
def test_missing_ranks_and_nodes_are_refused(
    tmp_path: Path, query: LogQuery, message: str, facts: dict[str, str]
) -> None:
    make_run(tmp_path, "run", nodes=2, processes_per_node=2)
    with pytest.raises(NotFoundError, match=message) as caught:
        LocalBackend(tmp_path).logs("run", query)
    assert caught.value.facts == facts


@pytest.mark.parametrize("request_json", ["", "[]", "{}", '{"nodes": 1}', "\0\0\0"])
def test_logs_of_damaged_folder_are_readable(tmp_path: Path, request_json: str) -> None:
    run = make_run(tmp_path, "run")
    run.rank_log(1).write_text("one\n")
    run.rank_log(0).write_text("zero\n")
    os.utime(run.rank_log(1), (100, 100))
    (run.path / "request.json").write_text(request_json)
    (run.path / "state.json").write_text("{")
    (run.path / "plan.json").unlink()
    assert texts(tmp_path, ALL) == ["[0:1] one", "[0:0] zero"]
    assert texts(tmp_path, LogQuery(ranks=(1,), follow=True)) == ["one"]


class Follower:
    """Reads in a thread, like a user who follows the log."""

    def __init__(self, home: Path, query: LogQuery) -> None:
        self.blocks: list[LogBlock] = []
        self.idle = 0
        self._thread = threading.Thread(target=self._read, args=(LocalBackend(home).logs("run", query),))
        self._thread.start()

    def _read(self, blocks: Iterator[LogBlock]) -> None:
        for block in blocks:
            if block.data:
                self.blocks.append(block)
            else:
                self.idle += 1

    @property
    def data(self) -> bytes:
        return b"".join(block.data for block in self.blocks)

    def wait_for(self, data: bytes) -> None:
        wait_for(lambda: data in self.data, seconds=20, what=f"{data!r} in {self.data!r}")

    def rest(self) -> None:
        """Wait until another poll finds nothing; return the rest."""
        before = self.idle
        wait_for(lambda: self.idle >= before + 2, seconds=20, what="a poll without new lines")

    def end(self) -> bytes:
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()
        return self.data


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


def test_follow_reads_log_from_creation_to_end(tmp_path: Path) -> None:
    with live_run(tmp_path, "run", RunState.QUEUED) as run:
        follower = Follower(tmp_path, LogQuery(follow=True, tail=1))  # of an empty log: everything later is new
        follower.rest()
        log = run.rank_log(0)
        append(log, b"one\ntwo\n")
        follower.wait_for(b"one\ntwo\n")
        append(log, b"half ")
        follower.rest()
        assert follower.data == b"one\ntwo\n"
        append(log, b"a line\nthe last ")
        follower.wait_for(b"half a line\n")
        append(log, b"word")
    assert follower.end() == b"one\ntwo\nhalf a line\nthe last word"


def test_follow_starts_with_a_tail(tmp_path: Path) -> None:
    with live_run(tmp_path, "run") as run:
        log = run.rank_log(0)
        append(log, b"1\n2 fits\n3 fits\n4\nhalf")
        follower = Follower(tmp_path, LogQuery(follow=True, tail=1, grep=re.compile("fits")))
        bare = Follower(tmp_path, LogQuery(follow=True, tail=0))
        follower.rest()
        bare.rest()
        append(log, b" and fits\n6\n7 fits\n")
    assert follower.end() == b"3 fits\nhalf and fits\n7 fits\n"
    assert bare.end() == b" and fits\n6\n7 fits\n"


def test_follow_survives_truncation_and_replacement(tmp_path: Path) -> None:
    with live_run(tmp_path, "run") as run:
        log = run.rank_log(0)
        append(log, b"old one\nold two\ncut")
        follower = Follower(tmp_path, LogQuery(follow=True))
        follower.wait_for(b"old two\n")
        follower.rest()
        log.write_bytes(b"new\n")
        follower.wait_for(b"new\n")
        other = run.logs / "other"
        other.write_bytes(b"replaced by more than there was before it\n")
        append(log, b"at last\n")
        other.rename(log)
        follower.wait_for(b"before it\n")
        log.unlink()
        follower.rest()
        append(log, b"and a third\n")
        follower.wait_for(b"third\n")
    assert follower.end() == (
        b"old one\nold two\ncut\nnew\nat last\nreplaced by more than there was before it\nand a third\n"
    )


def test_follow_covers_restart_and_several_ranks(tmp_path: Path) -> None:
    with live_run(tmp_path, "run", RunState.STARTING) as run:
        follower = Follower(tmp_path, LogQuery(ranks=None, follow=True))
        append(run.rank_log(1), b"attempt 1\n")
        follower.wait_for(b"attempt 1\n")
        for state in (RunState.QUEUED, RunState.STARTING, RunState.RUNNING):
            run.write_state(run.state().model_copy(update={"state": state, "attempt": 2}))
        follower.rest()
        append(run.rank_log(0), b"attempt 2\n")
        append(run.rank_log(1), b"attempt 2\n")
        follower.rest()
    follower.end()
    assert [(block.source.label, block.data) for block in follower.blocks] == [
        *(("0:1", b"attempt 1\n"), ("0:0", b"attempt 2\n"), ("0:1", b"attempt 2\n"))
    ]


def test_follow_ends_when_run_is_deleted(tmp_path: Path) -> None:
    with live_run(tmp_path, "run") as run:
        append(run.rank_log(0), b"one\n")
        follower = Follower(tmp_path, LogQuery(follow=True))
        follower.wait_for(b"one\n")
        run.path.rename(tmp_path / "grave")
        assert follower.end() == b"one\n"
        (tmp_path / "grave").rename(run.path)


def test_sdk_logs_accept_the_options_of_the_command(tmp_path: Path) -> None:
    run = make_run(tmp_path, "run", nodes=2, processes_per_node=2)
    (run.logs / "agent-1.log").write_text("agent\n")
    for rank in range(4):
        write_log(run, rank, (100 + rank, f"first of {rank}\n"), (200 + rank, f"second of {rank}\n"))
    logs = Orchestrator(home=tmp_path, environ={}).attach("run").logs
    assert [line.text for line in logs()] == ["first of 0", "second of 0"]
    assert list(logs(rank=3, tail=1)) == [LogLine("second of 3", rank=3, node=1)]
    assert [line.rank for line in logs(rank=(0, 2), since=200)] == [0, 2]
    assert [line.rank for line in logs(all_ranks=True, grep="first")] == [0, 1, 2, 3]
    assert [line.rank for line in logs(node=1, grep=re.compile("FIRST", re.IGNORECASE))] == [2, 3]
    assert [line.text for line in logs(launcher=True, node=1)] == ["agent"]
    assert [line.writer for line in logs(launcher=True, rank=0, tail=1)] == ["rank", "agent"]
    assert len(list(logs(launcher=True, all_ranks=True, follow=True))) == 9
    with pytest.raises(NotFoundError, match="no rank 4"):
        logs(rank=4)
