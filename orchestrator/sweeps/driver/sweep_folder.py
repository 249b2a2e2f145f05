"""The folder of a sweep, below HOME/sweeps, and who may write what in it.

SWEEP/
  sweep.json       what was asked for: written at submission, and again by `extend`
  history.json     trials of earlier sweeps that it begins with, if it does: written at submission
  state.json       written by the driver alone (before it, by submission; once it is gone, by who cancels)
  study.journal    trials, as Optuna keeps them: written by the driver; optuna-dashboard opens it
  decisions.jsonl  what a policy decided of each report, and by which numbers: by the driver, before it acts
  metrics.jsonl    a line for each trial that ended: the parent's metrics in MLflow
  lock             held by the driver as long as it lives
  cancel           made by whoever asks the sweep to end
  driver.log       what the driver has to say
  reserve          bytes that the driver frees for its last words on a full disk
"""

from __future__ import annotations

import json
import os
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError
from orchestrator.support.home import SWEEPS, sweep_names
from orchestrator.support.quiet_tqdm import load_quietly
from orchestrator.sweeps.design.sweep_record import SweepRecord, SweepState
from orchestrator.sweeps.policy.termination import Decision
from train_jobs.artifacts.file_lock import hold, is_held
from train_jobs.artifacts.files import write_text

if TYPE_CHECKING:
    from optuna import Study

QUEUED_SECONDS = 30.0  # a driver starts in a second or two, on a busy machine in some
DRIVER_LOST = "driver lost: its process ended without a word (killed, or out of memory)"
STUDY = "study.journal"
RESERVE_BYTES = 256 * 1024


@dataclass(frozen=True)
class SweepFolder:
    """Paths of one sweep."""

    path: Path

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.path.name

    @property
    def cancel_file(self) -> Path:
        """Exists when the sweep was asked to end."""
        return self.path / "cancel"

    @property
    def metrics(self) -> Path:
        """The parent's metrics."""
        return self.path / "metrics.jsonl"

    @property
    def decided(self) -> Path:
        """What policies decided."""
        return self.path / "decisions.jsonl"

    @property
    def history(self) -> Path:
        """Trials of earlier sweeps; not there without a warm start."""
        return self.path / "history.json"

    def record(self) -> SweepRecord:
        """What was asked for."""
        return SweepRecord.model_validate_json((self.path / "sweep.json").read_text())

    def write_record(self, record: SweepRecord) -> None:
        """Replaces what was asked for."""
        write_text(self.path / "sweep.json", record.model_dump_json(indent=1))

    def stored_state(self) -> SweepState:
        """state.json as it is."""
        return SweepState.model_validate_json((self.path / "state.json").read_text())

    def write_state(self, state: SweepState) -> None:
        """Replaces state.json as a whole; frees the reserve first if the disk is full."""
        try:
            write_text(self.path / "state.json", state.model_dump_json(indent=1))
        except OSError:
            (self.path / "reserve").unlink(missing_ok=True)
            write_text(self.path / "state.json", state.model_dump_json(indent=1))

    def reserve(self) -> None:
        """Sets bytes aside for the last words on a full disk."""
        with suppress(OSError):  # of a disk that is full already nothing can be kept
            (self.path / "reserve").write_bytes(os.urandom(RESERVE_BYTES))

    def state(self) -> SweepState:
        """state.json, or what it should say: a sweep whose lock is free is not driven, whatever it says."""
        state = self.stored_state()
        if state.state.terminal or self.locked():
            return state
        age = time.time() - (self.path / "state.json").stat().st_mtime
        if state.state == RunState.QUEUED and age < QUEUED_SECONDS:
            return state
        state = self.stored_state()  # the driver may have said its last word between the two looks
        if state.state.terminal:
            return state
        return state.model_copy(update={"state": RunState.FAILED, "reason": DRIVER_LOST})

    def locked(self) -> bool:
        """True while a driver lives."""
        return is_held(self.path / "lock")

    def lock(self) -> AbstractContextManager[None]:
        """Hold the sweep's lock; the kernel releases it when the process dies, however it dies.

        Raises:
            ConflictError: another driver holds it.
        """
        # a reader that asks whether we live holds it for an instant
        busy = ConflictError(f"sweep {self.name} is going on already", fix=f"orchestrator sweep show {self.name}")
        return hold(self.path / "lock", seconds=1, busy=busy)

    def decisions(self) -> dict[tuple[int, int], Decision]:
        """What was decided: (trial, report) -> decision. A torn last line was never acted upon."""
        found = {}
        for line in self.decided.read_text().splitlines() if self.decided.exists() else ():
            with suppress(ValueError):
                told = json.loads(line)
                found[told["trial"], told["report"]] = Decision(told["stop"], told["report"], told["why"])
        return found

    def decide(self, trial: int, decision: Decision) -> None:
        """Writes a decision down, before it is acted upon."""
        append(self.decided, {"time": time.time(), "trial": trial, **decision._asdict()})

    def study(self) -> Study:
        """The study, which is there from the submission on."""
        optuna = _optuna()
        pruner = optuna.pruners.NopPruner()
        study: Study = optuna.load_study(study_name=self.name, storage=self._storage(), pruner=pruner)
        return study

    def make_study(self, name: str, goal: Literal["minimize", "maximize"]) -> None:
        """An empty study."""
        _optuna().create_study(study_name=name, storage=self._storage(), direction=goal)

    def _storage(self) -> Any:
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(self.path / STUDY)))

    def mend(self) -> None:
        """Takes away what a killed driver left half done; for who holds the lock.

        A torn last line would make the journal unreadable once something stands behind it, and a stale lock of Optuna's
        would be waited for.
        """
        for lock in self.path.glob(f"{STUDY}.lock*"):
            lock.unlink()
        for name in (STUDY, "decisions.jsonl", "metrics.jsonl"):
            path = self.path / name
            if path.exists() and (whole := path.read_bytes()) and not whole.endswith(b"\n"):
                with path.open("r+b") as stream:
                    stream.truncate(whole.rfind(b"\n") + 1)


def _optuna() -> Any:
    load_quietly()
    import optuna

    return optuna


def append(path: Path, document: dict[str, Any]) -> None:
    """Adds a line of JSON, on the disk when this returns."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(document) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def sweep_folders(home: Path) -> list[SweepFolder]:
    """All sweeps, the newest first."""
    return [SweepFolder(home / SWEEPS / name) for name in sweep_names(home)]
