"""The index of finished runs: a cache that never shows anything but what the runs' folders hold."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.backends.local.backend import LocalBackend
from orchestrator.cli.ui import completers
from orchestrator.client import Orchestrator
from orchestrator.runs.status import RunState, RunStatus
from tests.run_folders import make_run

HOUR_AGO = time.time() - 3600


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home folder with finished runs, one that is running, and one that is damaged."""
    home = tmp_path / "home"
    for number, state in enumerate((RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED)):
        make_run(home, f"run-{number}", state, age=100 + number, ended=2000.0)
    make_run(home, "running", RunState.RUNNING, age=50)
    make_run(home, "damaged", age=200)
    (home / "runs" / "damaged" / "plan.json").write_text("{")
    settle(home)
    return home


def settle(home: Path) -> None:
    """Let all folders look as if they had not changed for an hour."""
    for folder in [path for path in home.rglob("*") if path.is_dir()]:
        os.utime(folder, (HOUR_AGO, HOUR_AGO))


def listed(home: Path) -> list[dict[str, object]]:
    return [status.as_dict() for status in Orchestrator(home=home, environ={}).runs()]


def names_in_index(home: Path) -> list[str]:
    _, *lines = (home / "cache" / "runs.tsv").read_text().splitlines()
    return sorted({line.split("\t")[0] for line in lines})


def without_index(home: Path) -> list[dict[str, object]]:
    shutil.rmtree(home / "cache")
    return listed(home)


def test_list_is_the_same_with_and_without_index(home: Path) -> None:
    first = listed(home)
    assert names_in_index(home) == ["run-0", "run-1", "run-2"]
    assert listed(home) == first
    assert without_index(home) == first


def test_finished_runs_are_read_from_the_index_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = listed(home)
    read: list[str] = []
    describe = LocalBackend.describe

    def counted(backend: LocalBackend, name: str) -> RunStatus:
        read.append(name)
        return describe(backend, name)

    monkeypatch.setattr(LocalBackend, "describe", counted)
    assert listed(home) == expected
    assert sorted(read) == ["damaged", "running"]


def opened_files(home: Path, command: Callable[[], object]) -> Counter[str]:
    """Return the names of the files of runs that a call opens, with their number."""
    found: list[Path] = []
    active = True

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if active and event == "open" and str(arguments[0]).startswith(str(home / "runs")):
            found.append(Path(str(arguments[0])))

    sys.addaudithook(note)  # a hook cannot be removed
    try:
        command()
    finally:
        active = False
    return Counter(path.name for path in found)


def test_commands_open_no_file_of_other_finished_runs(tmp_path: Path) -> None:
    """Their time then grows by some stat calls for each run; prune also reads the text of each plan."""
    for number in range(30):
        make_run(tmp_path, f"run-{number:02}", age=100 + number, ended=2000.0, plan={"data": {"sha256": "a"}})
    settle(tmp_path)
    orchestrator = Orchestrator(home=tmp_path, environ={})
    assert opened_files(tmp_path, orchestrator.runs)["plan.json"] == 30
    assert not opened_files(tmp_path, orchestrator.runs)
    one = opened_files(tmp_path, lambda: orchestrator.attach("run-07").status())
    assert one["plan.json"] == one["request.json"] == 1
    assert opened_files(tmp_path, lambda: completers.runs("run")) == {}
    assert opened_files(tmp_path, lambda: orchestrator.pruning(older_than=1.0)) == {"plan.json": 30}


def test_changed_runs_are_read_again(home: Path) -> None:
    listed(home)
    backend = LocalBackend(home)
    checkpoint = home / "runs" / "run-0" / "outputs" / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    (home / "runs" / "run-0" / "outputs" / "model").mkdir()
    settle(home)
    assert listed(home)[1]["model"] == str(home / "runs" / "run-0" / "outputs" / "model")
    backend.delete_weights("run-0", "to save space")
    assert listed(home)[1]["model"] is None
    run = home / "runs" / "run-1"
    state = json.loads((run / "state.json").read_text())
    (run / "new").write_text(json.dumps(state | {"state": "queued"}))
    (run / "new").rename(run / "state.json")
    assert [one["state"] for one in listed(home) if one["name"] == "run-1"] == ["queued"]
    backend.delete("run-2")
    assert "run-2" not in [one["name"] for one in listed(home)]


def test_run_that_has_just_ended_is_not_kept(home: Path) -> None:
    make_run(home, "fresh", age=1)
    listed(home)
    assert "fresh" not in names_in_index(home)


@pytest.mark.parametrize("damage", ["", "no head", "\0\0\0", "binary"])
def test_damaged_index_is_ignored(home: Path, damage: str) -> None:
    expected = listed(home)
    index = home / "cache" / "runs.tsv"
    whole = index.read_text()
    index.write_bytes(b"\xff\xfe" * 50 if damage == "binary" else damage.encode())
    assert listed(home) == expected
    index.write_text(whole[: len(whole) - 40])  # a line that was cut in the middle
    assert listed(home) == expected
    index.write_text(whole.replace('"state":"', '"state":"un'))
    assert listed(home) == expected


def test_moved_home_shows_its_new_folders(home: Path, tmp_path: Path) -> None:
    listed(home)
    home.rename(tmp_path / "moved")
    assert {str(one["folder"]).split("/runs/")[0] for one in listed(tmp_path / "moved")} == {str(tmp_path / "moved")}


def test_home_that_cannot_be_written_lists_its_runs(home: Path) -> None:
    (home / "cache").write_text("a file where the folder should be")
    assert len(listed(home)) == 5


def test_index_does_not_grow_without_end(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.backends.folder.run_index.SPARE_LINES", 5)
    for number in range(20):
        folder = home / "runs" / "run-0"
        os.utime(folder, (HOUR_AGO + number, HOUR_AGO + number))
        listed(home)
    assert len((home / "cache" / "runs.tsv").read_text().splitlines()) <= 5 + 5 + 2
    assert listed(home) == without_index(home)


def test_limit_reads_only_as_many(home: Path) -> None:
    assert [status.name for status in Orchestrator(home=home, environ={}).runs(limit=2)] == ["running", "run-0"]
    assert names_in_index(home) in (["run-0"], ["run-0", "run-1"])
