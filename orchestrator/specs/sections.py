"""The user's own code, and which module of it runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from train_jobs.config.base import Config

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
