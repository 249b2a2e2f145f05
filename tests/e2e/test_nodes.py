"""Two nodes on one machine: two launchers that rendezvous over loopback, as on a cluster."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import (
    Console,
    committed,
    last_step,
    processes_of,
    rank_pid,
    wait_for,
    write_endless_spec,
    write_spec,
)
from tests.faults.campaign.scene import signal_all

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("untracked")]
TWO_NODES = ("--set", "compute.nodes=2", "--set", "compute.processes_per_node=1")
LISTENS = "0A"  # state of a socket in /proc/net/tcp


def environ(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(word.partition("=")[::2] for word in words if word)


@pytest.mark.slow
def test_two_nodes_train_like_two_processes(console: Console, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 40, "log_every": 2})
    words = ("submit", "pretrain", "-f", "job.yaml", "-o", "json")
    expected = console(*words, "--processes", "2")
    assert expected.code == 0, expected.err
    found = console(*words, *TWO_NODES)
    assert found.code == 0, found.err
    assert found.json["ranks"] == {"0": 0, "1": 0}
    assert {path.name for path in (console.folder(found.json["name"]) / "logs").iterdir()} >= {
        *("agent-0.log", "agent-1.log", "rank-0.log", "rank-1.log")
    }
    one, other = (load_file(Path(done.json["model"]) / "model.safetensors") for done in (expected, found))
    assert [key for key in one if not torch.equal(one[key], other[key])] == []


def listening_addresses(pids: Iterable[int]) -> set[str]:
    """Return the addresses, in the kernel's hexadecimal form, on which processes listen."""
    sockets = {str(link.readlink()) for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {row[1].partition(":")[0] for row in rows if row[3] == LISTENS and f"socket:[{row[9]}]" in sockets}


@pytest.mark.slow
@pytest.mark.parametrize("shape", [TWO_NODES, ("--processes", "2")])
def test_run_listens_on_the_loopback_alone(console: Console, corpus: Path, shape: tuple[str, ...]) -> None:
    """Torch's store has no password: on another interface, any machine of the network could write to it."""
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 400, "log_every": 2})
    name = console("submit", "pretrain", "-f", "job.yaml", *shape, "-d", "-o", "json").json["name"]
    folder = console.folder(name)
    wait_for(lambda: last_step(folder) >= 2, what="step 2")
    assert listening_addresses(processes_of(folder)) == {"0100007F"}  # 127.0.0.1
    assert console("cancel", name).code == 0


@pytest.mark.slow
def test_dead_node_ends_other_and_restart_resumes(console: Console, corpus: Path) -> None:
    write_spec(
        console.cwd / "job.yaml",
        data={"text": [str(corpus)]},
        train={"steps": 400, "log_every": 2},
        checkpoint={"every": 10},
        validation={"every": 400},
    )
    submitted = console("submit", "pretrain", "-f", "job.yaml", *TWO_NODES, "--max-restarts", "1", "-d", "-o", "json")
    name = submitted.json["name"]
    folder = console.folder(name)
    wait_for(lambda: last_step(folder) >= 12 and committed(folder), what="step 12 and a checkpoint")
    pids = [rank_pid(folder, rank) for rank in (0, 1)]
    for rank, pid in enumerate(pids):
        assert pid is not None
        variables = environ(pid)
        assert (variables["NODE_RANK"], variables["LOCAL_RANK"], variables["WORLD_SIZE"]) == (str(rank), "0", "2")
        assert variables["MASTER_ADDR"] == "127.0.0.1"
    agents = [pid for pid, command in processes_of(folder).items() if "--node-rank 1" in command]
    for pid in (*agents, pids[1]):  # the whole node, as in a power failure
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    done = console("wait", name, "-o", "json", "--timeout", "3m")
    assert done.code == 0, done.err
    assert done.json["attempt"] == 2
    first = json.loads((folder / "state.json").read_text())["attempts"][0]
    assert first["state"] == "failed"
    assert first["step"] >= 12
    assert "resumed at step" in (folder / "logs" / "rank-0.log").read_text()


@pytest.mark.slow
def test_killed_two_node_run_resumes_to_same_bytes(console: Console, corpus: Path) -> None:
    """Every process is killed in the middle, as in a power failure; the weights are those of a whole run."""
    write_spec(
        console.cwd / "job.yaml",
        data={"text": [str(corpus)]},
        train={"steps": 60, "log_every": 2},
        checkpoint={"every": 10},
        validation={"every": 60},
    )
    words = ("submit", "pretrain", "-f", "job.yaml", *TWO_NODES, "-o", "json")
    whole = console(*words)
    assert whole.code == 0, whole.err
    other = Console(console.cwd / "other-home", console.cwd)
    name = other(*words, "-d").json["name"]
    folder = other.folder(name)
    wait_for(lambda: last_step(folder) >= 12 and committed(folder), what="step 12 and a checkpoint")
    assert signal_all(other.home)
    assert last_step(folder) < 60
    done = other("resume", name, "-o", "json")
    assert done.code == 0, done.err
    assert "resumed at step" in (folder / "logs" / "rank-0.log").read_text()
    one, again = (Path(run.json["model"], "model.safetensors").read_bytes() for run in (whole, done))
    assert one == again


def test_dead_launcher_of_second_node_ends_attempt(console: Console, corpus: Path) -> None:
    """Its rank saves and ends with the code of a preemption, but nothing preempted the run."""
    write_endless_spec(console.cwd / "job.yaml", corpus)
    name = console("submit", "pretrain", "-f", "job.yaml", *TWO_NODES, "-d", "-o", "json").json["name"]
    folder = console.folder(name)
    wait_for(lambda: last_step(folder) >= 4, what="step 4")
    (agent,) = (pid for pid, command in processes_of(folder).items() if "--node-rank 1" in command)
    os.kill(agent, signal.SIGKILL)
    failed = console("wait", name, "-o", "json", "--timeout", "2m")
    assert (failed.code, failed.json["state"]) == (137, "failed"), failed.json
    log = folder / "logs" / "agent-1.log"
    assert failed.json["reason"] == f"the launcher of node 1 was killed by signal SIGKILL; see {log}"


def test_launcher_of_second_node_is_watched_from_the_start(console: Console, corpus: Path) -> None:
    """Without its rank the launcher's death reaches the supervisor alone: the first node waits for a rendezvous."""
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]})
    name = console("submit", "pretrain", "-f", "job.yaml", *TWO_NODES, "-d", "-o", "json").json["name"]
    folder = console.folder(name)
    agent = wait_for(lambda: [p for p, c in processes_of(folder).items() if "--node-rank 1" in c], what="the launcher")
    os.kill(agent[0], signal.SIGKILL)
    failed = console("wait", name, "-o", "json", "--timeout", "2m")
    assert "the launcher of node 1 was killed by signal SIGKILL" in str(failed.json["reason"])
