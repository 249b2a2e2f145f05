"""The scene of a trial: a submission with its home, its moment, and the processes in it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import Field

from orchestrator.testing import AzureDouble
from tests.conftest import Console
from train_jobs.config.fields import Config

FILES = "files"  # of a checkpoint, a token store or predictions, in place of a role
STORED = ("runs/*/outputs/checkpoints/*/*", "token-stores/*/*", "token-stores/*/parts/*")
STORED += ("runs/*/outputs/predictions.*", "runs/*/outputs/*.parts/*")
WATCH_SECONDS = 0.05
HANGS = 200.0  # seconds after which a command is given up, on an idle machine
SLOWEST = 4.0  # times the duration of an undisturbed job, which a busy machine prolongs
ROLES = {  # first three arguments of the interpreter, a pattern that a shell understands too -> role of the process
    "-I -S *": "wrapper",
    "-m orchestrator.cli.main*": "command",
    "-P -m orchestrator.backends.local.supervisor": "supervisor",
    "-P -m orchestrator.backends.folder.mlflow_sync": "mirror",
    "-P -m orchestrator.sweeps.driver.parent": "mirror",
    "-P -m orchestrator.sweeps.driver.driver": "driver",
    "-m torch.distributed.run*": "agent",
    "-P *loopback_agent.py*": "agent",
    "-m train_jobs.corpus.executors.worker*": "worker",
    "-m train_jobs.corpus.executors.dask_process*": "worker",
    "-m train_jobs.engine.loop.batch_process*": "batches",
    "-m train_jobs.tools.*": "mirror",
    "-m train_jobs.*": "rank",
}


class Undisturbed(Config):
    """A job without a fault."""

    seconds: float
    digest: str
    metrics: list[tuple[str, int, str, float]]
    bytes: int
    """Size of its home folder at the end."""
    live: bool = False
    """Whether it is copied to MLflow from its start, and not only at its end."""
    present: dict[str, tuple[float, float]] = Field(default={})
    """Role of processes, or FILES -> shares of the run between which there are any."""

    def spans(self, roles: tuple[str, ...]) -> list[tuple[float, float]]:
        """Return the shares of the run between which each of these roles is present."""
        return [self.present[role] for role in roles if role in self.present]

    def draw_moment(self, draw: random.Random, roles: tuple[str, ...]) -> float:
        """Return a share of the run, uniform over those at which one of the roles is present; no role: over all."""
        spans = self.spans(roles)
        while True:
            moment = draw.random()
            if not spans or any(first <= moment <= last for first, last in spans):
                return moment


@dataclass
class Scene:
    """A submission that a fault hits."""

    console: Console
    kind: str
    moment: float
    """Share of the undisturbed run, 0 to 1, at which the fault happens."""
    reference: Undisturbed
    words: tuple[str, ...]
    """Arguments of the submission."""
    draw: random.Random
    """Decides everything else that is random."""
    detail: str = ""
    """What was hit, for the report; before, what an earlier trial of the same seed hit."""
    errors: list[str] = field(default_factory=list)
    """What commands wrote to stderr."""
    hanging: str = ""
    """A command that did not end."""
    cloud: AzureDouble | None = None
    """The workspace of Azure that it is submitted to."""
    traces: Path | None = None
    """Folder with the files of strace."""
    clock: Path | None = None
    """File with the offset of the clock in seconds."""
    former: Path | None = None
    """Folder in which the home was before it was moved."""

    @property
    def patience(self) -> float:
        """Seconds after which a command is given up."""
        return max(HANGS, SLOWEST * self.reference.seconds)

    @property
    def home(self) -> Path:
        """The home folder."""
        return self.console.home

    def wait_for_moment(self, roles: tuple[str, ...], over: Callable[[], bool]) -> None:
        """Wait until the moment, counted from the first process or file that the fault can hit.

        Args:
            roles: what the fault hits, as in `Undisturbed.draw_moment`. A busy machine starts them later.
            over: returns whether the submission is over.
        """
        spans = self.reference.spans(roles)
        begin = min((first for first, _ in spans), default=0.0)
        while spans and not over() and not present_roles(self.home).intersection(roles):
            time.sleep(WATCH_SECONDS)
        time.sleep((self.moment - begin) * self.reference.seconds)

    def type_together(self, *commands: tuple[str, ...]) -> None:
        """Start commands at the same time, and wait until all are done."""
        started = [self.console.start(*words) for words in commands]
        for words, process in zip(commands, started, strict=True):
            self.finish(process, words[0])

    def finish(self, process: subprocess.Popen[str], verb: str) -> None:
        """Wait for a command that was started; one that does not end is killed."""
        try:
            errors = process.communicate(timeout=self.patience)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            errors = process.communicate()[1]
            self.hanging = f"{verb} hangs for {self.patience:.0f} s"
        self.errors.append(errors)


def processes(home: Path) -> dict[int, str]:
    """Return the living processes that have a home folder in their environment: pid -> role."""
    found = {}
    mark = f"ORCHESTRATOR_HOME={home}\0".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found[int(entry.name)] = _role((entry / "cmdline").read_bytes().decode(errors="replace"))
    return found


def present_roles(home: Path) -> set[str]:
    """Return the roles of living processes, and FILES if there are any."""
    return {*processes(home).values(), *([FILES] if stored_files(home) else [])}


def stored_files(home: Path) -> list[Path]:
    """Return the files of checkpoints, token stores and predictions that are not empty."""
    found = sorted({path for pattern in STORED for path in home.glob(pattern)})
    return [path for path in found if path.is_file() and path.stat().st_size]


def _role(command: str) -> str:
    words = " ".join(command.split("\0")[1:4])
    return next((role for pattern, role in ROLES.items() if fnmatchcase(words, pattern)), "other")


def signal_all(home: Path, *roles: str, number: int = signal.SIGKILL) -> list[int]:
    """Signal all processes of these roles; no role: all. Return their ids."""
    chosen = sorted(pid for pid, role in processes(home).items() if not roles or role in roles)
    for pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return chosen


def kill(*roles: str, every: bool = True, number: int = signal.SIGKILL) -> Callable[[Scene], bool]:
    """Return a fault that signals all processes of these roles, or one; no role: all processes of the submission."""

    def hit(scene: Scene) -> bool:
        if every:
            return bool(signal_all(scene.home, *roles, number=number))
        chosen = [pid for pid, role in sorted(processes(scene.home).items()) if role in roles]
        with suppress(IndexError, ProcessLookupError):
            os.kill(scene.draw.choice(chosen), number)
        return bool(chosen)

    return hit
