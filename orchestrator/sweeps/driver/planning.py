"""The plan of a sweep: its record, and the plan of a trial with its share of the machine.

Only a submission needs it: commands that show a sweep do not import this module, nor the models of jobs.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path

from orchestrator.backends import load_backend
from orchestrator.jobs.base import HASH_DIGITS, Plan
from orchestrator.jobs.resolve import make_plan
from orchestrator.specs.compute import usable_cores, visible_gpus
from orchestrator.specs.names import MAX_NAME_LENGTH
from orchestrator.specs.resolved import Resolved
from orchestrator.specs.sweep_spec import OLD_DRIVERS, trial_count
from orchestrator.support.errors import SpecError
from orchestrator.sweeps.design.checks import policy_warnings
from orchestrator.sweeps.design.sweep_plan import ResolvedSweep, on_service
from orchestrator.sweeps.design.sweep_record import SweepRecord
from orchestrator.sweeps.driver.control import NO_WARM_START
from orchestrator.sweeps.driver.history import WarmStart
from orchestrator.sweeps.driver.weight_pruning import disk_shortage, kept_trials
from orchestrator.sweeps.policy.limits import require_price

RESULT_KEYS = ("space", "sampling", "early_termination", "objective", "seeds")
"""Sections of a sweep that affect its results, and therefore its hash."""


def plan_sweep(sweep: ResolvedSweep, home: Path, history: WarmStart = NO_WARM_START) -> tuple[SweepRecord, Plan]:
    """Return the record of a sweep, and the plan of its trial before the settings of the space are applied.

    Args:
        sweep: the validated sweep.
        home: the home folder.
        history: trials of earlier sweeps that it starts with.

    Raises:
        SpecError, DataError: the trial cannot be planned, needs more GPUs at a time than the machine has, or has no
            price although the cost is limited.
    """
    backend, trial, spec = load_backend(sweep.trial.spec.backend, home), sweep.trial, sweep.spec
    runs = min(spec.limits.concurrent, trial_count(spec)) * spec.replicates
    if backend.shares_machine:
        trial = _divide_machine(sweep)
    elif runs > 1:
        trial = replace(trial, compute=trial.compute.model_copy(update={"concurrent_runs": runs}))
    plan = make_plan(trial, home=home)
    require_price(spec.limits, plan.compute.price_per_hour, "--set trial.compute.price_per_hour=N")
    shaping = spec.model_dump(mode="json", include=set(RESULT_KEYS))
    if on_service(spec, trial.spec.backend):
        # The service draws other points from the same seed, and refuses a job name that was ever used: a sweep that
        # is driven from here must therefore have another name.
        shaping["driver"] = trial.spec.backend
    warm_start = [history.digest] if history.earlier else []
    identity = json.dumps([plan.run_hash, shaping, *warm_start], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:HASH_DIGITS]
    name = spec.name or f"sweep-{trial.spec.slug}"[:MAX_NAME_LENGTH].rstrip("-")
    keep, word = kept_trials(spec, backend), sweep.tree.get("driver")
    renamed = [f"driver: {word} is now called {OLD_DRIVERS[word]}"] if word in OLD_DRIVERS else []
    full = [] if backend.remote else disk_shortage(spec, plan, keep, home)
    record = SweepRecord(
        name=f"{name}-{digest}",
        created=time.time(),
        kind=trial.spec.kind,
        sweep={key: value for key, value in sweep.tree.items() if key != "trial"},
        trial=trial.spec.model_dump(mode="json"),
        compute=trial.compute.model_dump(mode="json"),
        changes={path: change.model_dump(mode="json", by_alias=True) for path, change in trial.changes.items()},
        homes=list(dict.fromkeys((str(home), str(home.resolve())))),
        snapshot=plan.snapshot.digest,
        data=plan.data.sha256,
        environment=plan.environment,
        warnings=[*plan.warnings, *policy_warnings(spec, trial.spec), *renamed, *_waiting(trial, runs), *full],
        keep=keep,
        earlier=history.earlier,
    )
    return record, plan


def _waiting(trial: Resolved, runs: int) -> list[str]:
    """Return a warning if the user's cluster is too small for the trials that run at the same time."""
    compute = trial.spec.compute
    if compute.max_nodes is None or compute.max_nodes >= compute.nodes * runs:
        return []
    room = compute.max_nodes // compute.nodes
    return [
        f"trial.compute.max_nodes {compute.max_nodes}: {room} of {runs} concurrent runs have machines, the others wait"
        f" in the queue: --set trial.compute.max_nodes={compute.nodes * runs}"
    ]


def _divide_machine(sweep: ResolvedSweep) -> Resolved:
    """Return the trial with its share of this machine's cores and memory.

    Raises:
        SpecError: it needs more GPUs at a time than the machine has.
    """
    spec, compute = sweep.spec, sweep.trial.compute
    runs = spec.limits.concurrent * spec.replicates
    need, have = spec.replicates * compute.processes_per_node, visible_gpus(os.environ)
    if compute.device == "gpu" and need > have * spec.trials_per_gpu:
        raise SpecError(
            f"cannot run all seeds of a trial at the same time: they need {need} GPUs",
            facts={"need": f"{need} GPUs", "have": f"{have}, each for {spec.trials_per_gpu} at a time"},
            fix=f"--set trials_per_gpu={-(-need // max(have, 1))}",
        )
    update: dict[str, int] = {}
    # Each trial alone would take all cores: concurrent ones would oversubscribe the CPU and slow each other down.
    if sweep.trial.spec.compute.threads_per_process == "auto":
        update["threads_per_process"] = max(1, usable_cores() // (runs * compute.processes_per_node))
    if compute.memory_bytes is not None:
        sharing = runs if compute.device == "cpu" else spec.trials_per_gpu
        update["memory_bytes"] = compute.memory_bytes // sharing
    return replace(sweep.trial, compute=compute.model_copy(update=update))
