"""Sweeps as the command line and notebooks have them: planned, submitted, found again.

sweeps = Orchestrator().sweeps
sweep = sweeps.submit(sweeps.plan(file=Path("sweep.yaml")))
sweep.wait().best.settings
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.backends import capability_of, load_backend
from orchestrator.backends.capabilities import SweepsNatively
from orchestrator.reports.sweeps.importance import importance_of
from orchestrator.runs.status import Handle, RunState
from orchestrator.specs.resolved import find_project
from orchestrator.specs.settings import settings_text
from orchestrator.specs.sweep_spec import MOST_TRIALS, as_tree, trials
from orchestrator.support.errors import ConflictError, NotFoundError, TimeoutExceeded, UsageError
from orchestrator.support.formatting import bytes_text
from orchestrator.support.home import SWEEPS
from orchestrator.support.html import card
from orchestrator.sweeps.design.points import draw
from orchestrator.sweeps.design.sweep_plan import Surroundings, on_service, resolve_sweep
from orchestrator.sweeps.design.sweep_record import SweepRecord
from orchestrator.sweeps.driver.control import SERVICE, DriverControl, SweepControl
from orchestrator.sweeps.driver.history import WarmStart, read_history
from orchestrator.sweeps.driver.start import NO_WARM_START, make_sweep, plan_sweep, start_driver
from orchestrator.sweeps.driver.sweep_folder import SweepFolder, sweep_folders
from orchestrator.sweeps.driver.sweep_status import SweepStatus, TrialRow
from orchestrator.sweeps.policy.keeping import at_once, most_bytes, told
from orchestrator.sweeps.policy.limits import differing
from train_jobs.artifacts.layers import Layer, merge

if TYPE_CHECKING:
    from orchestrator.backends.base import Backend, Submission
    from orchestrator.jobs.base import Plan
    from orchestrator.specs.resolved import Flag

SHOWN_TRIALS = 3  # of a plan
WATCH_SECONDS = 2.0


@dataclass(frozen=True)
class PlannedSweep:
    """What would be done."""

    record: SweepRecord
    """The sweep."""
    plan: Plan
    """The plan of its trial, without a setting of the space."""
    backend: Backend
    """The backend of its trials."""
    submission: Submission | None = None
    """What is sent to the service that drives it; None: a process of this machine drives it."""
    history: WarmStart = NO_WARM_START
    """Trials of earlier sweeps that it begins with."""

    @property
    def on_service(self) -> bool:
        """Whether a service of the backend drives it."""
        return self.submission is not None

    def facts(self) -> list[tuple[str, str]]:
        """What would be done, for humans: label and fact."""
        spec = self.record.spec
        policy = spec.early_termination
        numbers = policy.model_dump(exclude={"policy"}, exclude_defaults=True)
        rows = [
            ("trials", f"{trials(spec)}, {spec.limits.concurrent} at a time, on {self.plan.spec.backend}"),
            *self._driver(),
            ("sampling", f"{spec.sampling.name}, seed {spec.sampling.seed}"),
            ("objective", f"{spec.objective.goal} {spec.objective.metric}"),
            ("stopped by", " ".join([policy.policy, *(f"{key} {value}" for key, value in numbers.items())])),
            *([("seeds", ", ".join(map(str, spec.seeds)))] if spec.seeds else []),
            *(("begins with", earlier.text) for earlier in self.record.earlier),
        ]
        if spec.sampling.name in {"random", "sobol", "grid"} and not self.on_service:
            shown = range(min(SHOWN_TRIALS, trials(spec)))
            rows += [(f"trial {number}", settings_text(draw(spec, number))) for number in shown]
        return [*rows, *self._kept()]

    def _driver(self) -> Iterator[tuple[str, str]]:
        if self.on_service and isinstance(self.backend, SweepsNatively):
            yield "driven by", f"{self.backend.sweep_service}, which draws points of its own"

    def _kept(self) -> Iterator[tuple[str, str]]:
        """Which trials keep their checkpoints and models, and what these take."""
        spec, keep = self.record.spec, self.record.keep
        yield "keeps", f"checkpoints and models {told(keep)}"
        if not self.backend.remote and (most := most_bytes(spec, self.plan, keep)) is not None:
            count = at_once(spec, keep)
            several = f" x {spec.replicates} seeds" if spec.replicates > 1 else ""
            each = bytes_text(most // (count * spec.replicates))
            yield "disk", f"{bytes_text(most)} at most: {count} trials{several} of {each} (estimate)"

    def _repr_html_(self) -> str:
        """The same as a notebook shows it, with the plan of a trial below."""
        return card(self.record.name, self.facts()) + self.plan._repr_html_()


class Sweep:
    """A sweep that was submitted.

    Args:
        folder: where it lies.
        home: the home folder.
        created: False if it was there before the submission that returned it.
    """

    def __init__(self, folder: SweepFolder, home: Path, *, created: bool = False) -> None:
        self.folder, self.created = folder, created
        self._control = control_of(folder, home)
        self.poll_seconds = self._control.poll_seconds

    @property
    def name(self) -> str:
        """Its name."""
        return self.folder.name

    def status(self) -> SweepStatus:
        """How it stands now, with all of its trials."""
        return self._control.status()

    def state(self) -> RunState:
        """Where it stands now."""
        return self._control.state()

    def wait(self, timeout: float | None = None) -> SweepStatus:
        """Waits until it has ended.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            TimeoutExceeded: it goes on after `timeout`.
        """
        started = time.monotonic()
        while not (state := self.state()).terminal:
            left = math.inf if timeout is None else timeout - (time.monotonic() - started)
            if left <= 0:
                raise TimeoutExceeded(
                    f"sweep {self.name} is {state} after {timeout:g} s", fix=f"orchestrator wait {self.name}"
                )
            time.sleep(min(self.poll_seconds, left))
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
        return importance_of(self.folder.record().spec.objective.goal, self.status().rows)

    def report(self, to: Path | None = None) -> Path:
        """Writes one self-contained HTML page about the sweep.

        Args:
            to: the file; None: report.html in the sweep's folder.

        Raises:
            StorageError: it cannot be written there.
        """
        from orchestrator.reports.pages.written_pages import PAGE, write_page
        from orchestrator.reports.sweeps.sweep_page import render_sweep

        status = self.status()
        way_on = self.way_on() if status.state.resumable else None
        return write_page(render_sweep(status, self.importance(), way_on=way_on), to or self.folder.path / PAGE)

    def pictures(self, folder: Path) -> list[Path]:
        """Writes the first figures of that page as PNGs into `folder`; returns where.

        Raises:
            StorageError: a file cannot be written.
        """
        from orchestrator.reports.sweeps.sweep_drawings import write_pictures

        return write_pictures(self.status(), folder)

    def _repr_html_(self) -> str:
        """Its trials, as a notebook shows them."""
        from orchestrator.reports.sweeps.sweep_page import trials_html

        return trials_html(self.status())

    def watch(self, *, every: float = WATCH_SECONDS) -> SweepStatus:
        """As `wait`, and in a notebook shows its trials meanwhile.

        Args:
            every: seconds between two looks.
        """
        from orchestrator.reports.pages.notebook import display_of

        draw = display_of(self)
        while not self.state().terminal:
            draw()
            time.sleep(every)
        draw()
        return self.status()

    def cancel(self) -> None:
        """Asks it and its trials to end; one that is driven here can be taken up again."""
        self._control.cancel()

    def resume(self) -> None:
        """Goes on with it.

        Raises:
            ConflictError: it is running, has all of its trials, or was driven by a service, which resumes none.
        """
        self._control.resume()

    def way_on(self) -> str:
        """Return the command that resumes it; after a service drove it, the same sweep driven from here."""
        return self._control.way_on()

    def extend(self, more: int = 0, *, hours: float | None = None, cost: float | None = None) -> None:
        """Lets it have so many trials more, or other limits, and sees to it that it goes on.

        Args:
            more: trials.
            hours: since its submission, after which it ends. None: as before.
            cost: USD that all of its trials together may cost. None: as before.

        Raises:
            UsageError: its space has not so many points, or they would be more than a sweep may have.
            ConflictError: it is running, a service drove it, or a limit would be used up all the same.
            SpecError: there would be a limit of the cost, and its trials have no price.
        """
        record = self.folder.record()
        before = trials(record.spec)
        raised: dict[str, float | None] = {"trials": before + more if more else None, "hours": hours, "cost": cost}
        limits = {key: value for key, value in raised.items() if value is not None}
        sweep = {**record.sweep, "limits": {**record.sweep.get("limits", {}), **limits}}
        if before + more > MOST_TRIALS:
            raise UsageError(f"{before} trials and {more} are more than a sweep may have, {MOST_TRIALS}")
        longer = record.model_copy(update={"sweep": sweep})
        if trials(longer.spec) < before + more:
            raise UsageError(
                f"the grid of sweep {self.name} has {trials(longer.spec)} points, and {before} are to be tried"
            )
        self._control.extend(longer)

    def differing_limits(self, planned: PlannedSweep) -> dict[str, str]:
        """Limits that a plan asks for and this sweep, which was there already, has otherwise.

        Args:
            planned: what was submitted.

        Returns:
            Key -> what was asked for, and what it has.
        """
        return differing(planned.record.spec.limits, self.folder.record().spec.limits)


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
        begun = {(earlier := self.attach(name)).name: earlier for name in sweep.spec.warm_start}.values()
        told = [(earlier.folder.record(), earlier.status().rows) for earlier in begun]
        history = read_history(sweep.spec, sweep.trial.spec.kind, told)
        record, plan = plan_sweep(sweep, self._home, history)
        backend, submission = load_backend(plan.spec.backend, self._home), None
        if on_service(sweep.spec, backend.name) and isinstance(backend, SweepsNatively):
            trial = backend.prepare(plan.model_copy(update={"name": record.name}), run=record.name)
            submission = backend.prepare_sweep(record.spec, trial)
        return PlannedSweep(record, plan, backend, submission, history)

    def submit(self, planned: PlannedSweep) -> Sweep:
        """Starts a sweep, or returns the one of the same hash that is there.

        Raises:
            ConflictError: that one did not complete; it is for the user to take it up again.
            UserError: the service that it is sent to refused.
        """
        record = planned.record
        there = SweepFolder(self._home / SWEEPS / record.name)
        if there.path.is_dir():
            return self._there(there, record)
        if planned.submission is not None:
            from orchestrator.sweeps.driver.service import send_sweep

            folder = send_sweep(record, planned.submission, self._home)
            return Sweep(folder, self._home, created=True)
        folder = make_sweep(record, self._home, history=planned.history)
        start_driver(folder, self._home)
        return Sweep(folder, self._home, created=True)

    def _there(self, folder: SweepFolder, record: SweepRecord) -> Sweep:
        """The sweep of the same plan that is there.

        Raises:
            ConflictError: it did not complete, or was to have fewer trials.
        """
        control, wanted = control_of(folder, self._home), trials(record.spec)
        status = control.status()
        if status.state.resumable:
            raise ConflictError(
                f"a sweep of the same plan is {status.state}",
                facts={"sweep": record.name, "reason": status.reason or "unknown"},
                fix=control.way_on(),
            )
        if wanted > status.trials:
            raise ConflictError(
                f"a sweep of the same plan is there, with {wanted - status.trials} trials less",
                facts={"sweep": record.name},
                fix=control.way_on(wanted),
            )
        return Sweep(folder, self._home)

    def all(self) -> list[Sweep]:
        """Every sweep, the newest first."""
        return [Sweep(folder, self._home) for folder in sweep_folders(self._home)]

    def find(self, name: str) -> Sweep | None:
        """The sweep of that very name, or handle; None: there is none.

        Raises:
            UserError: the workspace of the handle cannot be asked.
        """
        if "://" not in name:
            folder = SweepFolder(self._home / SWEEPS / name)
            return Sweep(folder, self._home) if name and (folder.path / "sweep.json").is_file() else None
        handle = Handle.parse(name)
        if capability_of(handle.backend, SweepsNatively) is None:
            return None
        if (known := self.find(handle.name)) is not None:
            return known
        if handle.place is None or handle.name in load_backend(handle.backend, self._home).names():
            return None  # a run on record here
        from orchestrator.sweeps.driver.service import adopt_sweep

        folder_there = adopt_sweep(handle.backend, handle.place, handle.name, self._home)
        return None if folder_there is None else Sweep(folder_there, self._home)

    def attach(self, name: str) -> Sweep:
        """Finds a sweep again.

        Args:
            name: its name, the unique beginning of one, @last, or azure://WORKSPACE/NAME, from any machine.

        Raises:
            NotFoundError: none, or more than one, fits.
        """
        if "://" in name:
            if (sweep := self.find(name)) is None:
                raise NotFoundError(f"no sweep {name}", fix="orchestrator sweep list")
            return sweep
        found = self.all()
        fitting = [sweep for sweep in found if sweep.name == name]
        fitting = fitting or (found[:1] if name == "@last" else [one for one in found if one.name.startswith(name)])
        if len(fitting) == 1:
            return fitting[0]
        names = ", ".join(sweep.name for sweep in fitting or found)
        what = f"more than one sweep begins with {name}" if fitting else f"no sweep {name}"
        raise NotFoundError(what, facts={"sweeps": names or "none"}, fix="orchestrator sweep list")


def control_of(folder: SweepFolder, home: Path) -> SweepControl:
    """The control of a sweep.

    Args:
        folder: of the sweep.
        home: the home folder.
    """
    if (folder.path / SERVICE).is_file():
        from orchestrator.sweeps.driver.service import ServiceControl

        return ServiceControl(folder, home)
    return DriverControl(folder, home)
