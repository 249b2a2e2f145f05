"""Spec."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from orchestrator.specs.job import LONGEST_NAME, JobSpec
from orchestrator.specs.sections import CodeSpec, ModuleName
from train_jobs.config import PredictConfig

PREDICTIONS = "predictions"  # what their file is called in the run's folder


class PredictCode(CodeSpec):
    """The code that predicts."""

    entry: ModuleName = "train_jobs.predict"
    """Module that every process runs; one of your own takes the same arguments, and may hand them on."""


class PredictSpec(PredictConfig, JobSpec):
    """Predictions by a model: every key of `PredictConfig` at top level."""

    kind: Literal["predict", "evaluate"] = "predict"
    """Which job this is."""
    recipe: str = "default"
    """Recipe that the keys of the job are laid over: default."""
    code: PredictCode = PredictCode()

    @property
    def slug(self) -> str:
        """First part of the run's name: what is predicted tells runs apart."""
        words = re.findall(r"[a-z0-9]+", self.input[0].name.removesuffix(self.input[0].suffix).lower())
        return self.name or "-".join([self.kind, *words])[:LONGEST_NAME].rstrip("-")

    @property
    def delivery(self) -> Path | None:
        """Where on this machine the user wants the predictions; None: nowhere but with the run."""
        return self.output if self.output.is_absolute() else None

    def job_config(self) -> PredictConfig:
        """The part that the job itself reads: its predictions lie with the run, whatever they are called here."""
        return self.part(PredictConfig).model_copy(update={"output": Path(PREDICTIONS).with_suffix(self.output.suffix)})


class EvaluateSpec(PredictSpec):
    """The scores of a model on a file that says what is right."""

    kind: Literal["evaluate"] = "evaluate"
    """Which job this is."""
    evaluate: bool = True
    """Score the predictions by what the input says is right: its labels, answers or tags, or words masked here."""
