"""The processes of a local run: an agent of torchrun for each node and, below it, ranks with a log and an exit code."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

from orchestrator.backends.folder.run_folder import RUN_VARIABLE, TAGS_VARIABLE, FolderRequest, RunFolder
from orchestrator.support.errors import ConflictError
from train_jobs.artifacts.host import process_started

LOOPBACK = "127.0.0.1"
PR_SET_PDEATHSIG = 1  # of prctl(2), from linux/prctl.h
EXIT_SECONDS = 20.0  # a killed process with many gigabytes takes seconds to free them

# The shell appends both streams to one file per rank, and writes the exit code: a killed rank cannot do that itself.
# TERM is caught, not ignored, because a rank would inherit an ignored signal and never save a checkpoint, while a
# caught one is reset to its default when the shell starts the rank (POSIX, execve). Without the trap, the shell would
# die of torchrun's SIGTERM before it could write the exit code.
RANK_WRAPPER = (
    'trap : TERM; "$0" "$@" >>"$RUN_LOGS/rank-$RANK.log" 2>&1; code=$?; echo $code >"$RUN_EXITS/rank-$RANK"; exit $code'
)


class LocalRequest(FolderRequest):
    """Request for a run on this machine."""

    command: list[str]
    """The command of each rank."""
    master_port: int
    """Rendezvous port on the loopback interface; 0: any free one."""


def check_port(port: int) -> None:
    """Check that the rendezvous port is free; 0, which means any free port, always is.

    Raises:
        ConflictError: another process listens on it.
    """
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        # a port of the previous attempt is in TIME_WAIT for a minute, which does not prevent torchrun from binding it
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as problem:
            raise ConflictError(
                f"cannot use port {port}: it is in use",
                facts={"where": f"compute.master_port on {LOOPBACK}", "reason": problem.strerror},
                fix="--set compute.master_port=0 (any free port)",
            ) from None


def free_port() -> int:
    """Return a port on which no process listens at this moment.

    Another process may take it before torchrun binds it. Torchrun cannot choose it itself here, because all agents of
    a run need the same one on their command lines.
    """
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def start_agents(
    run: RunFolder, request: LocalRequest, *, attempt: int, tracking: Mapping[str, str]
) -> list[subprocess.Popen[bytes]]:
    """Start torchrun's agent of each node. Every node is this machine, and finds the first over the loopback.

    Args:
        run: folder of the run.
        request: number of nodes and ranks, their command and their environment.
        attempt: number of the attempt.
        tracking: environment variables by which the ranks find the MLflow run.
    """
    exits = run.exits(attempt)
    exits.mkdir(parents=True, exist_ok=True)
    common = {**os.environ, **_variables(run, request, exits), **tracking}
    port = str(request.master_port or free_port())
    return [_start_agent(run, request, node, port, common) for node in range(request.nodes)]


def _start_agent(
    run: RunFolder, request: LocalRequest, node: int, port: str, common: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", str(request.nodes), "--node-rank", str(node)),
        *("--nproc-per-node", str(request.processes_per_node)),
        *("--master-addr", LOOPBACK, "--master-port", port),
        *("--max-restarts", "0", "--no-python", "/bin/sh", "-c", RANK_WRAPPER),
        *request.command,
    ]
    with run.agent_log(node).open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=run.code,
            env={**common, **_node_variables(request, node, port)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # a session of its own: Ctrl-C in the user's terminal and the supervisor's process group do not reach it
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )


def _node_variables(request: LocalRequest, node: int, port: str) -> dict[str, str]:
    """Return the variables that a cluster sets on each node; several nodes on this machine divide the GPUs."""
    found = {"NODE_RANK": str(node), "MASTER_ADDR": LOOPBACK, "MASTER_PORT": port}
    if request.device == "gpu" and request.nodes > 1:
        first = node * request.processes_per_node
        found["CUDA_VISIBLE_DEVICES"] = ",".join(str(first + local) for local in range(request.processes_per_node))
    return found


def _variables(run: RunFolder, request: LocalRequest, exits: Path) -> dict[str, str]:
    ours = {
        RUN_VARIABLE: str(run.path),
        TAGS_VARIABLE: str(run.tags),
        "RUN_LOGS": str(run.logs),
        "RUN_EXITS": str(exits),
        # the snapshot alone: modules from the caller's PYTHONPATH would make the run differ from its recorded code
        "PYTHONPATH": str(run.code),
        "PYTHONUNBUFFERED": "1",  # the last lines before a kill would stay in a buffer
        "PYTHONDONTWRITEBYTECODE": "1",  # bytecode would appear as changed code in `orchestrator diff`
        "OMP_NUM_THREADS": str(request.threads),
        # gloo would choose the interface by the name of the machine, which has no address on some of them
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "true"),
    }
    if request.device == "cpu":
        ours["CUDA_VISIBLE_DEVICES"] = ""  # a job on the CPU must not touch the GPUs of other runs
        # GNU OpenMP lets waiting threads spin by default: with more runnable threads than cores, spinning ones hold
        # the cores that the working ones need
        ours["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
    return {**ours, **request.variables}


def _die_with_parent() -> None:
    """Make the kernel send SIGTERM when the supervisor dies, even by SIGKILL: the ranks then save and stop.

    It runs between fork and exec, where only the calling thread exists: it imports nothing and takes no lock.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def processes_of(folder: Path) -> list[int]:
    """Return the ids of all processes that have a run's folder in their environment, except this process."""
    # The environment is inherited by all descendants and, unlike process groups and parents, survives setsid and the
    # death of the launcher: data loader workers are found too.
    found = []
    needle = f"{RUN_VARIABLE}={folder}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # the process ended, or belongs to another user
    return found


def kill_leftovers(folder: Path) -> None:
    """Kill the processes that a run left behind, and wait until they no longer exist, for at most 20 s.

    Only then are their memory, GPUs and ports free for the next attempt.
    """
    killed = processes_of(folder)
    for pid in killed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + EXIT_SECONDS
    while any(process_started(pid) is not None for pid in killed) and time.monotonic() < deadline:
        time.sleep(0.02)
