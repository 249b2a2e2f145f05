"""Delete checkpoints and models of trials that are not among the best, as `keep_best` of the sweep asks.

Which trials those are is decided in `policy/keeping.py`, from their outcomes alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from orchestrator.backends import require
from orchestrator.backends.base import Backend
from orchestrator.backends.capabilities import DeletesWeights
from orchestrator.estimates.shortages import disk_warnings
from orchestrator.jobs.base import Plan
from orchestrator.specs.sweep_spec import SweepSpec
from orchestrator.support.errors import NotFoundError, SpecError, StorageError
from orchestrator.sweeps.design.sweep_record import SweepRecord
from orchestrator.sweeps.driver.trials import run_names
from orchestrator.sweeps.policy.keeping import AUTO, losers, most_bytes, told


def kept_trials(spec: SweepSpec, backend: Backend) -> int | None:
    """Return how many trials keep their weights; None: all.

    Raises:
        SpecError: a number is asked for, and the backend deletes no weights.
    """
    deletes = isinstance(backend, DeletesWeights)
    if spec.keep_best == "all" or (spec.keep_best == "auto" and not deletes):
        return None
    if not deletes:
        raise SpecError(
            f"keep_best {spec.keep_best}: backend {backend.name} keeps what every trial has written",
            facts={"key": "keep_best"},
            fix="--set keep_best=all",
        )
    return AUTO if spec.keep_best == "auto" else spec.keep_best


def shortage(spec: SweepSpec, plan: Plan, keep: int | None, folder: Path) -> list[str]:
    """Return a warning if the disk of a folder has less free space than all trials may need."""
    need = most_bytes(spec, plan, keep)
    return [] if need is None else disk_warnings(need, folder, f"checkpoints and models {told(keep)}")


class WeightPruner:
    """Deletes the weights of trials while a sweep runs; a restarted driver deletes what the one before left.

    Args:
        record: what was asked for.
        backend: of the trials.
    """

    def __init__(self, record: SweepRecord, backend: Backend) -> None:
        self._record, self._backend, self._spec = record, backend, record.spec
        self._pending: set[int] = set()
        self._bare: set[int] = set()
        self._ended = 0

    def settle(self, outcomes: Mapping[int, float | None]) -> bool:
        """Delete the weights of trials that are no longer among the best.

        Args:
            outcomes: see `losers`.

        Returns:
            False if a supervisor still holds one of the runs: call again later.
        """
        keep = self._record.keep
        if len(outcomes) > self._ended:
            self._ended = len(outcomes)
            gone = losers(outcomes, keep, maximize=self._spec.objective.goal == "maximize")
            self._pending |= gone - self._bare
        for number in sorted(self._pending):
            runs = run_names(self._record.name, number, self._spec.replicates)
            if all(self._is_bare(name, f"sweep {self._record.name} keeps those {told(keep)}") for name in runs):
                self._pending.discard(number)
                self._bare.add(number)
        return not self._pending

    def _is_bare(self, name: str, why: str) -> bool:
        try:
            if not self._backend.describe(name).state.terminal:
                return True  # its user resumed it: it is no trial any more
            return require(self._backend, DeletesWeights).delete_weights(
                name, f"its checkpoints and models are deleted: {why}"
            )
        except NotFoundError:
            return True
        except StorageError as problem:  # no reason to end a sweep
            print(problem, file=sys.stderr, flush=True)
            return True
