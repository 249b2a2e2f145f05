"""The folder of a sweep in HOME/sweeps, and which process writes which file.

SWEEP/
  sweep.json       the sweep: written at submission, and by `extend`
  history.json     trials of earlier sweeps for a warm start: written at submission
  state.json       written by the driver; before its start by the submission, after its end by a cancellation
  study.journal    trials in Optuna's format, for optuna-dashboard too: written by the driver
  decisions.jsonl  decisions of the policy on each report, with their numbers: written by the driver before it acts
  rows.json        trials of an ended sweep as rows, a cache: written by commands that show the sweep
  metrics.jsonl    a line for each finished trial: metrics of the parent run in MLflow
  lock             held by the driver while it runs
  cancel           exists if the sweep is to be cancelled
  tracking.json    id of the sweep's MLflow run; mlflow-behind.txt: why it lacks something
  driver.log       output of the driver
  reserve          bytes that the driver frees to write its final state on a full disk
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Container
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.runs.run_documents import reporting_damage
from orchestrator.runs.supervised_folder import Below, SupervisedFolder
from orchestrator.support.moved_home import MovedHome
from orchestrator.support.quiet_tqdm import load_quietly
from orchestrator.sweeps.design.sweep_record import SweepRecord, SweepState
from orchestrator.sweeps.policy.termination import Decision
from train_jobs.artifacts.files import write_text
from train_jobs.config.errors import in_shell

if TYPE_CHECKING:
    from optuna import Study

STUDY = "study.journal"
CLOUD = "cloud.json"  # exists only in the folder of a sweep that a schedule of its backend takes on
STARTING = "starting"  # exists until the backend is known to have the schedule of a sweep in the cloud
END = "end"  # attribute of a finished trial: its state, reason, outcome, cost and duration
RESUMED = "resumed"  # attribute of a trial that a later driver continued: when, and its duration until then
ENDING = "ending"  # attribute of a trial whose runs are being cancelled: its final state and the reason


@dataclass(frozen=True)
class SweepFolder(SupervisedFolder[SweepState]):
    """Paths of one sweep."""

    noun = "sweep"
    supervisor = "driver"
    show_command = "orchestrator sweep show"
    state_kind = SweepState

    metrics = Below("metrics.jsonl")
    """Metrics of the parent run."""
    decided = Below("decisions.jsonl")
    """Decisions of the policies."""
    journal = Below(STUDY)
    """Trials in Optuna's format."""
    rows = Below("rows.json")
    """Rows of the trials of an ended sweep, kept from one command to the next."""
    history = Below("history.json")
    """Trials of earlier sweeps; missing without a warm start."""

    def lost_update(self, state: SweepState) -> dict[str, Any]:
        """Return what changes in the state of a sweep whose driver died."""
        return {"reason": self.lost_reason(state)}

    def alive(self, state: SweepState) -> bool:
        """Return whether the driver lives; a sweep that a schedule takes on has one at the next step."""
        return (self.path / CLOUD).is_file() or super().alive(state)

    def unconfirmed(self) -> bool:
        """Return whether it is unknown if the backend has the schedule that takes the sweep on."""
        return (self.path / STARTING).is_file()

    def has_driver(self) -> bool:
        """Return whether a process or a schedule drives the sweep, on a disk without locks too."""
        state = self.stored_state()  # after its last one, a driver that has released the lock may still be exiting
        return self.locked() or (not state.state.terminal and self.alive(state))

    def record(self) -> SweepRecord:
        """Read sweep.json, with the present paths of a moved or copied home.

        Raises:
            StorageError: it is missing or damaged.
        """
        with self._reporting_damage("sweep.json"):
            document = dict(json.loads((self.path / "sweep.json").read_text()))
            moved = MovedHome.find(document.get("homes", ()), self.path.parent.parent)
            return SweepRecord.model_validate(document if moved is None else moved.follow(document))

    def stored_state(self) -> SweepState:
        """Return state.json as it is.

        Raises:
            StorageError: it is missing or damaged.
        """
        with self._reporting_damage(self.state_file.name):
            return super().stored_state()

    def _reporting_damage(self, name: str) -> AbstractContextManager[None]:
        fix = f"restore {in_shell(self.path / name)} from a copy"
        return reporting_damage(f"sweep {self.name}", self.path, name, fix=fix)

    def write_record(self, record: SweepRecord) -> None:
        """Replace sweep.json."""
        write_text(self.path / "sweep.json", record.model_dump_json(indent=1))

    def reserve(self) -> None:
        """Reserve bytes for the final state, unless the disk is already full."""
        with suppress(OSError):
            super().reserve()

    def decisions(self) -> dict[tuple[int, int], Decision]:
        """Return (trial, report) -> decision; a truncated last line is skipped, since it never took effect."""
        decisions = {}
        for line in self.decided.read_text().splitlines() if self.decided.exists() else ():
            with suppress(ValueError):
                stored = json.loads(line)
                decisions[stored["trial"], stored["report"]] = Decision(stored["stop"], stored["report"], stored["why"])
        return decisions

    def decide(self, trial: int, decision: Decision) -> None:
        """Store a decision on the disk; the caller applies it afterwards."""
        append(self.decided, {"time": time.time(), "trial": trial, **decision._asdict()})

    def study(self) -> Study:
        """Return the study, which `make_study` created at submission."""
        optuna = self._optuna()
        storage, pruner = self._storage(optuna), optuna.pruners.NopPruner()
        study: Study = optuna.load_study(study_name=self.name, storage=storage, pruner=pruner)
        return study

    def make_study(self, name: str, goal: Literal["minimize", "maximize"]) -> None:
        """Create an empty study."""
        optuna = self._optuna()
        optuna.create_study(study_name=name, storage=self._storage(optuna), direction=goal)

    def reopen_trials(self, numbers: Container[int]) -> None:
        """Make finished trials unfinished again, so that the next driver continues them; the caller holds the lock.

        Optuna changes no finished trial, so a new study replaces the old one as a whole.

        Args:
            numbers: of the trials.
        """
        optuna = self._optuna()
        study, draft = self.study(), self.path / f"{STUDY}.new"
        draft.unlink(missing_ok=True)
        renewed = optuna.create_study(
            study_name=self.name, storage=self._storage(optuna, draft), direction=study.direction
        )
        for trial in study.get_trials():
            if trial.number in numbers:
                trial.state, trial.values, trial.datetime_complete = optuna.trial.TrialState.RUNNING, None, None
                trial.user_attrs = {key: value for key, value in trial.user_attrs.items() if key not in {END, ENDING}}
            renewed.add_trial(trial)
        draft.replace(self.journal)

    @staticmethod
    def _optuna() -> Any:
        load_quietly()
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return optuna

    def _storage(self, optuna: Any, path: Path | None = None) -> Any:
        # A journal and not SQLite: one driver writes, so no server is needed, and 60 trials with 5 reports each took
        # 0.2 s against 2 s. Its weakness, a truncated last line, is handled by `repair`.
        journal, file = optuna.storages.journal, str(path or self.journal)
        # Optuna's default lock is a symbolic link, for NFS 2; exFAT and some network disks have none.
        backend = journal.JournalFileBackend(file, lock_obj=journal.JournalFileOpenLock(file))
        return optuna.storages.JournalStorage(backend)

    def repair(self) -> None:
        """Remove a killed driver's stale locks, half-written states and truncated lines; the caller holds the lock.

        A truncated last line makes the journal unreadable once another line follows it. A stale lock of Optuna would
        delay the next driver until its grace period is over.
        """
        for stale in (*self.path.glob(f"{STUDY}.lock*"), *self.path.glob(f".{self.state_file.name}.*.tmp")):
            stale.unlink()
        for name in (STUDY, "decisions.jsonl", "metrics.jsonl"):
            path = self.path / name
            if path.exists() and (content := path.read_bytes()) and not content.endswith(b"\n"):
                os.truncate(path, content.rfind(b"\n") + 1)


def append(path: Path, document: dict[str, Any]) -> None:
    """Append a line of JSON, and return only once it is on the disk."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(document) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def last_step(path: Path) -> int:
    """Return the last step in a file of metrics; 0 without one."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0
