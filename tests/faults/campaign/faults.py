"""The table of faults: what happens to a submission, to which kinds of jobs, and what it may do to a run."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tests.faults.campaign import clouds, disks, interpreter, networks, races
from tests.faults.campaign.jobs import JOBS
from tests.faults.campaign.scene import FILES, Scene, kill

Act = Callable[[Scene], bool]


@dataclass(frozen=True)
class Fault:
    """Something that happens to a submission."""

    text: str
    """Row of the table."""
    act: Act | None = None
    """Let it happen at the moment; False: there was nothing to hit. None: it happens all the time, by `around`."""
    reasons: tuple[str, ...] = ()
    """One of these is in the reason of a run that ends by it; empty: no run may end by it."""
    kinds: tuple[str, ...] = tuple(kind for kind in JOBS if kind not in ("prepare-large", "nodes-2", "azure"))
    """Kinds of jobs that it can hit."""
    around: Callable[[Scene], AbstractContextManager[None]] = nullcontext
    """Surroundings of the whole trial."""
    after: Act | None = None
    """What a user repairs once the submission has ended; False: nothing was hit."""
    needs: Callable[[], str] = str
    """Return why it cannot be tried on this machine; empty: it can."""
    last: tuple[str, ...] = ()
    """The last command of a user."""
    times: int = 100
    """Number of trials that are wanted, over all kinds."""
    hits_copy: bool = False
    """Whether it hits the copy to MLflow, which then begins with the job."""
    roles: tuple[str, ...] = ()
    """What it hits, roles of processes or FILES; empty: it hits the submission."""


def _needs_strace() -> str:
    return "" if shutil.which("strace") else "strace is not installed"


def _at_call(role: str, reasons: tuple[str, ...], kinds: tuple[str, ...]) -> Fault:
    return Fault(
        f"a {role} is killed as it enters its n-th fsync, rename, unlink or mkdir",
        around=interpreter.kill_at_call(role),
        after=interpreter.was_killed,
        reasons=reasons,
        kinds=kinds,
        needs=_needs_strace,
    )


def _network(seconds: int) -> Fault:
    return Fault(
        f"the network between two nodes is away for {seconds} s",
        networks.cut(seconds),
        ("lost", "onnection", "peer", "unreachable"),
        NODES,
        around=networks.own_network,
        needs=networks.needs_namespaces,
        times=100 if seconds < SLOW_SECONDS else 10,
    )


SLOW_SECONDS = 100  # a fault of this duration is tried 10 times
TRAINS = ("pretrain", "nodes-2", "finetune", "sweep")
STORED = ("prepare", "prepare-large", *TRAINS, "predict", "evaluate")
NODES = ("nodes-2",)
ALL = ("prepare", "pretrain", "nodes-2", "finetune", "predict", "evaluate", "sweep")
SINGLE = ("prepare", "pretrain", "nodes-2", "finetune", "predict", "evaluate")
LARGE = ("prepare-large",)
SYNC = ("mlflow", "sync", "--all")
RANK_KILLED = ("signal 9", "SIGKILL", "killed")
DISK = ("storage", "disk is full", "No space left", "cannot write", "Read-only", "read-only")
FAULTS: Mapping[str, Fault] = {
    "kill-rank": Fault("a rank is killed (SIGKILL)", kill("rank", every=False), RANK_KILLED, ALL, roles=("rank",)),
    "kill-agent": Fault(
        "a launcher is killed", kill("agent", every=False), ("launcher", "killed"), ALL, roles=("agent",)
    ),
    "kill-supervisor": Fault(
        "the supervisor is killed", kill("supervisor"), ("supervisor lost",), ALL, roles=("supervisor",)
    ),
    "kill-both": Fault(
        "supervisor and launcher are killed together",
        kill("supervisor", "agent"),
        ("supervisor lost",),
        ALL,
        roles=("supervisor", "agent"),
    ),
    "kill-command": Fault("the command is killed that submits and follows", kill("command"), ("supervisor lost",), ALL),
    "kill-mirror": Fault("the copy to MLflow is killed", kill("mirror"), last=SYNC, hits_copy=True, roles=("mirror",)),
    "kill-worker": Fault(
        "a worker of the preparation is killed",
        kill("worker", every=False),
        ("worker", "killed"),
        LARGE,
        roles=("worker",),
    ),
    "kill-driver": Fault(
        "the driver of a sweep is killed", kill("driver"), ("driver lost",), ("sweep",), roles=("driver",)
    ),
    "kill-all": Fault("all processes are killed together", kill(), ("lost",), ALL, last=SYNC),
    "move-home": Fault(
        "all processes are killed, and the home folder is moved",
        races.move_home,
        ("lost",),
        ("pretrain", "finetune", "sweep"),
        last=SYNC,
    ),
    "stop-rank": Fault(
        "a rank gets SIGTERM",
        kill("rank", every=False, number=signal.SIGTERM),
        ("preempted", "SIGTERM", "signal 15"),
        ALL,
        roles=("rank",),
    ),
    "call-rank": _at_call("rank", RANK_KILLED, ALL),
    "call-supervisor": _at_call("supervisor", ("supervisor lost",), ALL),
    "call-command": _at_call("command", ("supervisor lost",), ALL),
    "call-driver": _at_call("driver", ("driver lost",), ("sweep",)),
    "call-worker": _at_call("worker", ("worker", "killed"), LARGE),
    "full-disk": Fault(
        "the disk is full at some stage",
        around=disks.small_disk,
        after=disks.add_space,
        reasons=DISK,
        kinds=ALL,
        needs=disks.needs_root,
        last=SYNC,
    ),
    "read-only-disk": Fault(
        "the disk becomes read-only",
        disks.make_read_only,
        DISK,
        ALL,
        around=disks.own_disk,
        after=disks.repair,
        needs=disks.needs_root,
        last=SYNC,
    ),
    "slow-disk": Fault(
        "each fsync, rename, unlink and mkdir takes 50 ms longer",
        around=interpreter.slow_disk,
        kinds=ALL,
        needs=_needs_strace,
    ),
    "flipped-bit": Fault(
        "all are killed, and a bit of any file of a checkpoint, store or prediction flips",
        disks.damage(disks.flip),
        ("lost",),
        STORED,
        last=SYNC,
        roles=(FILES,),
    ),
    "torn-file": Fault(
        "all are killed, and any file of a checkpoint, store or prediction is cut",
        disks.damage(disks.tear),
        ("lost",),
        STORED,
        last=SYNC,
        roles=(FILES,),
    ),
    "network-1": _network(1),
    "network-10": _network(10),
    "network-100": _network(100),
    "pause-rank": Fault("a rank is stopped for 1 to 20 s (SIGSTOP)", races.pause("rank"), kinds=ALL, roles=("rank",)),
    "pause-agent": Fault("a launcher is stopped for 1 to 20 s", races.pause("agent"), kinds=ALL, roles=("agent",)),
    "pause-supervisor": Fault(
        "the supervisor is stopped for 1 to 20 s", races.pause("supervisor"), kinds=ALL, roles=("supervisor",)
    ),
    "clock": Fault(
        "the clock jumps back by 2 hours or ahead by 400 days",
        interpreter.jump,
        kinds=ALL,
        around=interpreter.adjustable_clock,
    ),
    "locked-database": Fault(
        "the MLflow store is locked for 15 s",
        races.lock_database,
        around=races.earlier_store,
        last=SYNC,
        hits_copy=True,
    ),
    "broken-database": Fault(
        "the MLflow store is overwritten with random bytes",
        races.break_database,
        around=races.earlier_store,
        last=SYNC,
        hits_copy=True,
    ),
    "deleted-database": Fault(
        "the MLflow store is deleted",
        races.delete_database,
        around=races.earlier_store,
        last=SYNC,
        hits_copy=True,
    ),
    "submit-twice": Fault("the same job is submitted again meanwhile", races.submit_again, kinds=ALL),
    "resume-twice": Fault(
        "all are killed, and two commands resume the run", races.resume_twice, ("lost",), ALL, last=SYNC
    ),
    "cancel-resume": Fault(
        "a command cancels the run while another resumes it", races.cancel_and_resume, ("cancelled",), ALL
    ),
    "azure-calls": Fault(
        "5% of all calls to the double of Azure fail: 429, 5xx, resets, cut bodies",
        around=clouds.failing_calls,
        after=clouds.heal,
        reasons=("error[service]",),
        kinds=("azure",),
    ),
    "prune": Fault("prune deletes what it may meanwhile", races.prune, kinds=ALL),
    "hanging-webhook": Fault(
        "the webhook never answers, and a rank is killed",
        kill("rank", every=False),
        RANK_KILLED,
        SINGLE,
        around=races.hanging_webhook,
        roles=("rank",),
    ),
}
