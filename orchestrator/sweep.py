"""Sweeps in the SDK: plan, submit and find them.

sweeps = Orchestrator().sweeps
sweep = sweeps.submit(sweeps.plan(file="sweep.yaml"))
sweep.wait().best.settings
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.backends import capability_of, load_backend, require
from orchestrator.backends.capabilities import CopiesToMlflow, SupervisesSweeps, SweepsNatively
from orchestrator.jobs.registry import run_kind
from orchestrator.run import Run
from orchestrator.runs.status import Handle, RunState
from orchestrator.specs.settings import settings_text
from orchestrator.specs.sweep_spec import MAX_TRIALS, as_tree, trial_count
from orchestrator.support.access import shared_group
from orchestrator.support.errors import (
    ConflictError,
    NotFoundError,
    StorageError,
    TimeoutExceeded,
    UsageError,
    UserError,
)
from orchestrator.support.formatting import bytes_text
from orchestrator.support.home import SWEEPS, sweep_names
from orchestrator.support.html import card
from orchestrator.sweeps.design.sweep_record import SweepRecord
from orchestrator.sweeps.driver.control import (
    NO_WARM_START,
    SERVICE,
    DriverControl,
    SweepControl,
    check_secrets,
    make_sweep,
    start_driver,
)
from orchestrator.sweeps.driver.history import WarmStart
from orchestrator.sweeps.driver.parent import ParentRun
from orchestrator.sweeps.driver.sweep_folder import CLOUD, SweepFolder
from orchestrator.sweeps.driver.sweep_status import SweepStatus, TrialRow
from train_jobs.artifacts.layers import ConfigLayer, merge
from train_jobs.artifacts.mounts import reporting_write_errors

if TYPE_CHECKING:
    from orchestrator.backends.base import Backend, Submission
    from orchestrator.jobs.base import Plan
    from orchestrator.runs.tracked_run import Synced
    from orchestrator.specs.resolved import Flag

SHOWN_TRIALS = 3  # of a plan
WATCH_SECONDS = 2.0


@dataclass(frozen=True)
class PlannedSweep:
    """A planned sweep, before its submission."""

    record: SweepRecord
    """The sweep."""
    plan: Plan
    """The plan of its trial, before the settings of the space are applied."""
    backend: Backend
    """The backend of its trials."""
    submission: Submission | None = None
    """The request to the service that drives it; None: a process of this machine drives it."""
    history: WarmStart = NO_WARM_START
    """Trials of earlier sweeps that it starts with."""
    group: str | None = None
    """The group that the home folder is shared with; None: it is private."""
    notes: tuple[str, ...] = ()
    """Lines of the backend about its machines, `label: text` each."""

    @property
    def on_service(self) -> bool:
        """Whether a service of the backend drives it."""
        return self.submission is not None

    @property
    def supervision(self) -> str | None:
        """Text about the schedule of the backend that takes it on; None: no schedule does."""
        if self.on_service or not isinstance(self.backend, SupervisesSweeps):
            return None
        return self.backend.supervision(self.plan)

    def facts(self) -> list[tuple[str, str]]:
        """Return the plan for humans as rows of label and text."""
        from orchestrator.jobs.facts import secret_rows
        from orchestrator.sweeps.design.points import draw
        from orchestrator.sweeps.driver.weight_pruning import kept_text, max_weight_bytes, trials_on_disk

        spec, keep = self.record.spec, self.record.keep
        policy = spec.early_termination
        numbers = policy.model_dump(exclude={"policy"}, exclude_defaults=True)
        rows = [("trials", f"{trial_count(spec)}, {spec.limits.concurrent} at a time, on {self.plan.spec.backend}")]
        if self.on_service and isinstance(self.backend, SweepsNatively):
            rows.append(("driven by", f"{self.backend.sweep_service}, which draws its own points"))
        if (supervision := self.supervision) is not None:
            rows.append(("supervision", supervision))
        rows += [
            ("sampling", f"{spec.sampling.name}, seed {spec.sampling.seed}"),
            ("objective", f"{spec.objective.goal} {spec.objective.metric}"),
            ("stopped by", " ".join([policy.policy, *(f"{key} {value}" for key, value in numbers.items())])),
            *([("seeds", ", ".join(map(str, spec.seeds)))] if spec.seeds else []),
            *(("warm start", earlier.text) for earlier in self.record.earlier),
        ]
        if spec.sampling.name in {"random", "sobol", "grid"} and not self.on_service:
            shown = range(min(SHOWN_TRIALS, trial_count(spec)))
            rows += [(f"trial {number}", settings_text(draw(spec, number))) for number in shown]
        rows += secret_rows(self.plan.spec.environment.secrets)
        known = {label for label, _ in rows}
        rows += [
            (label, text) for label, _, text in (note.partition(": ") for note in self.notes) if label not in known
        ]
        if self.group is not None:
            rows.append(("home", f"shared with group {self.group}, whose members can read and change this sweep"))
        failed = "" if keep is None else "; failed ones keep theirs for sweep retry"
        rows.append(("keeps", f"checkpoints and models {kept_text(keep)}{failed}"))
        if not self.backend.remote and (most := max_weight_bytes(spec, self.plan, keep)) is not None:
            count = trials_on_disk(spec, keep)
            several = f" x {spec.replicates} seeds" if spec.replicates > 1 else ""
            each = bytes_text(most // (count * spec.replicates))
            unless = "" if keep is None else ", if none fails"
            rows.append(("disk", f"{bytes_text(most)} at most{unless}: {count} trials{several} of {each} (estimate)"))
        return rows

    def _repr_html_(self) -> str:
        """Return the facts for a notebook, with the plan of a trial below."""
        return card(self.record.name, self.facts()) + self.plan._repr_html_()


class Sweep:
    """A submitted sweep.

    Args:
        folder: its folder.
        home: the home folder.
        created: False if it existed before the submission that returned it.
    """

    def __init__(self, folder: SweepFolder, home: Path, *, created: bool = False) -> None:
        self.folder, self.created, self._home = folder, created, home
        self._control: SweepControl
        if (folder.path / SERVICE).is_file():
            from orchestrator.sweeps.driver.service import ServiceControl

            self._control = ServiceControl(folder, home)
        elif (folder.path / CLOUD).is_file():
            from orchestrator.sweeps.driver.cloud import CloudControl

            self._control = CloudControl(folder, home)
        else:
            self._control = DriverControl(folder, home)
        self.poll_seconds = self._control.poll_seconds

    @property
    def name(self) -> str:
        """Its name."""
        return self.folder.name

    def status(self) -> SweepStatus:
        """Return the status with all trials."""
        return self._control.status()

    def state(self) -> RunState:
        """Return the state."""
        return self._control.state()

    @property
    def may_start_trials(self) -> bool:
        """Whether a driver on this machine starts trials of it, now or once it is resumed."""
        return type(self._control) is DriverControl and self.state() != RunState.COMPLETED

    def wait(self, timeout: float | None = None) -> SweepStatus:
        """Wait until the sweep has finished; return its status.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            TimeoutExceeded: it is still running after `timeout`.
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
        """Return the best completed trial; if none completed, the best of those that were stopped.

        Raises:
            NotFoundError: no trial has a result yet.
        """
        if (row := self.status().best) is None:
            raise NotFoundError(
                f"no trial of sweep {self.name} has a result", fix=f"orchestrator sweep show {self.name}"
            )
        return row

    def best_spec(self) -> dict[str, Any]:
        """Return the spec of a job that runs the best trial again.

        If the trial has several seeds, it has all of them, or the first if one job cannot train them all.
        """
        record, row = self.folder.record(), self.best()
        layers = [ConfigLayer("trial", record.trial), ConfigLayer("space", as_tree(row.settings))]
        if seeds := record.spec.seeds:
            several = "seeds" in record.trial
            layers.append(ConfigLayer("seeds", {"seeds": seeds} if several else {"train": {"seed": seeds[0]}}))
        return merge(layers).tree

    def importance(self) -> dict[str, float]:
        """Return setting -> share of the differences in results, by PED-ANOVA (Watanabe et al. 2023, arXiv 2304.10255).

        Empty for too few trials with a result, or if all results are equal.
        """
        from orchestrator.reports.pages.sweep_page import importance_of  # with the charts, which a table does without

        return importance_of(self.folder.record().spec.objective.goal, self.status().rows)

    def report(self, to: str | os.PathLike[str] | None = None, *, trial_pages: bool = True) -> Path:
        """Write a self-contained HTML page about the sweep; return its path.

        Args:
            to: the file; None: report.html in the sweep's folder.
            trial_pages: whether to link to the pages of trials, and write those that are missing or out of date.
                Trials on Azure have no links: reading them all takes minutes.

        Raises:
            StorageError: it cannot be written.
        """
        from orchestrator.reports.pages.comparison import PAGE, write_page
        from orchestrator.reports.pages.sweep_page import render_sweep

        status, page = self.status(), self.folder.path / PAGE if to is None else Path(to)
        command = self.resume_command() if status.state.resumable else None
        pages = self._trial_pages(status, page.parent) if trial_pages else None
        return write_page(render_sweep(status, self.importance(), resume=command, pages=pages), page)

    def _trial_pages(self, status: SweepStatus, folder: Path) -> dict[str, str]:
        """Return the name of each trial's run -> address of its page, relative to a folder; write pages as needed."""
        from orchestrator.reports.pages.comparison import PAGE
        from orchestrator.reports.pages.page_parts import link_to

        record = self.folder.record()
        backend, kind = load_backend(record.trial["backend"], self._home), run_kind(record.kind)
        found: dict[str, str] = {}
        if backend.remote or not (kind.trains or kind.scored):
            return found
        for row in status.rows:
            for name in row.runs:
                with suppress(NotFoundError):  # its run was deleted
                    page = (backend.folder(name) or folder) / PAGE
                    if not _is_current(page, row):
                        with suppress(UserError):  # the folder of another user's run, or a damaged one
                            Run(backend, backend.handle(name)).report(page)
                    if page.is_file():
                        found[name] = link_to(page, folder)
        return found

    def pictures(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the first figures of that page as PNG files into `folder`; return their paths.

        Raises:
            StorageError: a file cannot be written.
        """
        from orchestrator.reports.pages.sweep_drawings import write_pictures

        return write_pictures(self.status(), Path(folder))

    def _repr_html_(self) -> str:
        """Return the table of trials as HTML for a notebook."""
        from orchestrator.reports.pages.sweep_page import trials_html

        return trials_html(self.status())

    def watch(self, *, every: float = WATCH_SECONDS) -> SweepStatus:
        """Wait like `wait`, and keep a table of the trials up to date in the notebook.

        Args:
            every: seconds between two updates.
        """
        from orchestrator.reports.pages.run_page import display_of

        draw = display_of(self)
        while not self.state().terminal:
            draw()
            time.sleep(every)
        draw()
        return self.status()

    @property
    def copies_to_mlflow(self) -> bool:
        """Whether its metrics are copied to an MLflow store; a workspace of Azure has MLflow runs of its own."""
        return capability_of(self.folder.record().trial["backend"], CopiesToMlflow) is not None

    def sync_mlflow(self, to: str | None = None) -> Synced:
        """Make its MLflow run equal to its records, and nest its trials below it; safe to repeat.

        Args:
            to: tracking URI. None: the sweep's own.

        Raises:
            NotFoundError: it was deleted.
            ServiceError: MLflow or its store refused.
            StorageError: the sweep's folder cannot be read or written.
            UsageError: its backend has MLflow runs of its own.
        """
        if not self.folder.path.is_dir():
            raise NotFoundError(f"unknown sweep {self.name!r}", fix="orchestrator sweep list")
        require(load_backend(self.folder.record().trial["backend"], self._home), CopiesToMlflow)
        place = self.folder.path
        with reporting_write_errors(f"cannot sync sweep {self.name}", place):
            return ParentRun(self.folder, self._home).sync(to)

    def cancel(self) -> None:
        """Cancel the sweep and its trials; a sweep that is driven from this machine can be resumed."""
        self._control.cancel()

    def resume(self) -> None:
        """Resume the sweep.

        Raises:
            ConflictError: it is running, has all of its trials, or was driven by a service, which cannot resume it.
        """
        self._control.resume()

    def retry(self, trials: Iterable[int] = ()) -> None:
        """Run failed trials again, each from its last checkpoint; a completed sweep becomes a running one.

        Args:
            trials: their numbers; empty: all that failed.

        Raises:
            ConflictError: it is running, a service drove it, a limit is used up, or a trial has not failed.
            NotFoundError: it has no such trial.
        """
        self._control.retry(list(dict.fromkeys(trials)))

    def resume_command(self, trials: int | None = None) -> str:
        """Return the command that resumes the sweep; if a service drove it, the one that drives it from here.

        Args:
            trials: new total; None: unchanged.
        """
        return self._control.resume_command(trials)

    way_on = resume_command  # the name in earlier versions

    def extend(self, more: int = 0, *, hours: float | None = None, cost: float | None = None) -> None:
        """Resume the sweep with more trials or other limits.

        Args:
            more: additional trials.
            hours: limit since the submission. None: unchanged.
            cost: limit of the cost of all trials, in USD. None: unchanged.

        Raises:
            UsageError: the space has fewer points, or there would be more than `MAX_TRIALS` trials.
            ConflictError: it is running, a service drove it, or a new limit is already used up.
            SpecError: the cost is limited, and the trials have no price.
        """
        record = self.folder.record()
        before = trial_count(record.spec)
        raised: dict[str, float | None] = {"trials": before + more if more else None, "hours": hours, "cost": cost}
        limits = {key: value for key, value in raised.items() if value is not None}
        sweep = {**record.sweep, "limits": {**record.sweep.get("limits", {}), **limits}}
        if before + more > MAX_TRIALS:
            raise UsageError(f"cannot add {more} trials to {before}: a sweep has at most {MAX_TRIALS}")
        extended = record.model_copy(update={"sweep": sweep})
        if trial_count(extended.spec) < before + more:
            points = trial_count(extended.spec)
            raise UsageError(f"cannot add {more} trials: {before} of the grid's {points} points are already used")
        self._control.extend(extended)

    def differing_limits(self, planned: PlannedSweep) -> dict[str, str]:
        """Return the limits of a plan that differ from those of this existing sweep: key -> `24 (it has 1)`.

        Args:
            planned: the submitted plan.
        """
        new, old = (
            {key: "none" if value is None else f"{value:g}" for key, value in record.spec.limits.model_dump().items()}
            for record in (planned.record, self.folder.record())
        )
        return {key: f"{new[key]} (it has {old[key]})" for key in new if new[key] != old[key]}


def _is_current(page: Path, row: TrialRow) -> bool:
    """Return whether the page of a trial's run was written after the trial ended."""
    with suppress(FileNotFoundError):
        return row.state != RunState.RUNNING and page.stat().st_mtime > row.until
    return False


class Sweeps:
    """The sweeps of a home.

    Args:
        home: the home folder.
        environ: environment variables; None: none.
        model_of, outputs_of: functions that return the folder of a named model, and of an earlier phase's outputs.
    """

    def __init__(
        self,
        home: str | os.PathLike[str],
        *,
        environ: Mapping[str, str] | None = None,
        model_of: Callable[..., Path] | None = None,
        outputs_of: Callable[[str], Path] | None = None,
    ) -> None:
        self._home = Path(home)
        self._environ, self._model_of, self._outputs_of = environ, model_of, outputs_of

    def plan(
        self,
        *,
        file: str | os.PathLike[str] | None = None,
        sets: Iterable[str] = (),
        flags: Mapping[str, Flag] | None = None,
    ) -> PlannedSweep:
        """Plan a sweep: validate it with all of its trials, offline. For the arguments see `resolve_sweep`.

        Raises:
            SpecError, DataError: all problems together, with file and line.
        """
        from orchestrator.specs.resolved import find_project
        from orchestrator.sweeps.design.sweep_plan import SpecContext, on_service, resolve_sweep
        from orchestrator.sweeps.driver.history import read_history
        from orchestrator.sweeps.driver.planning import plan_sweep

        context = SpecContext(self._environ, find_project(Path.cwd()), self._model_of, self._outputs_of)
        path = None if file is None else Path(file)
        sweep = resolve_sweep(file=path, sets=sets, flags=flags, context=context)
        earlier = {(other := self.attach(name)).name: other for name in sweep.spec.warm_start}.values()
        rows = [(other.folder.record(), other.status().rows) for other in earlier]
        history = read_history(sweep.spec, sweep.trial.spec.kind, rows)
        record, plan = plan_sweep(sweep, self._home, history)
        backend = load_backend(plan.spec.backend, self._home)
        submission: Submission | None = None
        trial: Submission | None = None
        notes: tuple[str, ...] = ()
        if backend.remote:
            trial = backend.prepare(plan.model_copy(update={"name": record.name}), run=record.name)
            notes = trial.notes
            if on_service(sweep.spec, backend.name) and isinstance(backend, SweepsNatively):
                submission = backend.prepare_sweep(record.spec, trial)
                notes = submission.notes
        planned = PlannedSweep(record, plan, backend, submission, history, shared_group(self._home), notes)
        if trial is not None and planned.supervision is not None:
            from orchestrator.sweeps.driver.cloud import check_supervision

            check_supervision(record.spec, trial, backend)
        return planned

    def submit(self, planned: PlannedSweep) -> Sweep:
        """Start a sweep, or return the existing one of the same plan.

        Raises:
            ConflictError: the existing one did not complete, or has fewer trials; the fix resumes or extends it.
            UserError: the service refused it.
        """
        record = planned.record
        folder = SweepFolder(self._home / SWEEPS / record.name)
        if not folder.path.is_dir():
            check_secrets(record)
            if planned.submission is not None:
                from orchestrator.sweeps.driver.service import send_sweep

                send_sweep(record, planned.submission, self._home)
            elif planned.supervision is not None:
                from orchestrator.sweeps.driver.cloud import start_sweep

                trial = planned.backend.prepare(planned.plan.model_copy(update={"name": record.name}), run=record.name)
                start_sweep(record, trial, self._home, planned.history)
            else:
                start_driver(make_sweep(record, self._home, history=planned.history), self._home)
            return Sweep(folder, self._home, created=True)
        sweep, wanted = Sweep(folder, self._home), trial_count(record.spec)
        status = sweep.status()
        if status.state.resumable:
            raise ConflictError(
                f"a sweep of the same plan is {status.state}",
                facts={"sweep": record.name, "reason": status.reason or "unknown"},
                fix=sweep.resume_command(),
            )
        if wanted > status.trials:
            raise ConflictError(
                f"a sweep of the same plan exists with {wanted - status.trials} fewer trials",
                facts={"sweep": record.name},
                fix=sweep.resume_command(wanted),
            )
        if folder.unconfirmed() and not status.state.terminal:
            sweep.resume()
            return Sweep(folder, self._home, created=True)
        return sweep

    def all(self) -> list[Sweep]:
        """Return every sweep, the newest first."""
        return [Sweep(SweepFolder(self._home / SWEEPS / name), self._home) for name in sweep_names(self._home)]

    def behind(self, known: Callable[[str], frozenset[str] | None]) -> Iterator[str]:
        """Yield the names of ended sweeps that MLflow does not have in full; see `CopiesToMlflow.behind`."""
        for sweep in self.all():
            with suppress(OSError, ValueError, KeyError, StorageError):  # damaged, or deleted meanwhile
                if sweep.copies_to_mlflow and ParentRun(sweep.folder, self._home).is_behind(known):
                    yield sweep.name

    def find(self, name: str) -> Sweep | None:
        """Return the sweep of exactly that name or handle; None: there is no such sweep.

        Raises:
            UserError: the workspace of the handle does not answer.
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

        adopted = adopt_sweep(handle.backend, handle.place, handle.name, self._home)
        return None if adopted is None else Sweep(adopted, self._home)

    def attach(self, name: str) -> Sweep:
        """Return an existing sweep.

        Args:
            name: its name, a unique prefix of it, @last, or azure://WORKSPACE/NAME, from any machine.

        Raises:
            NotFoundError: it is empty, or no sweep, or more than one, matches.
        """
        if not name:
            raise NotFoundError("the name of the sweep is empty", fix="orchestrator sweep list")
        if "://" in name:
            if (sweep := self.find(name)) is None:
                raise NotFoundError(f"unknown sweep {name!r}", fix="orchestrator sweep list")
            return sweep
        every = self.all()
        matching = [sweep for sweep in every if sweep.name == name]
        matching = matching or (every[:1] if name == "@last" else [one for one in every if one.name.startswith(name)])
        if len(matching) == 1:
            return matching[0]
        names = ", ".join(sweep.name for sweep in matching or every)
        what = f"more than one sweep begins with {name}" if matching else f"unknown sweep {name!r}"
        raise NotFoundError(what, facts={"sweeps": names or "none"}, fix="orchestrator sweep list")
