"""Find the run or the sweep that a command line names."""

from __future__ import annotations

import argparse
import re
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING

from orchestrator.client import Orchestrator
from orchestrator.run import Run
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError, NotFoundError

if TYPE_CHECKING:  # `status` and `logs` do not need the planning modules, which are slow to import
    from orchestrator.sweep import Sweep

TRIAL = re.compile(r"(-t\d{4,}(-r\d+)?|_\d+)$")  # SWEEP-t0007 and SWEEP-t0007-r1; in a native sweep of Azure SWEEP_7


def attach_run(arguments: argparse.Namespace) -> Run:
    """Return the run that a command line names, found on the backend of -b."""
    return Orchestrator(arguments.backend).attach(arguments.name)


def find_target(orchestrator: Orchestrator, name: str) -> Run | Sweep:
    """Return the run or the sweep of a name. A prefix shared only by a sweep and its trials refers to the sweep.

    Args:
        orchestrator: the client that finds them.
        name: handle, name, unique prefix of a name, or @last: the newest sweep, or the newest run outside of sweeps.

    Raises:
        NotFoundError: no run or sweep, or more than one, matches.
    """
    if name == "@last":
        return _newest(orchestrator)
    if (sweep := orchestrator.sweeps.find(name)) is not None or "://" in name:
        return sweep or orchestrator.attach(name)
    runs = orchestrator.attach_all()
    sweeps = [sweep.name for sweep in orchestrator.sweeps.all()]
    others = _without_trials([run for run in runs if run.name.startswith(name)], sweeps)
    fits = name and any(sweep.startswith(name) for sweep in sweeps)
    if fits and not others and all(run.name != name for run in runs):
        return orchestrator.sweeps.attach(name)
    return orchestrator.attach(name)


def run_or_best(orchestrator: Orchestrator, name: str, *, model: bool = True) -> Run:
    """Return the run of a name or, of a sweep, the first run of its best trial.

    Args:
        orchestrator, name: see `find_target`.
        model: whether the command needs the final model.

    Raises:
        NotFoundError: no run or sweep matches, or the sweep has no result yet.
        ConflictError: the best trial has no final model, because no trial with a result completed.
    """
    found = find_target(orchestrator, name)
    if isinstance(found, Run):
        return found
    best = found.best()
    run = orchestrator.attach(best.runs[0])
    if model and best.state != RunState.COMPLETED and run.status().state != RunState.COMPLETED:  # nor by hand since
        raise ConflictError(
            f"the best trial of sweep {found.name} has no final model: it is {best.state}",
            facts={"best": f"trial {best.trial}: {best.outcome:.6g}", "completed": "no trial with a result"},
            fix=f"orchestrator resume {run.name}, which completes it",
        )
    return run


def _newest(orchestrator: Orchestrator) -> Run | Sweep:
    sweeps = orchestrator.sweeps.all()
    newest: dict[str, tuple[float, Run]] = {}
    for run in _without_trials(orchestrator.attach_all(), [sweep.name for sweep in sweeps]):
        if run.handle.backend not in newest:  # runs of a backend are sorted: one status for each backend
            with suppress(NotFoundError):  # deleted meanwhile
                newest[run.handle.backend] = (run.status().created, run)
    created, last = max(newest.values(), key=itemgetter(0), default=(0.0, None))
    if sweeps and (last is None or sweeps[0].folder.record().created > created):
        return sweeps[0]
    return last or orchestrator.attach("@last")


def _without_trials(runs: list[Run], sweeps: list[str]) -> list[Run]:
    return [run for run in runs if (cut := TRIAL.sub("", run.name)) == run.name or cut not in sweeps]
