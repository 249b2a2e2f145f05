"""The processes of a run: found by their environment or their control group, and ended.

Launcher, ranks and data workers die with their parent (see local/rank_process.py). This finds those that survive all
the same, such as a stopped or hung rank whose supervisor was killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from orchestrator.backends.folder.cgroup import kill_members, members, remove_cgroup
from orchestrator.backends.folder.run_folder import RUN_VARIABLE, LocalState, RunFolder
from orchestrator.support.errors import ConflictError
from orchestrator.support.moved_home import is_same
from train_jobs.artifacts.host import boot_id, process_started

SAVE_SECONDS = 10.0  # for a checkpoint, between SIGTERM and SIGKILL
EXIT_SECONDS = 20.0  # a killed process with many gigabytes takes seconds to free them
POLL_SECONDS = 0.02
RUN_BYTES = f"{RUN_VARIABLE}=".encode()


def processes_of(folder: Path) -> list[int]:
    """Return the ids of all processes of a run, found by environment or control group, except this process."""
    # The environment is inherited by all descendants and, unlike process groups and parents, survives setsid and the
    # death of the launcher: data loader workers are found too.
    found = members(folder) - {os.getpid()}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if _belongs(entry, folder):
                found.add(int(entry.name))
        except OSError:
            continue  # the process ended, or belongs to another user
    return sorted(found)


def _belongs(process: Path, folder: Path) -> bool:
    """Return whether a process of a run is one of the run in this folder, also if a link leads there or it was moved.

    Args:
        process: its folder below /proc.
        folder: folder of the run.

    Raises:
        OSError: the process ended, or belongs to another user.
    """
    variables = (process / "environ").read_bytes().split(b"\0")
    named = next((value for value in variables if value.startswith(RUN_BYTES)), None)
    if named is None:
        return False
    path = Path(os.fsdecode(named[len(RUN_BYTES) :]))
    # a moved folder no longer has the path of the environment; the kernel follows the working folder of the process
    return path.name == folder.name and (is_same(path, folder) or is_same(process / "cwd", folder / "code"))


def survivors(run: RunFolder) -> list[int]:
    """Return the ids of the processes of a run whose supervisor was killed; empty if it lives or ended by itself."""
    with suppress(OSError, ValueError):  # a damaged state: nothing is known of its processes
        if not _is_lost(run.state()):
            return []
    return [] if run.locked() else processes_of(run.path)


def _is_lost(state: LocalState) -> bool:
    """Return whether the supervisor was killed in this boot of the machine."""
    # A supervisor that ends by itself ends all processes and clears its pid. /proc is read only for lost runs, because
    # a clean-up or a list asks for thousands of runs.
    return state.state.terminal and state.pid is not None and state.boot_id == boot_id()


def survivors_warning(run: RunFolder, state: LocalState) -> str | None:
    """Return a warning that processes outlived the supervisor of a run; None if no process did."""
    if not _is_lost(state) or not (found := survivors(run)):
        return None
    listed = ", ".join(map(str, sorted(found)))
    return f"processes still run without a supervisor: {listed}; to end them: orchestrator cancel {run.name}"


def end_survivors(run: RunFolder) -> None:
    """End the processes of a run that has no supervisor any more: SIGTERM, so that ranks save, and 10 s later SIGKILL.

    Raises:
        ConflictError: one of them cannot be ended.
    """
    if not (found := survivors(run)):
        return
    _signal_all(found, signal.SIGTERM)
    _wait_until(lambda: not _any_lives(found), SAVE_SECONDS)
    kill_leftovers(run.path)
    if left := survivors(run):
        listed = " ".join(map(str, left))
        raise ConflictError(
            f"cannot end the processes of run {run.name}", facts={"processes": listed}, fix=f"kill -9 {listed}"
        )
    print(f"ended {len(found)} processes of run {run.name}, whose supervisor was lost", file=sys.stderr, flush=True)


def kill_leftovers(folder: Path) -> None:
    """Kill the processes that a run left behind, and wait until they no longer exist, for at most 20 s.

    Only then are their memory, GPUs and ports free for the next attempt.
    """
    killed = processes_of(folder)
    _signal_all(killed, signal.SIGKILL)
    kill_members(folder)
    # While threads of a killed process still run, its main thread is a zombie and the process is in its group.
    _wait_until(lambda: not (_any_lives(killed) or members(folder)), EXIT_SECONDS)
    remove_cgroup(folder)


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):  # another user's: the caller reports them
            os.kill(pid, number)


def _any_lives(pids: Iterable[int]) -> bool:
    return any(process_started(pid) is not None for pid in pids)


def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
