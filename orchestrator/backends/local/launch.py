"""The processes of a local run: an agent of torchrun for each node and, below it, ranks with a log and an exit code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.backends.folder.cgroup import enter_cgroup, make_cgroup
from orchestrator.backends.folder.run_folder import RUN_VARIABLE, TAGS_VARIABLE, FolderRequest, RunFolder
from orchestrator.backends.local import rank_process
from orchestrator.backends.local.rank_process import RESERVE_VARIABLE, FilteredOutput, die_with_parent, open_log
from orchestrator.support.errors import ConflictError
from orchestrator.support.home import compile_variables

LOOPBACK = "127.0.0.1"
# by path, not by module: the code of a run comes first on its PYTHONPATH, and may be older
FIRST_AGENT = Path(rank_process.__file__).parents[3] / "train_jobs" / "tools" / "loopback_agent.py"


class LocalRequest(FolderRequest):
    """Request for a run on this machine."""

    command: list[str]
    """The command of each rank."""
    master_port: int
    """Rendezvous port on the loopback interface; 0: any free one."""


@contextmanager
def held_port(port: int) -> Iterator[socket.socket]:
    """Hold the rendezvous port until the block ends; 0 chooses a free one.

    A socket that is bound but does not listen keeps the kernel from giving its port to other processes. The agent of
    the first node inherits it, and listens on it seconds later. It cannot choose the port itself: all agents of a run
    need the same one on their command lines.

    Yields:
        The bound socket.

    Raises:
        ConflictError: another process listens on it.
    """
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as holder:
        # a port of the previous attempt is in TIME_WAIT for a minute: SO_REUSEADDR allows that too
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind((LOOPBACK, port))
        except OSError as problem:
            raise ConflictError(
                f"cannot use port {port}: it is in use",
                facts={"where": f"compute.master_port on {LOOPBACK}", "reason": problem.strerror},
                fix="--set compute.master_port=0 (any free port)",
            ) from None
        yield holder


def check_port(port: int) -> None:
    """Check that the rendezvous port is free; 0, which means any free port, always is.

    Raises:
        ConflictError: another process listens on it.
    """
    with held_port(port):
        pass


@dataclass(frozen=True)
class Agent:
    """The agent of one node."""

    process: subprocess.Popen[bytes]
    output: FilteredOutput
    """Copies its output to its log."""


def start_agents(
    run: RunFolder, request: LocalRequest, *, attempt: int, holder: socket.socket, variables: Mapping[str, str]
) -> list[Agent]:
    """Start torchrun's agent of each node. Every node is this machine, and finds the first over the loopback.

    Args:
        run: folder of the run.
        request: number of nodes and ranks, their command and their environment.
        attempt: number of the attempt.
        holder: socket of the rendezvous, see `held_port`; the caller may close it afterwards.
        variables: environment variables by which the ranks find the MLflow run and the clock of the run.
    """
    exits = run.exits(attempt)
    exits.mkdir(parents=True, exist_ok=True)
    common = {**request.notify.without_address(os.environ), **_variables(run, request, exits), **variables}
    group = make_cgroup(run.path)
    agents = [_start_agent(run, request, node, holder, common, group) for node in range(request.nodes)]
    for agent in agents:  # threads: no fork may follow them
        agent.output.start()
    return agents


def _start_agent(
    run: RunFolder,
    request: LocalRequest,
    node: int,
    holder: socket.socket,
    common: Mapping[str, str],
    group: Path | None,
) -> Agent:
    def prepare() -> None:
        die_with_parent()
        enter_cgroup(group)

    port, served = str(holder.getsockname()[1]), [holder.fileno()] if node == 0 else []
    torchrun = ["-P", str(FIRST_AGENT), *map(str, served)] if served else ["-m", "torch.distributed.run"]
    command = [
        *(sys.executable, *torchrun),
        *("--nnodes", str(request.nodes), "--node-rank", str(node)),
        *("--nproc-per-node", str(request.processes_per_node)),
        *("--master-addr", LOOPBACK, "--master-port", port),
        *("--log-dir", str(run.launcher)),  # else torchrun leaves a folder in /tmp
        *("--max-restarts", "0", "--no-python", sys.executable, "-I", "-S", rank_process.__file__),
        *request.command,
    ]
    output = FilteredOutput(open_log(run.agent_log(node)), common)
    process = subprocess.Popen(
        command,
        cwd=run.code,
        env={**common, **_node_variables(request, node, port)},
        stdin=subprocess.DEVNULL,
        stdout=output.writing,
        stderr=output.writing,
        # a session of its own: Ctrl-C in the user's terminal and the supervisor's process group do not reach it
        start_new_session=True,
        preexec_fn=prepare,
        pass_fds=[output.reading, *served],
    )
    return Agent(process, output)


def _node_variables(request: LocalRequest, node: int, port: str) -> dict[str, str]:
    """Return the variables that a cluster sets on each node; several nodes on this machine divide the GPUs."""
    found = {"NODE_RANK": str(node), "MASTER_ADDR": LOOPBACK, "MASTER_PORT": port}
    if request.device == "gpu" and request.nodes > 1:
        mine = slice(node * request.processes_per_node, (node + 1) * request.processes_per_node)
        # The caller's own choice of GPUs is divided, not replaced: the others may run another job.
        allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
        known = [str(number) for number in range(mine.stop)] if allowed is None else allowed.split(",")
        found["CUDA_VISIBLE_DEVICES"] = ",".join(known[mine])
    return found


def _variables(run: RunFolder, request: LocalRequest, exits: Path) -> dict[str, str]:
    ours = {
        RUN_VARIABLE: str(run.path),
        TAGS_VARIABLE: str(run.tags),
        "RUN_LOGS": str(run.logs),
        "RUN_EXITS": str(exits),
        RESERVE_VARIABLE: str(run.rank_reserve),
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
    return {**ours, **compile_variables(run.path.parent.parent, os.environ), **request.variables}
