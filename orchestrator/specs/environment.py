"""With what a job runs: the Python, its packages, its environment variables."""

from __future__ import annotations

import platform
import re
from typing import Annotated

from pydantic import AfterValidator, Field

from train_jobs.config.base import Config

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "pydantic")  # those that shape a result

# YAML reads `NCCL_DEBUG: 1` as a number; a variable or a tag is text, and the number's text is what was meant.
Text = Annotated[str, Field(coerce_numbers_to_str=True)]


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
