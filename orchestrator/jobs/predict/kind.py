"""Prediction and evaluation as kinds of jobs, which share all but the spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.jobs.kind import JobKind, columns_by_role
from orchestrator.support.plugins import lazy

if TYPE_CHECKING:
    from orchestrator.runs.status import RunStatus


class PredictKind(JobKind):
    """Predictions by a model for rows of files."""

    name = "predict"
    subject = "files"
    keys: ClassVar = {**JobKind.keys, "--model": "model", "--output": "output"}
    spec = lazy("orchestrator.jobs.predict.spec:PredictSpec")
    paths = lazy("orchestrator.jobs.predict.spec:PATHS")
    merge = lazy("orchestrator.jobs.predict.spec:merge_with_model")
    plan = lazy("orchestrator.jobs.predict.plan:plan_prediction")
    recipes = lazy("train_jobs.artifacts.layers:PREDICT_RECIPES")

    def data_flag(self, words: list[str]) -> dict[str, tuple[Any, str]]:
        """Return key -> value and flag of the files given by --data or --input."""
        return {"input": (words or None, "--data or --input")}

    def column_flag(self, words: list[str], texts: Any) -> dict[str, tuple[Any, str]]:
        """Return key -> value and flag for ROLE=NAME arguments of --column; columns with the role id are kept."""
        kept = [word.partition("=")[2] for word in words if word.startswith("id=")]
        roles = {role: f"data.{role}" for role in ("text", "pair", "label", "question", "context")}
        found = columns_by_role([word for word in words if not word.startswith("id=")], roles)
        return found | ({"data.keep": (kept, "--column")} if kept else {})

    def next_commands(self, status: RunStatus) -> dict[str, str]:
        """Return label -> command for what a completed run has made."""
        return {"file": f"orchestrator download {status.name} predictions --to FOLDER"}


class EvaluateKind(PredictKind):
    """Scores of a model on a file that has labels."""

    name = "evaluate"
    scored = True
    report = lazy("orchestrator.reports.pages.evaluation_report:EvaluationReport")
    spec = lazy("orchestrator.jobs.predict.spec:EvaluateSpec")


PREDICT = PredictKind()
EVALUATE = EvaluateKind()
