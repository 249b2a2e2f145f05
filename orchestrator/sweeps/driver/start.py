"""Submitting a sweep: its folder, filled, and a driver of its own; taking one up again, and asking one to end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from orchestrator.backends import load_backend
from orchestrator.jobs.base import Plan
from orchestrator.jobs.ground import HASH_DIGITS
from orchestrator.jobs.resolve import make_plan
from orchestrator.runs.status import RunState
from orchestrator.specs.job import LONGEST_NAME
from orchestrator.specs.local_machine import usable_cores, visible_gpus
from orchestrator.specs.resolved import Resolved
from orchestrator.specs.sweep_spec import OLD_DRIVERS
from orchestrator.support.errors import ConflictError, NotFoundError, ServiceError, SpecError, StorageError
from orchestrator.support.home import SWEEPS
from orchestrator.sweeps.design.sweep_plan import ResolvedSweep, on_service
from orchestrator.sweeps.design.sweep_record import SweepRecord, SweepState
from orchestrator.sweeps.driver.history import WarmStart
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.driver.weight_pruning import kept_trials, shortage
from orchestrator.sweeps.policy.limits import require_price
from train_jobs.artifacts.files import write_text

NO_WARM_START = WarmStart()
SHAPING = ("space", "sampling", "early_termination", "objective", "seeds")  # what of a sweep its results depend on


def plan_sweep(sweep: ResolvedSweep, home: Path, history: WarmStart = NO_WARM_START) -> tuple[SweepRecord, Plan]:
    """What would be done: the record of the sweep, and the plan of its trial without a setting of the space.

    Args:
        sweep: validated.
        home: the home folder.
        history: what it begins with.

    Raises:
        SpecError, DataError: the trial cannot be planned, needs more GPUs at a time than there are, or has no price
            where there is a limit of the cost.
    """
    backend, trial = load_backend(sweep.trial.spec.backend, home), sweep.trial
    if backend.shares_machine:
        trial = _shared(sweep)
        _check_gpus(sweep, trial)
    plan = make_plan(trial, home=home)
    require_price(sweep.spec.limits, plan.compute.price_per_hour, "--set trial.compute.price_per_hour=N")
    told = sweep.spec.model_dump(mode="json", include=set(SHAPING))
    if on_service(sweep.spec, trial.spec.backend):
        told["driver"] = trial.spec.backend  # whose service draws other points, and never lets a name be used twice
    begun = [history.digest] if history.earlier else []
    identity = json.dumps([plan.run_hash, told, *begun], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:HASH_DIGITS]
    name = sweep.spec.name or f"sweep-{trial.spec.slug}"[:LONGEST_NAME].rstrip("-")
    keep = kept_trials(sweep.spec, backend)
    full = [] if backend.remote else shortage(sweep.spec, plan, keep, home)
    record = SweepRecord(
        name=f"{name}-{digest}",
        created=time.time(),
        kind=trial.spec.kind,
        sweep={key: value for key, value in sweep.tree.items() if key != "trial"},
        trial=trial.spec.model_dump(mode="json"),
        compute=trial.compute.model_dump(mode="json"),
        changes={path: change.model_dump(mode="json", by_alias=True) for path, change in trial.changes.items()},
        snapshot=plan.snapshot.digest,
        data=plan.data.sha256,
        environment=plan.environment,
        warnings=[*plan.warnings, *_old_words(sweep), *full],
        keep=keep,
        earlier=history.earlier,
    )
    return record, plan


def make_sweep(
    record: SweepRecord,
    home: Path,
    documents: Mapping[str, str] | None = None,
    *,
    history: WarmStart = NO_WARM_START,
) -> SweepFolder:
    """Makes the sweep's folder; nothing runs yet.

    Args:
        record: what was asked for.
        home: the home folder.
        documents: what is in it of a sweep that is driven elsewhere: name -> text. None: a study.
        history: what it begins with.

    Raises:
        ConflictError: there is a sweep of that name.
        StorageError: the home folder cannot be written.
    """
    folder = SweepFolder(home / SWEEPS / record.name)
    draft = SweepFolder(home / SWEEPS / f".{record.name}.{os.getpid()}")
    try:
        draft.path.mkdir(parents=True)
        if documents is None:
            draft.make_study(record.name, record.spec.objective.goal)
        for name, text in (documents or {}).items():
            (draft.path / name).write_text(text, encoding="utf-8")
        draft.write_state(SweepState(state=RunState.QUEUED))
        (draft.path / "lock").touch()
        if history.earlier:
            write_text(draft.history, history.model_dump_json())
        draft.write_record(record)
        draft.path.rename(folder.path)
    except OSError as problem:
        shutil.rmtree(draft.path, ignore_errors=True)
        if folder.path.exists():
            raise ConflictError(f"sweep {record.name} exists", fix=f"orchestrator sweep show {record.name}") from None
        raise StorageError(
            f"cannot make the sweep's folder: {problem.strerror}", facts={"where": folder.path.parent}
        ) from problem
    return folder


def resume_sweep(folder: SweepFolder, home: Path) -> None:
    """Goes on with a sweep whose driver is gone.

    Raises:
        ConflictError: it goes on already.
    """
    state = folder.state()
    if folder.locked():
        raise ConflictError(f"sweep {folder.name} is {state.state}", fix=f"orchestrator sweep show {folder.name}")
    folder.cancel_file.unlink(missing_ok=True)
    start_driver(folder, home)


def cancel_sweep(folder: SweepFolder, home: Path) -> None:
    """Asks a sweep and its trials to end; one that has all of its trials is left alone.

    Where the driver is gone its trials may run on: they are asked by whoever calls this.
    """
    state = folder.state()
    if state.state == RunState.COMPLETED:
        return
    folder.cancel_file.touch()
    if folder.locked():
        if state.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(state.pid, signal.SIGTERM)
        return
    backend = load_backend(folder.record().trial["backend"], home)
    going = [trial for trial in folder.study().get_trials(deepcopy=False) if not trial.state.is_finished()]
    state = state.model_copy(update={"interrupted": [name for trial in going for name in trial.user_attrs["runs"]]})
    folder.write_state(state)  # before any ends: who goes on with the sweep has to know them
    for name in state.interrupted:
        with suppress(NotFoundError):
            backend.cancel(name)
    folder.write_state(
        state.model_copy(update={"state": RunState.CANCELLED, "reason": "it was cancelled", "ended": time.time()})
    )


def start_driver(
    folder: SweepFolder, home: Path, command: tuple[str, ...] = ("-m", "orchestrator.sweeps.driver.driver")
) -> None:
    """Starts the driver in a session of its own, and waits until it holds the sweep."""
    ready, told = os.pipe()
    with (folder.path / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *command, str(folder.path), str(home), str(told)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[told],
        )
    os.close(told)
    with os.fdopen(ready, "rb") as stream:
        answer = stream.read(5)
    if answer != b"ready":
        words = (folder.path / "driver.log").read_text(errors="replace").strip().splitlines()
        raise ServiceError(
            f"the driver of sweep {folder.name} did not start",
            facts={"exit code": process.wait(), "says": words[-1] if words else "nothing"},
            fix=f"orchestrator resume {folder.name}",
        )
    process.returncode = 0  # ours no longer: it is watched by its lock, not by its parent


def _old_words(sweep: ResolvedSweep) -> list[str]:
    word = sweep.tree.get("driver")
    return [f"driver: {word} is now called {OLD_DRIVERS[word]}"] if word in OLD_DRIVERS else []


def _shared(sweep: ResolvedSweep) -> Resolved:
    """The trial with its share of this machine's cores and memory."""
    trial, spec = sweep.trial, sweep.spec
    runs = spec.limits.concurrent * spec.replicates
    update: dict[str, int] = {}
    if trial.spec.compute.threads_per_process == "auto":
        update["threads_per_process"] = max(1, usable_cores() // (runs * trial.compute.processes_per_node))
    if trial.compute.memory_bytes is not None:
        sharing = runs if trial.compute.device == "cpu" else spec.trials_per_gpu
        update["memory_bytes"] = trial.compute.memory_bytes // sharing
    compute = trial.compute.model_copy(update=update)
    return Resolved(trial.spec, compute, trial.origins, trial.changes, trial.warnings)


def _check_gpus(sweep: ResolvedSweep, trial: Resolved) -> None:
    if trial.compute.device != "gpu":
        return
    need = sweep.spec.replicates * trial.compute.processes_per_node
    have = visible_gpus(os.environ)
    if need > have * sweep.spec.trials_per_gpu:
        raise SpecError(
            f"a trial runs with all of its seeds at a time, on {need} GPUs",
            facts={"need": f"{need} GPUs", "have": f"{have}, each for {sweep.spec.trials_per_gpu} at a time"},
            fix=f"--set trials_per_gpu={-(-need // max(have, 1))}",
        )
