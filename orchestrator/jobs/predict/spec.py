"""Specs of a prediction and of an evaluation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from orchestrator.specs.job import CodeSpec, JobSpec
from orchestrator.specs.names import MAX_NAME_LENGTH, ModuleName
from orchestrator.specs.paths import PathKeys
from train_jobs.artifacts.layers import ConfigLayer, merge
from train_jobs.artifacts.model_trust import SETTING
from train_jobs.artifacts.start_model import Merge
from train_jobs.artifacts.task_files import finetuned_tables
from train_jobs.config import PredictConfig

PATHS = PathKeys(starts=("model",), files=(SETTING,), lists=("input",), unchecked=("output",))
PREDICTIONS = "predictions"  # name of their file in the run's folder


class PredictCode(CodeSpec):
    """The code that predicts."""

    entry: ModuleName = "train_jobs.predict"
    """Module that every process runs; your own module receives the same arguments, and can pass them on."""


class PredictSpec(PredictConfig, JobSpec):
    """A prediction: every key of `PredictConfig` at top level."""

    kind: Literal["predict", "evaluate"] = "predict"
    """Kind of the job."""
    recipe: str = "default"
    """Recipe: default. The keys of the job override its values."""
    code: PredictCode = PredictCode()

    @property
    def slug(self) -> str:
        """First part of the run's name, from the first input file."""
        words = re.findall(r"[a-z0-9]+", self.input[0].name.removesuffix(self.input[0].suffix).lower())
        return self.name or "-".join([self.kind, *words])[:MAX_NAME_LENGTH].rstrip("-")

    @property
    def delivery(self) -> Path | None:
        """File on this machine that receives the predictions; None: they stay with the run."""
        return self.output if self.output.is_absolute() else None

    def job_config(self) -> PredictConfig:
        """Return the part that the job itself reads; its predictions have a fixed name in the run's outputs."""
        return self.part(PredictConfig).model_copy(update={"output": Path(PREDICTIONS).with_suffix(self.output.suffix)})


class EvaluateSpec(PredictSpec):
    """The scores of a model on a file with labels."""

    kind: Literal["evaluate"] = "evaluate"
    """Kind of the job."""
    evaluate: bool = True
    """Score the predictions against the labels, answers or tags of the input, or against words that the job masks."""


def merge_with_model(presets: Sequence[ConfigLayer], written: Sequence[ConfigLayer]) -> Merge:
    """Merge presets with what the user wrote; between them is how the tables of the model's fine-tuning were read."""
    return Merge(merge([*presets, *finetuned_tables(merge(written).tree), *written]))
