"""The user's own code, and which module of it runs."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from orchestrator.support.errors import UsageError
from train_jobs.config.base import Config

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "pydantic")  # those that shape a result
# YAML reads `NCCL_DEBUG: 1` as a number; a variable or a tag is text, and the number's text is what was meant.
Text = Annotated[str, Field(coerce_numbers_to_str=True)]

Megabytes = Annotated[float, Field(gt=0)]


def _module(name: str) -> str:
    if not re.fullmatch(r"[\w-]+(\.[\w-]+)*", name):
        raise ValueError("must be a module's dotted name, as after `python -m`")
    return name


ModuleName = Annotated[str, AfterValidator(_module)]


class CodeSpec(Config):
    """The code that runs: `train_jobs`, and beside it what the user adds."""

    folder: Path | None = None
    """Your own code; shipped beside `train_jobs`, but for what .amlignore, or without one .gitignore, names."""
    entry: ModuleName = "train_jobs.pretrain"
    """Module that every process runs; one of your own takes the same arguments, and may hand them on."""
    largest_file_mb: Megabytes = 10
    """A larger file of your folder stops the submission."""
    largest_total_mb: Megabytes = 100
    """So does a folder of more than this altogether."""
    allow_secrets: list[str] = Field(default=[])
    """Files of your folder, by their paths in it, that look like secrets and are none."""


def _variable_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("a variable is named by letters, digits and underscores, not with a digit first")
    return name


class EnvironmentSpec(Config):
    """With what the job runs. Locally: the Python that runs `orchestrator`."""

    preset: str = "current"
    """Environment preset that the other keys of this section are laid over."""
    variables: dict[Annotated[str, AfterValidator(_variable_name)], Text] = Field(default={})
    """Environment variables of every process of the job."""

    def describe(self) -> dict[str, str]:
        """Version of Python and of each package that shapes a result; "absent" for one that is not installed."""
        from importlib.metadata import PackageNotFoundError, version  # 30 ms; nothing but a plan needs it

        found = {"python": platform.python_version()}
        for package in PACKAGES:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                found[package] = "absent"
        return found


class NotifySpec(Config):
    """A webhook: one POST of a JSON document for each event."""

    on: list[Literal["completed", "failed", "diverging"]] = Field(default=[])
    """Events to tell of. failed: whenever a run ends without having completed, and was not cancelled."""
    variable: str = "ORCHESTRATOR_WEBHOOK"
    """Environment variable of the submitting process that holds the address. It is a secret and never written down."""

    def check(self, environ: Mapping[str, str]) -> None:
        """Raises UsageError if there is something to tell and nowhere to tell it."""
        if self.on and not environ.get(self.variable, "").startswith(("http://", "https://")):
            raise UsageError(
                f"notify.on asks for a webhook, and {self.variable} holds no address of one",
                facts={"events": ", ".join(self.on)},
                fix=f"export {self.variable}=https://...",
            )


class TrackingSpec(Config):
    """MLflow."""

    uri: str | None = None
    """Tracking server or store. None: an SQLite file in the home folder (ORCHESTRATOR_HOME)."""
    experiment: Annotated[str, Field(min_length=1)] = "bert-pretraining"
    """Experiment that the run belongs to; made when there is none of that name."""
