"""Keep the checkpoints and models of a sweep's best trials (`keep_best`), and delete those of the others.

Without this, the checkpoints of every trial stay until a long sweep fills the disk. Failed trials keep theirs, too:
`sweep retry` continues from them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Set
from pathlib import Path

from orchestrator.backends import require
from orchestrator.backends.base import Backend
from orchestrator.backends.capabilities import DeletesWeights
from orchestrator.estimates.memory import disk_warnings
from orchestrator.jobs.base import Plan
from orchestrator.specs.sweep_spec import SweepSpec, trial_count
from orchestrator.support.errors import NotFoundError, SpecError, StorageError
from orchestrator.sweeps.design.sweep_record import SweepRecord
from orchestrator.sweeps.driver.trials import run_names
from orchestrator.sweeps.policy.termination import ranked_trials

AUTO = 3  # trials that keep their weights with `keep_best: auto`


def kept_trials(spec: SweepSpec, backend: Backend) -> int | None:
    """Return the number of trials that keep their weights; None: all.

    Raises:
        SpecError: `keep_best` is a number, and the backend cannot delete weights.
    """
    deletes = isinstance(backend, DeletesWeights)
    if spec.keep_best == "all" or (spec.keep_best == "auto" and not deletes):
        return None
    if not deletes:
        raise SpecError(
            f"invalid keep_best {spec.keep_best}: backend {backend.name} cannot delete weights",
            facts={"key": "keep_best"},
            fix="--set keep_best=all",
        )
    return AUTO if spec.keep_best == "auto" else spec.keep_best


def trials_to_prune(
    outcomes: Mapping[int, float | None], completed: Set[int], keep: int | None, *, maximize: bool
) -> set[int]:
    """Return the trials whose weights can be deleted.

    Later outcomes only add trials to the result, so deleting before the sweep has finished is safe.

    Args:
        outcomes: results of the finished trials that have not failed; None: the trial has no result.
        completed: numbers of the trials that completed.
        keep: number of trials that keep their weights, in the order of `ranked_trials`. None: all.
        maximize: whether more is better.
    """
    if keep is None:
        return set()
    return outcomes.keys() - set(ranked_trials(outcomes, completed, maximize=maximize)[:keep])


def trials_on_disk(spec: SweepSpec, keep: int | None) -> int:
    """Return the maximum number of trials with weights on the disk at the same time, if none fails."""
    return trial_count(spec) if keep is None else min(trial_count(spec), keep + spec.limits.concurrent)


def max_weight_bytes(spec: SweepSpec, plan: Plan, keep: int | None) -> int | None:
    """Return the maximum bytes of all weights on the disk at the same time, if no trial fails; None: it saves none."""
    return None if plan.weights_bytes is None else trials_on_disk(spec, keep) * spec.replicates * plan.weights_bytes


def kept_text(keep: int | None) -> str:
    """Return the kept trials as text, such as `of the best 3 trials`."""
    return "of all trials" if keep is None else "of the best trial" if keep == 1 else f"of the best {keep} trials"


def disk_shortage(spec: SweepSpec, plan: Plan, keep: int | None, folder: Path) -> list[str]:
    """Return a warning if the disk of a folder has less free space than all trials may need."""
    need = max_weight_bytes(spec, plan, keep)
    return [] if need is None else disk_warnings(need, folder, f"checkpoints and models {kept_text(keep)}")


class WeightPruner:
    """Deletes weights while a sweep runs; after a restart, also those that the previous driver did not delete.

    Args:
        record: the sweep.
        backend: backend of the trials.
    """

    def __init__(self, record: SweepRecord, backend: Backend) -> None:
        self._record, self._spec, self._backend = record, record.spec, backend
        self._pruned: set[int] = set()

    def prune(self, outcomes: Mapping[int, float | None], completed: Set[int]) -> bool:
        """Delete the weights of trials that are no longer among the best.

        Args:
            outcomes, completed: see `trials_to_prune`.

        Returns:
            False if a supervisor still holds one of the runs: call again later.
        """
        spec, keep = self._spec, self._record.keep
        maximize = spec.objective.goal == "maximize"
        pending = trials_to_prune(outcomes, completed, keep, maximize=maximize) - self._pruned
        why = f"its checkpoints and models are deleted: sweep {self._record.name} keeps those {kept_text(keep)}"
        for number in sorted(pending):
            runs = run_names(self._record.name, number, spec.replicates)
            if all(self._prune(name, why) for name in runs):
                self._pruned.add(number)
        return pending <= self._pruned

    def _prune(self, name: str, why: str) -> bool:
        try:
            if not self._backend.describe(name).state.terminal:
                return True  # its user resumed it by hand, and needs its checkpoints
            return require(self._backend, DeletesWeights).delete_weights(name, why)
        except NotFoundError:
            return True
        except StorageError as problem:  # a file that cannot be deleted is no reason to stop a sweep
            print(problem, file=sys.stderr, flush=True)
            return True
