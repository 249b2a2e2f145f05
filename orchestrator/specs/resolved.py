"""Resolved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.job import JobSpec
from orchestrator.specs.site import Site, site_of
from train_jobs.config.base import Config

PROJECT_FILE = "orchestrator.yaml"
PRESETS = Path(__file__).resolve().parent.parent / "presets"


class Flag(NamedTuple):
    """A value given by a flag of the command line, or by an argument of the SDK, and what messages call it."""

    value: Any
    name: str


class Change(Config, populate_by_name=True):
    """A value that is neither the preset's nor the default, and where it was written."""

    value: Any
    """As JSON has it."""
    origin: str = Field(alias="from")
    """`FILE:LINE`, a flag, a variable, or the model that a prediction is made by."""


@dataclass(frozen=True)
class Resolved:
    """A validated spec, and how it came about.

    Attributes:
        spec: what the user wants.
        compute: `spec.compute` with every `auto` decided for this machine.
        origins: dotted path -> where the value was written (preset, file, variable, flag); defaults are not in it.
        changes: dotted path -> value and origin of what differs from the chosen presets and the defaults.
        warnings: settings without effect, unknown variables.
    """

    spec: JobSpec
    compute: ResolvedCompute
    origins: dict[str, str]
    changes: dict[str, Change]
    warnings: tuple[str, ...]

    @property
    def site(self) -> Site:
        """Where the run is sent."""
        return site_of(self.spec.backend)


def find_project(folder: Path) -> Path | None:
    """The project config of `folder`: orchestrator.yaml in it or in the nearest parent that has one."""
    here = folder.absolute()
    return next((path for parent in (here, *here.parents) if (path := parent / PROJECT_FILE).is_file()), None)


def shown(path: Path, here: Path) -> str:
    """A path as messages have it: relative where it lies below the current folder."""
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
