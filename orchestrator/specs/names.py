"""Types of names in specs, apart from the models of jobs: commands that only show a sweep need no more."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

MAX_NAME_LENGTH = 40  # with the hash, a run's name stays within 63 characters, the limit of a DNS label


def _module(name: str) -> str:
    if not re.fullmatch(r"[\w-]+(\.[\w-]+)*", name):
        raise ValueError("must be the dotted name of a module, as after `python -m`")
    return name


def _slug(name: str) -> str:
    if len(name) > MAX_NAME_LENGTH or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(
            f"must be lower-case letters and digits with single hyphens between, at most {MAX_NAME_LENGTH}"
        )
    return name


Slug = Annotated[str, AfterValidator(_slug)]
ModuleName = Annotated[str, AfterValidator(_module)]
