"""Prediction and evaluation as kinds of jobs, which share all but the spec."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.jobs.kind import JobKind

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan
    from orchestrator.jobs.predict.plan import PredictPlan
    from orchestrator.jobs.predict.spec import PredictSpec
    from orchestrator.runs.status import RunStatus
    from orchestrator.specs.paths import PathKeys
    from orchestrator.specs.resolved import Resolved
    from train_jobs.artifacts.layers import Layer
    from train_jobs.artifacts.start_model import Merge


class PredictKind(JobKind):
    """Predictions by a model for rows of files."""

    name = "predict"
    subject = "files"
    keys: ClassVar = {**JobKind.keys, "--model": "model", "--output": "output"}

    @property
    def spec(self) -> type[PredictSpec]:
        """What a user writes."""
        from orchestrator.jobs.predict.spec import PredictSpec

        return PredictSpec

    @property
    def recipes(self) -> Path:
        """Folder of its recipes."""
        from train_jobs.artifacts.layers import PREDICT_RECIPES

        return PREDICT_RECIPES

    @property
    def paths(self) -> PathKeys:
        """Keys of its spec that name files and folders."""
        from orchestrator.specs.paths import PathKeys

        return PathKeys(starts=("model",), lists=("input",), unchecked=("output",))

    def merge(self, presets: Sequence[Layer], written: Sequence[Layer]) -> Merge:
        """Merge presets with what the user wrote; between them lie the columns that the model was tuned on."""
        from train_jobs.artifacts.layers import merge
        from train_jobs.artifacts.start_model import Merge
        from train_jobs.artifacts.tuned_columns import tuned_columns

        return Merge(merge([*presets, *tuned_columns(merge(written).tree), *written]))

    def plan(self, resolved: Resolved, home: Path, like: Plan | None) -> PredictPlan:
        """Read model, rows and code, and return the plan."""
        from orchestrator.jobs.predict.plan import plan_prediction

        return plan_prediction(resolved, home, like)

    def data_flag(self, words: list[str]) -> dict[str, tuple[Any, str]]:
        """Return key -> value and flag of the files given by --data or --input."""
        return {"input": (words or None, "--data or --input")}

    def next_commands(self, status: RunStatus) -> dict[str, str]:
        """Return label -> command for what a completed run has made."""
        return {"file": f"orchestrator download {status.name} predictions --to FOLDER"}


class EvaluateKind(PredictKind):
    """Scores of a model on a file that has labels."""

    name = "evaluate"
    scored = True

    @property
    def spec(self) -> type[PredictSpec]:
        """What a user writes."""
        from orchestrator.jobs.predict.spec import EvaluateSpec

        return EvaluateSpec


PREDICT = PredictKind()
EVALUATE = EvaluateKind()
