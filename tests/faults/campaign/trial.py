"""One trial: a submission, a fault, the commands of a user until the end, and which promises held."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from orchestrator.backends.folder.supervision import OPEN_VARIABLE
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.runs.status import RunState, RunStatus
from orchestrator.sweep import Sweep, Sweeps
from orchestrator.testing import AzureDouble
from tests.conftest import Console
from tests.faults.campaign.clouds import azure
from tests.faults.campaign.faults import FAULTS, Fault
from tests.faults.campaign.jobs import JOBS, NO_RESULT, inputs, metric_points
from tests.faults.campaign.scene import WATCH_SECONDS, Scene, Undisturbed, present_roles, processes, signal_all
from train_jobs.config.fields import Config

COMMANDS = 6  # that a user may need until the job is done
# All hidden names are temporary: an undisturbed job leaves none. The others are of the download of a file, of a text,
# of the parts of predictions, of replaced outputs, of a token store, of torchrun, and of the lock of Optuna's journal.
LEFT_BEHIND = ("**/.*", "**/*.part", "**/*.parts", "**/*.old", "**/*.building", "**/*.tmp", "**/*.partial")
LEFT_BEHIND += ("**/torchelastic_*", "runs/*/launcher", "sweeps/*/study.journal.lock*")
EMPTY_CACHES = ("torchinductor_*",)  # folders in TMPDIR that torch makes on import
HOME, TEMPORARY = "home", "temporary"  # folders of a trial
CLOUD_STATES = {
    "Completed": RunState.COMPLETED,
    "Failed": RunState.FAILED,
    "Canceled": RunState.CANCELLED,
}
BUGS = ("Traceback (most recent call last)", "error[bug]")
PR_SET_CHILD_SUBREAPER = 36  # of prctl(2), from linux/prctl.h
SETTLING = 60.0  # seconds that processes have to end after the last command, or as long as an undisturbed job takes


class Outcome(Config):
    """The line of a trial in results.jsonl."""

    fault: str
    kind: str
    seed: int
    moment: float
    """Share of the undisturbed duration at which it happened."""
    commit: str
    date: str
    machine: str
    """Processor, cores, and versions of Python and torch."""
    in_history: bool = True
    """Whether the commit is in the history of the project; a rebase before the merge replaces commits."""
    same_bytes: bool
    metrics_once: bool
    mlflow_runs: bool
    """Whether each run is one MLflow run."""
    processes_left: list[str]
    files_left: list[str]
    reason: str
    """Reasons of the runs and of the sweep that ended by it; empty: none ended, or `reason_true` is false."""
    reason_true: bool
    noticed: float | None = None
    """Seconds until the status reported the end."""
    commands: list[str]
    """What a user typed until the job was done."""
    problem: str = ""
    """Why the job did not get done, or an error that no user should see."""
    detail: str = ""
    """What was hit."""
    cpu: float = 0.0
    """Seconds of processor time of all processes of the trial."""

    @property
    def passed(self) -> bool:
        """Whether every promise held."""
        kept = self.same_bytes and self.metrics_once and self.mlflow_runs and self.reason_true
        return kept and not (self.processes_left or self.files_left or self.problem)

    @property
    def ended(self) -> bool:
        """Whether a run or a sweep ended by the fault."""
        return bool(self.reason) or not self.reason_true


def undisturbed(kind: str, *, live: bool = False) -> Undisturbed:
    """Run a job of a kind without a fault; `live` as in `Undisturbed`."""
    inputs(kind)
    before = _cpu_seconds()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        console = _console(Path(folder), kind, live=live)
        with surroundings(console, kind):
            started = time.monotonic()
            with _watched(console.home) as seen:
                done = console(*JOBS[kind].words)
            seconds = time.monotonic() - started
        assert done.code == 0, done.err
        assert not _left(console.home, max(SETTLING, seconds))
        assert not (left := [*left_behind(console.home), *left_in_temporary(Path(folder, TEMPORARY))]), left
        assert JOBS[kind].digest(console.home) != NO_RESULT
        found = Undisturbed(
            seconds=seconds,
            digest=JOBS[kind].digest(console.home),
            metrics=metric_points(console.home),
            bytes=sum(512 * path.lstat().st_blocks for path in console.home.rglob("*")),
            live=live,
            present={role: (first / seconds, last / seconds) for role, (first, last) in seen.items()},
        )
    print(f"{kind} undisturbed: {seconds:.0f} s, {_cpu_seconds() - before:.0f} s of CPU", flush=True)
    return found


@contextmanager
def _watched(home: Path) -> Iterator[dict[str, tuple[float, float]]]:
    """Yield a dictionary: role of processes, or FILES -> seconds after which it was seen first and last."""
    seen, over, started = dict[str, tuple[float, float]](), threading.Event(), time.monotonic()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            now = time.monotonic() - started
            for role in present_roles(home):
                seen[role] = (seen.get(role, (now, now))[0], now)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _console(folder: Path, kind: str, *, live: bool) -> Console:
    """Return a console with a home and a folder for temporary files below a folder."""
    for name in (HOME, TEMPORARY):
        Path(folder, name).mkdir()
    begin = {OPEN_VARIABLE: "0"} if live else {}
    return Console(folder / HOME, inputs(kind), variables={"TMPDIR": str(folder / TEMPORARY), **begin})


def left_behind(home: Path) -> list[str]:
    """Return the temporary files and folders of a home that no process uses any more, without what is in them."""
    found = {path.relative_to(home) for one in LEFT_BEHIND for path in home.glob(one)}
    return sorted(str(path) for path in found if found.isdisjoint(path.parents))


def left_in_temporary(folder: Path) -> list[str]:
    """Return the entries of a folder for temporary files, except empty caches of torch."""
    entries = [path for path in folder.iterdir() if not any(path.match(cache) for cache in EMPTY_CACHES)]
    inside = [path for cache in EMPTY_CACHES for place in folder.glob(cache) for path in place.iterdir()]
    return sorted(f"TMPDIR/{path.relative_to(folder)}" for path in (*entries, *inside))


def surroundings(console: Console, kind: str) -> AbstractContextManager[AzureDouble | None]:
    """Return what a kind of job needs around it: a workspace of Azure, or nothing."""
    return azure(console) if JOBS[kind].is_cloud else nullcontext()


def run_trial(
    name: str, kind: str, seed: int, reference: Undisturbed, stamp: dict[str, str], *, detail: str = ""
) -> Outcome | None:
    """Run one trial; None: at its moment there was nothing that the fault could hit.

    Args:
        name: name of the fault.
        kind: kind of job.
        seed: decides the moment.
        reference: the job without a fault; the trial is copied to MLflow as this one was.
        stamp: commit, date and machine.
        detail: what an earlier trial of this seed hit; a system call with this number is hit again.
    """
    fault, draw, before = FAULTS[name], random.Random(f"{name}/{kind}/{seed}"), _cpu_seconds()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        console = _console(Path(folder), kind, live=reference.live)
        scene = Scene(
            console, kind, reference.draw_moment(draw, fault.roles), reference, JOBS[kind].words, draw, detail
        )
        with surroundings(scene.console, kind) as scene.cloud, fault.around(scene):
            try:
                judged = _hit_and_judge(scene, fault)
            finally:
                _end_all(scene.home)
    if judged is None:
        return None
    facts = {"fault": name, "kind": kind, "seed": seed, "moment": round(scene.moment, 4), "detail": scene.detail}
    return Outcome.model_validate({**facts, **stamp, **judged, "cpu": round(_cpu_seconds() - before, 1)})


def _hit_and_judge(scene: Scene, fault: Fault) -> dict[str, Any] | None:
    command, hit = scene.console.start(*scene.words), True
    if fault.act is not None:
        scene.wait_for_moment(fault.roles, over=lambda: command.poll() is not None)
        hit = fault.act(scene)
    at = time.monotonic()
    scene.finish(command, scene.words[0])
    ended, noticed = _ended(scene, at)  # before the repair: the reason may depend on the state of the disk
    if fault.after is not None:
        hit = fault.after(scene) and hit
    if not hit:
        assert command.returncode <= 0 or _states(scene), f"nothing was hit, and no run exists: {scene.errors[-1]}"
        return None
    if not ended and command.returncode > 0 and not _states(scene):
        ended = [scene.errors[-1][-500:]]  # the command itself failed, before there was a run
    return _judged(scene, fault, ended, noticed if fault.act is not None else None)


def _judged(scene: Scene, fault: Fault, ended: list[str], noticed: float | None) -> dict[str, Any]:
    """Bring the job to its end and return the columns.

    Args:
        scene: the scene of the trial.
        fault: its fault.
        ended: reason of each run and sweep that ended by it.
        noticed: seconds until the status reported the end.
    """
    home, reference = scene.home, scene.reference
    commands, problem = _bring_to_its_end(scene)
    left = _left(home, max(SETTLING, reference.seconds))  # first: the last copy to MLflow may still run
    if fault.last:
        commands.append(" ".join(fault.last))
        scene.type_together(fault.last)
    bugs = [text for text in scene.errors if any(mark in text for mark in BUGS)]
    return {
        "same_bytes": JOBS[scene.kind].digest(home) == reference.digest,
        "metrics_once": _named_alike(metric_points(home)) == _named_alike(reference.metrics),
        "mlflow_runs": len(scene.cloud.jobs.all()) == 1 if scene.cloud else one_mlflow_run_each(home),
        "processes_left": left,
        "files_left": _files_left(scene),
        "reason": "; ".join(dict.fromkeys(ended)).replace(str(home), "HOME"),
        "reason_true": all(any(words in reason for words in fault.reasons) for reason in ended),
        "noticed": noticed,
        "commands": commands,
        "problem": scene.hanging or problem or "".join(_from_mark(text) for text in bugs[:1]),
    }


def _files_left(scene: Scene) -> list[str]:
    temporary = left_in_temporary(Path(scene.console.variables["TMPDIR"]))
    again = [scene.former.name] if scene.former and scene.former.exists() else []
    return [*left_behind(scene.home), *temporary, *again]


def _from_mark(text: str) -> str:
    """Return what was printed from the mark of a bug on."""
    begin = min(text.index(mark) for mark in BUGS if mark in text)
    return text[begin : begin + 2000]


def _runs(home: Path) -> list[RunStatus]:
    backend = LocalBackend(home)  # not its `list`, which deletes what killed commands left
    return [backend.describe(name) for name in backend.names()]


def _ended(scene: Scene, at: float) -> tuple[list[str], float | None]:
    """Return the reasons of runs and sweeps that ended without completing, and the seconds until they were reported."""
    while time.monotonic() - at < scene.patience:
        found = [(run.state, run.reason) for run in _runs(scene.home)]
        found += [(state.state, state.reason) for state in (sweep.folder.state() for sweep in _sweeps(scene.home))]
        ended = [reason or "" for state, reason in found if state.terminal and state != RunState.COMPLETED]
        if ended:
            return ended, round(time.monotonic() - at, 1)
        if not processes(scene.home) or all(state.terminal for state, _ in found):
            break
        time.sleep(0.2)
    return [], None


def _sweeps(home: Path) -> list[Sweep]:
    names = sorted(path.name for path in (home / "sweeps").glob("[!.]*"))
    return [sweep for name in names if (sweep := Sweeps(home).find(name))]


def _bring_to_its_end(scene: Scene) -> tuple[list[str], str]:
    """Type what a user types until the job is done; return the commands, and the last error if it is not done."""
    typed: list[str] = []
    for _ in range(COMMANDS):
        words = _next_command(scene)
        if words is None:
            return typed, ""
        typed.append(" ".join(words))
        scene.type_together(words)
    return typed, "" if _next_command(scene) is None else scene.errors[-1][-500:] or "not completed"


def _states(scene: Scene) -> list[tuple[str, RunState]]:
    """Return name and state of the sweep, of the job in the cloud, or else of the run."""
    if scene.cloud is not None:
        return [(job.name, CLOUD_STATES.get(job.status, RunState.RUNNING)) for job in scene.cloud.jobs.all()]
    if JOBS[scene.kind].is_sweep:
        return [(sweep.name, sweep.state()) for sweep in _sweeps(scene.home)]
    return [(run.name, run.state) for run in _runs(scene.home)]


def _next_command(scene: Scene) -> tuple[str, ...] | None:
    """Return what the status proposes; None: the job is done."""
    states = _states(scene)
    if not states:
        return scene.words
    name, state = states[0]
    if state == RunState.COMPLETED:
        return None
    return ("resume" if state.terminal else "wait", name)


def _named_alike(points: list[tuple[str, int, str, float]]) -> list[tuple[str, int, str, float]]:
    """Return metrics of runs with numbers instead of their names, which depend on where the inputs lie."""
    names = {name: str(number) for number, name in enumerate(sorted({point[0] for point in points}))}
    return sorted((names[name], *rest) for name, *rest in points)  # type: ignore[misc]


def one_mlflow_run_each(home: Path) -> bool:
    """Return whether the store has one MLflow run for each run, without changing the store or creating one."""
    # read-only does not roll back a journal that a killed process left: the store then fails the check, as it must
    address = f"{(home / 'mlflow.db').absolute().as_uri()}?mode=ro"
    with suppress(sqlite3.Error), closing(sqlite3.connect(address, uri=True)) as store:
        tags = [value for (value,) in store.execute("SELECT value FROM tags WHERE key = 'orchestrator.run'")]
        return sorted(tags) == sorted(run.name for run in _runs(home))
    return False


def _cpu_seconds() -> float:
    """Return the processor time of all finished processes of the trials."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def adopt_processes() -> None:
    """Become the parent of processes whose parent dies, as `systemd --user` is, so that their time is counted."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _left(home: Path, seconds: float) -> list[str]:
    deadline = time.monotonic() + seconds
    while (left := processes(home)) and time.monotonic() < deadline:
        time.sleep(0.5)
    _end_all(home)
    return sorted(left.values())


def _end_all(home: Path) -> None:
    while signal_all(home):
        time.sleep(0.1)
