"""The commands download and prune."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path

import pexpect
import pytest

from orchestrator.cli.ui import terminal as transfer
from orchestrator.runs.status import RunState
from tests.conftest import Console
from tests.run_folders import make_run
from tests.unit.cli.conftest import Command


def make_model(home: Path) -> None:
    run = make_run(home, "one")
    run.model.mkdir()
    (run.model / "weights").write_bytes(b"weights")


def runs_of(home: Path) -> set[str]:
    return {path.name for path in (home / "runs").iterdir()}


def test_download_copies_model_and_prints_its_path(home: Path, orchestrator: Command) -> None:
    make_model(home)
    done = orchestrator("download", "@last")
    assert (done.code, done.out, done.err) == (0, "one/model\n", "")
    assert Path("one/model/weights").read_bytes() == b"weights"
    refused = orchestrator("download", "@last", "-o", "json")
    assert refused.code == 1
    assert refused.json["error"]["kind"] == "conflict"
    assert orchestrator("download", "@last", "--force").code == 0


def test_download_copies_selected_or_all_outputs(home: Path, orchestrator: Command) -> None:
    make_model(home)
    done = orchestrator("download", "one", "plan", "logs", "--to", "to", "-o", "json")
    assert done.json == {"run": "one", "paths": ["to/plan.json", "to/logs"]}
    everything = orchestrator("download", "one", "--all", "--to", "all").out
    assert everything == "all/logs\nall/model\nall/plan.json\n"
    refused = orchestrator("download", "one", "model", "--all")
    assert (refused.code, refused.out) == (2, "")
    missing = orchestrator("download", "one", "checkpoints")
    assert missing.code == 5
    assert "has    logs, model, plan" in missing.err


def test_long_transfer_shows_progress_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return True

    clock = [0.0]
    monkeypatch.setattr(transfer.time, "monotonic", lambda: clock[0])
    monkeypatch.setenv("TERM", "xterm")
    stream = Stream()
    show = transfer.TransferLine(stream)
    show("one", 0, 50_000_000)
    show("one", 10_000_000, 50_000_000)
    assert stream.getvalue() == ""
    clock[0] = transfer.SILENT_SECONDS
    show("one", 25_000_000, 50_000_000)
    show("one", 26_000_000, 50_000_000)  # instant: no frame is drawn
    show("one", 50_000_000, 50_000_000)
    show.end()
    assert [amount in stream.getvalue() for amount in ("25.0/50.0 MB", "26.0/50.0", "50.0/50.0 MB")] == [
        True,
        False,
        True,
    ]


def test_prune_needs_a_rule(home: Path, orchestrator: Command) -> None:
    make_run(home, "one")
    refused = orchestrator("prune", "--yes")
    assert refused.code == 2
    assert "--keep-last, --older-than or --state" in refused.err
    assert runs_of(home) == {"one"}


def test_prune_without_confirmation_deletes_nothing(
    home: Path, orchestrator: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(home, "one")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))  # no terminal
    refused = orchestrator("prune", "--older-than", "1s")
    assert refused.code == 2
    assert "error[usage]: cannot delete 1 run" in refused.err
    assert "--yes" in refused.err
    assert runs_of(home) == {"one"}


def test_prune_dry_run_lists_names_and_bytes(home: Path, orchestrator: Command) -> None:
    for age, name in enumerate(["new", "old"]):
        make_run(home, name, age=age, ended=time.time() - 86400 * 3)
    (home / "runs/old/outputs/big").write_bytes(b"x" * 5_000_000)
    done = orchestrator("prune", "--keep-last", "1", "--dry-run")
    assert done.code == 0
    header, row, amount = done.out.splitlines()
    assert header.split() == ["NAME", "STATE", "ENDED", "SIZE"]
    assert row.split() == ["old", "completed", "3", "d", "ago", "5", "MB"]
    assert amount == "would be deleted: 1 run, 5 MB"
    document = orchestrator("prune", "--keep-last", "1", "--dryrun", "-o", "json").json
    assert document["dry_run"] is True
    assert [item["name"] for item in document["runs"]] == ["old"]
    assert runs_of(home) == {"new", "old"}


def test_prune_deletes_listed_runs_and_reports_bytes(home: Path, orchestrator: Command) -> None:
    for age, (name, state) in enumerate([("a", "completed"), ("b", "failed"), ("c", "failed"), ("d", "completed")]):
        make_run(home, name, RunState(state), age=age, ended=time.time() - 86400 * age)
    done = orchestrator("prune", "--state", "failed", "--keep-last", "1", "-y")
    assert done.code == 0
    assert done.out.splitlines()[1].split()[0] == "c"
    assert done.out.splitlines()[-1].startswith("freed ")
    assert runs_of(home) == {"a", "b", "d"}
    document = orchestrator("prune", "--older-than", "2d", "-y", "-o", "json").json
    assert [item["name"] for item in document["deleted"]] == ["d"]
    assert document["freed_bytes"] == document["deleted"][0]["bytes"] > 0
    assert (document["dry_run"], document["kept"]) == (False, {})
    nothing = orchestrator("prune", "--older-than", "2d", "-y")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "nothing to delete\n")


def test_prune_lists_unused_token_stores(home: Path, orchestrator: Command) -> None:
    make_run(home, "one", plan={"data": {"sha256": "a"}})
    store = home / "token-stores" / "key"
    store.mkdir(parents=True)
    (store / "manifest.json").write_text('{"data": {"sha256": "a"}}')
    (store / "shard").write_bytes(b"x" * 2_000_000)
    kept = orchestrator("prune", "--state", "completed", "--dry-run")
    assert "kept: 2 MB of token stores that no remaining run uses; --stores deletes them" in kept.err
    shown = orchestrator("prune", "--state", "completed", "--dry-run", "--stores")
    assert "1 token store" in shown.out
    assert shown.err == ""
    assert orchestrator("prune", "--state", "completed", "--stores", "-y").code == 0
    assert list((home / "token-stores").iterdir()) == []


def test_prune_of_stores_alone_deletes_no_run(home: Path, orchestrator: Command) -> None:
    make_run(home, "one", plan={"data": {"sha256": "a"}})
    for sha256 in "ab":
        (store := home / "token-stores" / sha256).mkdir(parents=True)
        (store / "manifest.json").write_text(json.dumps({"data": {"sha256": sha256}}))
    assert orchestrator("prune", "--stores", "-y").code == 0
    assert runs_of(home) == {"one"}
    assert [store.name for store in (home / "token-stores").iterdir()] == ["a"]


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, set()), ("", 1, {"one"}), ("no", 1, {"one"})])
def test_prune_on_terminal_asks_for_confirmation(tmp_path: Path, answer: str, code: int, left: set[str]) -> None:
    console = Console(home=tmp_path / "home", cwd=tmp_path)
    make_run(console.home, "one")
    words = ["-m", "orchestrator.cli.main", "prune", "--state", "completed"]
    terminal = pexpect.spawn(
        sys.executable, words, cwd=str(tmp_path), env=console.environ(NO_COLOR="1"), encoding="utf-8"
    )
    terminal.expect(r"one +completed")
    terminal.expect(r"delete 1 run, .*B\? \[y/N\] ")
    terminal.sendline(answer)
    terminal.expect("freed" if code == 0 else "nothing was deleted")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == code
    assert runs_of(console.home) == left
