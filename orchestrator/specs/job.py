"""What a user writes for a job: the job's own config, flat, and around it where and with what it runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field

from orchestrator.specs.azure import AzureSpec
from orchestrator.specs.compute import ComputeSpec
from orchestrator.specs.environment import EnvironmentSpec, Text
from orchestrator.specs.notify import NotifySpec
from orchestrator.specs.sections import CodeSpec, ModuleName
from orchestrator.specs.tracking import TrackingSpec
from orchestrator.support.html import settings_card
from orchestrator.support.redact import HIDDEN, SECRET
from train_jobs.artifacts.layers import FINETUNE_PRESETS, PREDICT_PRESETS, PREPARE_PRESETS, PRESETS
from train_jobs.artifacts.start_model import KEY as INIT_FROM
from train_jobs.artifacts.start_phase import KEY as PHASE_FROM
from train_jobs.config import FinetuneConfig, PredictConfig, PrepareConfig, PretrainConfig
from train_jobs.config.base import Config

MODEL = "model"  # key of the model that predicts
PREDICTIONS = "predictions"  # what their file is called in the run's folder
LONGEST_NAME = 40  # with the hash, a run's name stays within 63 characters, the limit of a DNS label


def _slug(name: str) -> str:
    if len(name) > LONGEST_NAME or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"must be lower-case letters and digits with single hyphens between, at most {LONGEST_NAME}")
    return name


Slug = Annotated[str, AfterValidator(_slug)]


class JobSpec(Config):
    """What every kind of job has: the keys that only the laptop needs."""

    kind: str
    """Which job this is."""
    recipe: str
    """Recipe that the sections of the job are laid over."""
    name: Slug | None = None
    """First part of the run's name, before the hash. None: KIND-RECIPE."""
    backend: str = "local"
    """Where the run is sent."""
    max_restarts: Annotated[int, Field(ge=0)] = 0
    """How often a run that failed or was preempted is started again by itself, from where it was."""
    tags: dict[str, Text] = Field(default={})
    """Free labels of the run; they change nothing about it."""
    code: CodeSpec = CodeSpec()
    compute: ComputeSpec = ComputeSpec()
    environment: EnvironmentSpec = EnvironmentSpec()
    tracking: TrackingSpec = TrackingSpec()
    notify: NotifySpec = NotifySpec()
    azure: AzureSpec = AzureSpec()

    @property
    def slug(self) -> str:
        """First part of the run's name."""
        return self.name or f"{self.kind}-{self.recipe}"

    def _repr_html_(self) -> str:
        """All settings, as a notebook shows them; values of variables that look like secrets are not among them."""
        settings = self.model_dump(mode="json")
        variables = settings["environment"]["variables"]
        settings["environment"]["variables"] = {
            name: HIDDEN if SECRET.search(name) else value for name, value in variables.items()
        }
        return settings_card(f"{self.kind} {self.slug}", settings)


class PretrainSpec(PretrainConfig, JobSpec):
    """A pretraining job: every section of `PretrainConfig` at top level."""

    kind: Literal["pretrain"] = "pretrain"
    """Which job this is."""
    recipe: str = "tiny"
    """Recipe that the sections of the job are laid over: tiny, small, base, large or a published one."""

    def job_config(self) -> PretrainConfig:
        """The part that the job itself reads."""
        return PretrainConfig(**{section: getattr(self, section) for section in PretrainConfig.model_fields})


class PrepareCode(CodeSpec):
    """The code that prepares text."""

    entry: ModuleName = "train_jobs.prepare"
    """Module that every process runs; one of your own takes the same arguments, and may hand them on."""


class PrepareSpec(PrepareConfig, JobSpec):
    """The preparation of text: every key of `PrepareConfig` at top level."""

    kind: Literal["prepare"] = "prepare"
    """Which job this is."""
    recipe: str = "uncased"
    """Recipe that the keys of the job are laid over: uncased or cased."""
    code: PrepareCode = PrepareCode()

    def job_config(self) -> PrepareConfig:
        """The part that the job itself reads."""
        return PrepareConfig(**{section: getattr(self, section) for section in PrepareConfig.model_fields})


class FinetuneCode(CodeSpec):
    """The code that fine-tunes."""

    entry: ModuleName = "train_jobs.finetune"
    """Module that every process runs; one of your own takes the same arguments, and may hand them on."""


class FinetuneSpec(FinetuneConfig, JobSpec):
    """The fine-tuning of a model on a task: every key of `FinetuneConfig` at top level."""

    kind: Literal["finetune"] = "finetune"
    """Which job this is."""
    recipe: str = "glue"
    """Recipe that the keys of the job are laid over: glue, glue-stable, glue-roberta, squad, entities. If none is said,
    that of the task."""
    code: FinetuneCode = FinetuneCode()

    @property
    def slug(self) -> str:
        """First part of the run's name: what it is tuned on tells runs apart, not the recipe."""
        return self.name or f"{self.kind}-{self.task.lower().replace('.', '-')}"

    def job_config(self) -> FinetuneConfig:
        """The part that the job itself reads."""
        return FinetuneConfig(**{section: getattr(self, section) for section in FinetuneConfig.model_fields})


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
        config = PredictConfig(**{section: getattr(self, section) for section in PredictConfig.model_fields})
        return config.model_copy(update={"output": Path(PREDICTIONS).with_suffix(self.output.suffix)})


class EvaluateSpec(PredictSpec):
    """The scores of a model on a file that says what is right."""

    kind: Literal["evaluate"] = "evaluate"
    """Which job this is."""
    evaluate: bool = True
    """Score the predictions by what the input says is right: its labels, answers or tags, or words masked here."""


class Kind(NamedTuple):
    """A kind of job, as the command line and the SDK offer it."""

    spec: type[JobSpec]
    """What a user writes."""
    recipes: Path
    """Folder of its recipes."""
    subject: str
    """What its sections are about: kinds of one subject share the defaults of a project."""
    starts: tuple[str, ...] = ()
    """Keys that name what it starts from, a model or an earlier phase, and may name the run that made it."""
    gpus: bool = True
    """Whether it uses GPUs where there are some."""
    stores: bool = False
    """Whether it makes token stores, or finds them, and is told where they are kept."""


KINDS = {
    "pretrain": Kind(PretrainSpec, PRESETS, "text", starts=(INIT_FROM, PHASE_FROM), stores=True),
    "prepare": Kind(PrepareSpec, PREPARE_PRESETS, "text", gpus=False, stores=True),
    "finetune": Kind(FinetuneSpec, FINETUNE_PRESETS, "tasks", starts=(INIT_FROM,)),
    "evaluate": Kind(EvaluateSpec, PREDICT_PRESETS, "files", starts=(MODEL,)),
    "predict": Kind(PredictSpec, PREDICT_PRESETS, "files", starts=(MODEL,)),
}
