"""Sweeps as the command line and notebooks have them: planned, submitted, found again.

sweeps = Orchestrator().sweeps
sweep = sweeps.submit(sweeps.plan(file=Path("sweep.yaml")))
sweep.wait().best.settings
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConflictError, NotFoundError, StorageError, UsageError
from orchestrator.specs.resolve import find_project
from orchestrator.specs.sweep import MOST_TRIALS, as_tree
from orchestrator.sweeps.folder import SWEEPS, SweepFolder, SweepRecord, sweep_folders
from orchestrator.sweeps.importance import importance_of
from orchestrator.sweeps.resolve import Surroundings, on_service, resolve_sweep
from orchestrator.sweeps.space import trials
from orchestrator.sweeps.start import cancel_sweep, make_sweep, plan_sweep, resume_sweep, start_driver
from orchestrator.sweeps.status import SweepStatus, TrialRow, sweep_status
from train_jobs.config.load import Layer, merge

if TYPE_CHECKING:
    from optuna import Study

    from orchestrator.plan import Plan
    from orchestrator.specs import Flag

POLL_SECONDS = 0.5
WATCH_SECONDS = 2.0


@dataclass(frozen=True)
class PlannedSweep:
    """What would be done."""

    record: SweepRecord
    """The sweep."""
    plan: Plan
    """The plan of its trial, without a setting of the space."""
    on_service: bool
    """Whether Azure's own service drives it."""


class Sweep:
    """A sweep that was submitted.

    Args:
        folder: where it lies.
        home: the home folder.
        created: False if it was there before the submission that returned it.
    """

    def __init__(self, folder: SweepFolder, home: Path, *, created: bool = False) -> None:
        self.folder, self._home, self.created = folder, home, created

    @property
    def name(self) -> str:
        """Its name."""
        return self.folder.name

    @cached_property
    def _study(self) -> Study:
        return self.folder.study()

    def status(self) -> SweepStatus:
        """How it stands now, with all of its trials."""
        return sweep_status(self.folder, self._study)

    def wait(self) -> SweepStatus:
        """Waits until it has ended."""
        while not self.folder.state().state.terminal:
            time.sleep(POLL_SECONDS)
        return self.status()

    def best(self) -> TrialRow:
        """The best of the trials that have ended.

        Raises:
            NotFoundError: none has, with something to compare.
        """
        found = self.status().best
        if found is None:
            raise NotFoundError(
                f"no trial of sweep {self.name} has come to anything", fix=f"orchestrator sweep show {self.name}"
            )
        return found

    def best_spec(self) -> dict[str, Any]:
        """The spec of a job that runs the best trial again."""
        record = self.folder.record()
        return merge([Layer("trial", record.trial), Layer("space", as_tree(self.best().settings))]).tree

    def importance(self) -> dict[str, float]:
        """Setting -> share of what made outcomes differ, by PED-ANOVA (Watanabe et al. 2023, arXiv 2304.10255).

        Of trials that came to something; empty where they are too few, or all alike.
        """
        return importance_of(self.folder.record().spec, self._study)

    def report(self, to: Path | None = None) -> Path:
        """Writes one self-contained HTML page about the sweep.

        Args:
            to: the file; None: report.html in the sweep's folder.

        Raises:
            StorageError: it cannot be written there.
        """
        from orchestrator.sweeps.report import render_sweep

        path = to or self.folder.path / "report.html"
        page = render_sweep(self.status(), self.importance())
        try:
            path.write_text(page, encoding="utf-8")
        except OSError as problem:
            raise StorageError(
                f"cannot write the report: {problem.strerror}", facts={"where": path}, fix="--to FILE"
            ) from problem
        return path

    def _repr_html_(self) -> str:
        """Its trials, as a notebook shows them."""
        from orchestrator.sweeps.report import trials_html

        return trials_html(self.status())

    def watch(self, *, every: float = WATCH_SECONDS) -> SweepStatus:
        """As `wait`, and in a notebook shows its trials meanwhile.

        Args:
            every: seconds between two looks.
        """
        from orchestrator.reports.notebook import display_of

        draw = display_of(self)
        while not self.folder.state().state.terminal:
            draw()
            time.sleep(every)
        draw()
        return self.status()

    def cancel(self) -> None:
        """Asks it and its trials to end; they can be taken up again."""
        cancel_sweep(self.folder, self._home)

    def resume(self) -> None:
        """Goes on with it.

        Raises:
            ConflictError: it goes on already, or has all of its trials.
        """
        status = self.status()
        if not self.folder.locked() and status.ended == status.trials:
            raise ConflictError(
                f"sweep {self.name} has all of its {status.trials} trials",
                fix=f"orchestrator sweep extend {self.name} --trials 20",
            )
        resume_sweep(self.folder, self._home)

    def extend(self, more: int) -> None:
        """Lets it have so many trials more, and sees to it that it goes on.

        Raises:
            UsageError: its space has not so many points, or they would be more than a sweep may have.
            ConflictError: its driver, which has read how many there are to be, is at work.
        """
        record = self.folder.record()
        before = trials(record.spec)
        sweep = {**record.sweep, "limits": {**record.sweep.get("limits", {}), "trials": before + more}}
        if before + more > MOST_TRIALS:
            raise UsageError(f"{before} trials and {more} are more than a sweep may have, {MOST_TRIALS}")
        longer = record.model_copy(update={"sweep": sweep})
        if trials(longer.spec) < before + more:
            raise UsageError(
                f"the grid of sweep {self.name} has {trials(longer.spec)} points, and {before} are to be tried"
            )
        if self.folder.locked():
            raise ConflictError(
                f"sweep {self.name} is going on", fix=f"when it has ended: orchestrator sweep extend {self.name}"
            )
        self.folder.write_record(longer)
        resume_sweep(self.folder, self._home)


class Sweeps:
    """The sweeps of a home.

    Args:
        home: the home folder.
        environ: environment variables; None: none.
        model_of, outputs_of: where models and earlier phases that are named are found.
    """

    def __init__(
        self,
        home: Path,
        *,
        environ: Mapping[str, str] | None = None,
        model_of: Callable[[str], Path] | None = None,
        outputs_of: Callable[[str], Path] | None = None,
    ) -> None:
        self._home = home
        self._around = Surroundings(environ, None, model_of, outputs_of)

    def plan(
        self,
        *,
        file: Path | None = None,
        sets: Iterable[str] = (),
        flags: Mapping[str, Flag] | None = None,
    ) -> PlannedSweep:
        """What would be done: validated, with all that its trials would be; offline. As of `resolve_sweep`.

        Raises:
            SpecError, DataError: all that is wrong, with file and line.
        """
        around = self._around._replace(project=find_project(Path.cwd()))
        sweep = resolve_sweep(file=file, sets=sets, flags=flags, around=around)
        record, plan = plan_sweep(sweep, self._home)
        return PlannedSweep(record, plan, on_service(sweep.spec, sweep.trial))

    def submit(self, planned: PlannedSweep) -> Sweep:
        """Starts a sweep, or returns the one of the same hash that is there.

        Raises:
            ConflictError: that one did not complete; it is for the user to take it up again.
            UsageError: Azure's own service would have to drive it.
        """
        record = planned.record
        if planned.on_service:
            raise UsageError(
                "sweeps are not sent to Azure's own service from here yet",
                facts={"request": "the same command with --dry-run -o json shows it"},
                fix="--set driver=here: this machine drives the same trials on the same cluster",
            )
        there = SweepFolder(self._home / SWEEPS / record.name)
        if there.path.is_dir():
            state = there.state()
            if state.state.resumable:
                raise ConflictError(
                    f"a sweep of the same plan is {state.state}",
                    facts={"sweep": record.name, "reason": state.reason or "unknown"},
                    fix=f"orchestrator resume {record.name}",
                )
            more = trials(record.spec) - trials(there.record().spec)
            if more > 0:
                raise ConflictError(
                    f"a sweep of the same plan is there, with {more} trials less",
                    facts={"sweep": record.name},
                    fix=f"orchestrator sweep extend {record.name} --trials {more}",
                )
            return Sweep(there, self._home)
        folder = make_sweep(record, self._home)
        start_driver(folder, self._home)
        return Sweep(folder, self._home, created=True)

    def all(self) -> list[Sweep]:
        """Every sweep, the newest first."""
        return [Sweep(folder, self._home) for folder in sweep_folders(self._home)]

    def find(self, name: str) -> Sweep | None:
        """The sweep of that very name; None: there is none."""
        return next((sweep for sweep in self.all() if sweep.name == name), None)

    def attach(self, name: str) -> Sweep:
        """Finds a sweep again.

        Args:
            name: its name, the unique beginning of one, or @last.

        Raises:
            NotFoundError: none, or more than one, fits.
        """
        found = self.all()
        fitting = [sweep for sweep in found if sweep.name == name]
        fitting = fitting or (found[:1] if name == "@last" else [one for one in found if one.name.startswith(name)])
        if len(fitting) == 1:
            return fitting[0]
        names = ", ".join(sweep.name for sweep in fitting or found)
        what = f"more than one sweep begins with {name}" if fitting else f"no sweep {name}"
        raise NotFoundError(what, facts={"sweeps": names or "none"}, fix="orchestrator sweep list")
