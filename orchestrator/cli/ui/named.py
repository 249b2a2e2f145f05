"""Whether a word on the command line means a run or a sweep, for the verbs that take either."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.client import Orchestrator
    from orchestrator.run import Run
    from orchestrator.sweep import Sweep


def named(orchestrator: Orchestrator, name: str) -> Run | Sweep:
    """What a name means. Trials have the names of their sweep and more: where nothing else begins so, it is the sweep.

    Args:
        orchestrator: looks for runs where its user said.
        name: handle, name, beginning of one, or @last: the newest of all sweeps and of the runs that are no trials.

    Raises:
        NotFoundError: none, or more than one, fits.
    """
    if name == "@last":
        return _newest(orchestrator)
    if (sweep := orchestrator.sweeps.find(name)) is not None or "://" in name:
        return sweep or orchestrator.attach(name)
    runs = orchestrator.attach_all()
    sweeps = [sweep.name for sweep in orchestrator.sweeps.all()]
    others = _no_trials([run for run in runs if run.name.startswith(name)], sweeps)
    fits = name and any(sweep.startswith(name) for sweep in sweeps)
    if fits and not others and all(run.name != name for run in runs):
        return orchestrator.sweeps.attach(name)
    return orchestrator.attach(name)


def _newest(orchestrator: Orchestrator) -> Run | Sweep:
    sweeps = orchestrator.sweeps.all()
    newest: dict[str, Run] = {}
    for run in _no_trials(orchestrator.attach_all(), [sweep.name for sweep in sweeps]):
        newest.setdefault(run.handle.backend, run)  # each backend's newest comes first
    last = max(newest.values(), key=lambda run: run.status().created, default=None)
    if sweeps and (last is None or sweeps[0].folder.record().created > last.status().created):
        return sweeps[0]
    return last or orchestrator.attach("@last")


def _no_trials(runs: list[Run], sweeps: list[str]) -> list[Run]:
    """Of runs those that are no trials: SWEEP-t0007 and SWEEP-t0007-r1, on Azure's own service SWEEP_7."""
    ending = re.compile(r"(-t\d{4,}(-r\d+)?|_\d+)$")
    known = set(sweeps)
    return [run for run in runs if (cut := ending.sub("", run.name)) == run.name or cut not in known]
