"""The spec of a job: the job's own configuration, and sections for code, environment, tracking and compute."""

from __future__ import annotations

import platform
import re
from abc import abstractmethod
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, Field

from orchestrator.specs.compute import ComputeSpec
from orchestrator.specs.names import ModuleName, Slug
from orchestrator.specs.notification import NotifySpec
from orchestrator.support.html import settings_card
from orchestrator.support.redact import HIDDEN, SECRET
from orchestrator.support.secret_sources import SecretReference, without_credentials
from train_jobs.config.fields import Config, Text

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "pydantic")  # packages that affect results

Megabytes = Annotated[float, Field(gt=0)]


class CodeSpec(Config):
    """The code of the job: `train_jobs`, and the user's own."""

    folder: Path | None = None
    """Your own code, packaged with `train_jobs`, except the paths in .amlignore or, without one, .gitignore."""
    entry: ModuleName = "train_jobs.pretrain"
    """Module that every process runs; your own module receives the same arguments."""
    largest_file_mb: Megabytes = 10
    """Size limit of a file of your folder, in MB; a larger file stops the submission."""
    largest_total_mb: Megabytes = 100
    """Size limit of your folder, in MB; a larger folder stops the submission."""
    allow_secrets: list[str] = Field(default=[])
    """Files of your folder that look like secrets but are not, by their paths in it."""


def _variable_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("must be letters, digits and underscores, and not start with a digit")
    return name


def _reference(text: str) -> str:
    SecretReference.parse(text)
    return text


VariableName = Annotated[str, AfterValidator(_variable_name)]


class EnvironmentSpec(Config):
    """The environment of the job. On this machine: the Python that runs `orchestrator`."""

    preset: str = "current"
    """Environment preset; the other keys of this section override its values."""
    variables: dict[VariableName, Text] = Field(default={})
    """Environment variables of every process of the job; stored in clear."""
    secrets: dict[VariableName, Annotated[str, AfterValidator(_reference)]] = Field(default={})
    """Secret environment variables by where they are kept, looked up at each start: env:NAME, file:/PATH,
    keyring:SERVICE/USER or keyvault:VAULT/SECRET."""

    def describe(self) -> dict[str, str]:
        """Return the version of Python and of each package that affects results; "absent" if it is not installed."""
        from importlib.metadata import PackageNotFoundError, version  # 30 ms, only for plans

        found = {"python": platform.python_version()}
        for package in PACKAGES:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                found[package] = "absent"
        return found


class TrackingSpec(Config):
    """Tracking with MLflow."""

    uri: Annotated[str, AfterValidator(without_credentials)] | None = None
    """Tracking server or store. None: an SQLite file in the home folder (ORCHESTRATOR_HOME)."""
    experiment: Annotated[str, Field(min_length=1)] = "bert-pretraining"
    """Experiment of the run; created if it does not exist."""
    artifacts: Literal["none", "light", "all"] = "light"
    """Files of a run that MLflow gets. light: spec, plan, report with figures, model card, lineage, tables of scores,
    and no text of the data. all: also predictions."""


ConfigT = TypeVar("ConfigT", bound=Config)


class JobSpec(Config, defer_build=True):
    """Keys that every kind of job has in addition to its own; `specs.site.spec_model` adds the backends' sections."""

    sections: ClassVar[tuple[str, ...]] = ()
    """Names of the backends' sections that the model has."""

    kind: str
    """Kind of the job."""
    recipe: str
    """Recipe; the sections of the job override its values."""
    name: Slug | None = None
    """First part of the run's name, before the hash. None: KIND-RECIPE."""
    backend: str = "local"
    """Backend that runs the job."""
    max_restarts: Annotated[int, Field(ge=0)] = 0
    """Maximum number of automatic restarts after errors, each from the last checkpoint. Not after invalid input, nor
    after the same error at the same step twice in a row."""
    max_preemptions: Annotated[int, Field(ge=0)] | None = None
    """Maximum number of automatic restarts after evictions and lost machines, counted separately. None: unlimited if
    `compute.tier` is spot, else as `max_restarts`."""
    check: Literal["quick", "all"] = "quick"
    """How much of the data a plan reads to find problems. quick: the beginning of each file, in about a second. all:
    everything. It does not affect the result."""
    tags: dict[str, Text] = Field(default={})
    """Labels of the run; they do not affect its result."""
    code: CodeSpec = CodeSpec()
    compute: ComputeSpec = ComputeSpec()
    environment: EnvironmentSpec = EnvironmentSpec()
    tracking: TrackingSpec = TrackingSpec()
    notify: NotifySpec = NotifySpec()

    @property
    def slug(self) -> str:
        """First part of the run's name."""
        return self.name or f"{self.kind}-{self.recipe}"

    @abstractmethod
    def job_config(self) -> Config:
        """Return the part of the spec that the job itself reads."""

    def part(self, model: type[ConfigT]) -> ConfigT:
        """Return the keys that this spec shares with another model, as an instance of that model."""
        return model(**{key: getattr(self, key) for key in model.model_fields})

    def settings_of(self, section: type[ConfigT]) -> ConfigT:
        """Return a backend's section; if this spec has none of that type, its defaults."""
        found = (getattr(self, name) for name in self.sections)
        return next((value for value in found if isinstance(value, section)), None) or section()

    def _repr_html_(self) -> str:
        """Return all settings as HTML for a notebook; values of variables that look like secrets are hidden."""
        settings = self.model_dump(mode="json")
        variables = settings["environment"]["variables"]
        settings["environment"]["variables"] = {
            name: HIDDEN if SECRET.search(name) else value for name, value in variables.items()
        }
        return settings_card(f"{self.kind} {self.slug}", settings)
