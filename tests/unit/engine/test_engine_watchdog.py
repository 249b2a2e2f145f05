"""The watchdog with processes that hang and some that only appear to; all run concurrently because they mostly wait."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_hang import LIMIT
from engine_toy import ALONE

from train_jobs.config import WatchdogConfig
from train_jobs.engine.runtime import distributed
from train_jobs.engine.runtime.diagnostics import Watchdog
from train_jobs.engine.runtime.distributed import Activity, World

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[3]
PATIENCE = 120  # seconds, enough for a machine under load
SCENES = {  # number of processes, and what happens to them
    "lock": (1, ["lock"]),
    "innocent": (1, ["stop", "debugger", "slow"]),
    "peers": (3, ["sleep", "stop"]),
}


@dataclass
class Scene:
    """A job and its outcome."""

    folder: Path
    processes: list[subprocess.Popen[str]]

    def codes(self) -> list[int]:
        return [process.returncode for process in self.processes]

    def log(self, rank: int = 0) -> str:
        """Return the log of a rank."""
        return (self.folder / f"log-{rank}").read_text()

    def error_document(self, rank: int = 0) -> dict[str, Any]:
        """Return the report that a rank wrote to the output folder."""
        document: dict[str, Any] = json.loads((self.folder / f"error-{rank}.json").read_text())
        return document


def start_scene(folder: Path, size: int, ways: list[str]) -> Scene:
    folder.mkdir()
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        **{key: value for key, value in os.environ.items() if not key.startswith("ORCHESTRATOR_")},
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, str(Path(__file__).with_name("engine_hang.py")), str(folder), *ways]
    processes = []
    for rank in range(size):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with (folder / f"log-{rank}").open("w") as log:
            processes.append(
                subprocess.Popen(
                    command, env={**common, **own}, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True
                )
            )
    return Scene(folder, processes)


def finish_scene(scene: Scene) -> None:
    for process in scene.processes:
        process.kill()
        process.communicate()


def state_of(process: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Scene]]:
    """Run all scenes to their end and yield them by name."""
    root = tmp_path_factory.mktemp("scenes")
    with ExitStack() as cleaning:
        found = {}
        for name, (size, ways) in SCENES.items():
            found[name] = start_scene(root / name, size, ways)
            cleaning.callback(finish_scene, found[name])
        (innocent,) = found["innocent"].processes
        wait_until(lambda: state_of(innocent) == "T", "it stops")
        time.sleep(2 * LIMIT)
        innocent.send_signal(signal.SIGCONT)
        wait_until(lambda: "(Pdb)" in found["innocent"].log(), "a prompt")
        time.sleep(2 * LIMIT)
        innocent.communicate("c\n", PATIENCE)
        *guilty, silent = found["peers"].processes
        for process in (*guilty, *found["lock"].processes):
            process.wait(PATIENCE)
        assert state_of(silent) == "T"
        silent.kill()
        silent.wait(PATIENCE)
        yield found


def test_hung_rank_prints_stack_and_exits_76(scenes: dict[str, Scene]) -> None:
    scene = scenes["peers"]
    assert scene.codes()[1] == 76
    error = scene.error_document(1)["error"]
    assert error["kind"] == "hang"
    assert error["message"] == "rank 1 made no progress for 5 s (last: forward of step 3)"
    assert error["facts"] == {"stacks": str(scene.folder / "stacks" / "hang-rank-1.txt")}
    log = scene.log(1)
    assert log.index(" in hang\n") < log.index(" in trouble\n") < log.index("error[hang]: rank 1")
    assert log.endswith(scene.error_document(1)["text"] + "\n")
    left = Path(error["facts"]["stacks"]).read_text()
    assert " in hang\n" in left
    assert "error[hang]: rank 1 made no progress" in left


def test_waiting_rank_names_stuck_and_silent_rank(scenes: dict[str, Scene]) -> None:
    scene = scenes["peers"]
    assert scene.codes() == [76, 76, -signal.SIGKILL]
    error = scene.error_document(0)["error"]
    assert error["message"] == "rank 0 made no progress for 5 s (last: reduction of step 3)"
    assert error["facts"] == {
        "waits": "for other ranks",
        "stuck": "rank 1 made no progress for 5 s (last: forward of step 3)",
        "silent": "rank 2: stopped, unreachable, or holding Python's lock",
        "stacks": str(scene.folder / "stacks" / "hang-rank-0.txt"),
    }
    assert scene.log(0).endswith(scene.error_document(0)["text"] + "\n")
    assert " in all_reduce\n" in scene.log(0)
    assert not (scene.folder / "stacks" / "hang-rank-2.txt").exists()


def test_cause_is_reported_before_its_consequences(scenes: dict[str, Scene]) -> None:
    """The launcher attributes the failure to the rank that exits first."""
    written = [(scenes["peers"].folder / f"error-{rank}.json").stat().st_mtime_ns for rank in (0, 1)]
    assert written[1] < written[0]


def test_process_holding_gil_is_killed(scenes: dict[str, Scene]) -> None:
    scene = scenes["lock"]
    assert scene.codes() == [1]
    assert "Timeout (0:00:13)!" in scene.log()
    assert " in hang\n" in scene.log()


def test_stopped_debugged_or_slow_rank_is_not_blamed(scenes: dict[str, Scene]) -> None:
    """A stopped process, one in a debugger, and one with many short steps each take longer than the limit."""
    scene = scenes["innocent"]
    assert scene.codes() == [0], scene.log()
    assert "error" not in scene.log()
    assert scene.log().endswith("done\n")


def watchdog_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "watchdog"]


def test_watchdog_thread_ends_with_context(tmp_path: Path) -> None:
    watchdog = Watchdog(WatchdogConfig(), ALONE, tmp_path)
    for _ in range(2):
        assert watchdog_threads() == []
        with watchdog:
            assert watchdog_threads() == ["watchdog"]
    with pytest.raises(ValueError, match="out"), watchdog:
        raise ValueError("out")
    assert watchdog_threads() == []


def test_watchdog_disabled_starts_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Watchdog(WatchdogConfig(hang_minutes=None), ALONE, tmp_path):
        assert watchdog_threads() == []
    monkeypatch.setenv("ORCHESTRATOR_DEBUG", "1")
    with Watchdog(WatchdogConfig(), ALONE, tmp_path):
        assert watchdog_threads() == []


def test_stage_and_wait_boundaries_are_progress() -> None:
    activity = Activity()
    seen = [activity.beats]
    with activity.doing("forward", step=3):
        seen.append(activity.beats)
        with activity.waiting():
            seen.append(activity.beats)
            assert (str(activity.stage), activity.stage.waits) == ("forward of step 3", True)
        seen.append(activity.beats)
        assert not activity.stage.waits
        activity.beat()
        seen.append(activity.beats)
    seen.append(activity.beats)
    assert str(activity.stage) == "forward of step 3"  # the last stage
    assert seen == sorted(set(seen))


def test_collective_timeout_exceeds_watchdog_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise they would end the process after 10 minutes on GPUs without naming the stuck rank."""
    for variable in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    timeouts: list[Any] = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, timeout, **__: timeouts.append(timeout))
    for seconds in (None, 60.0, 7200.0):
        distributed.start("cpu", hang_seconds=seconds)
    assert timeouts[0] is None
    assert timeouts[1].total_seconds() == 1800
    assert timeouts[2].total_seconds() > 7200 + 60


def test_single_rank_never_waits() -> None:
    world = World(rank=0, local_rank=0, size=1, device=torch.device("cpu"))
    before = world.activity.beats
    world.sum_(torch.ones(1))
    world.barrier()
    assert world.activity.beats == before
