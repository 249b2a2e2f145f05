"""What a user writes for a job: the job's own config, flat, and around it where and with what it runs."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Annotated, ClassVar, TypeVar

from pydantic import AfterValidator, Field

from orchestrator.specs.compute import ComputeSpec
from orchestrator.specs.sections import CodeSpec, EnvironmentSpec, NotifySpec, Text, TrackingSpec
from orchestrator.support.html import settings_card
from orchestrator.support.redact import HIDDEN, SECRET
from train_jobs.config.base import Config

LONGEST_NAME = 40  # with the hash, a run's name stays within 63 characters, the limit of a DNS label


def _slug(name: str) -> str:
    if len(name) > LONGEST_NAME or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"must be lower-case letters and digits with single hyphens between, at most {LONGEST_NAME}")
    return name


Slug = Annotated[str, AfterValidator(_slug)]
ConfigT = TypeVar("ConfigT", bound=Config)


class JobSpec(Config, defer_build=True):
    """Keys of every kind of job that only the laptop needs; `specs.site.spec_model` adds the backends' sections."""

    sections: ClassVar[tuple[str, ...]] = ()
    """Names of the backends' sections that the model has."""

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

    @property
    def slug(self) -> str:
        """First part of the run's name."""
        return self.name or f"{self.kind}-{self.recipe}"

    @abstractmethod
    def job_config(self) -> Config:
        """Return the part that the job itself reads."""

    def part(self, model: type[ConfigT]) -> ConfigT:
        """Return the keys that another model has too, as that model."""
        return model(**{key: getattr(self, key) for key in model.model_fields})

    def settings_of(self, section: type[ConfigT]) -> ConfigT:
        """Return a backend's section; its defaults if this model was built without it."""
        found = (getattr(self, name) for name in self.sections)
        return next((value for value in found if isinstance(value, section)), None) or section()

    def _repr_html_(self) -> str:
        """All settings, as a notebook shows them; values of variables that look like secrets are not among them."""
        settings = self.model_dump(mode="json")
        variables = settings["environment"]["variables"]
        settings["environment"]["variables"] = {
            name: HIDDEN if SECRET.search(name) else value for name, value in variables.items()
        }
        return settings_card(f"{self.kind} {self.slug}", settings)
