"""Sections of a configuration that name what is built: something of ours, or MODULE:NAME of the user's own code."""

from __future__ import annotations

import re
from typing import Any

from pydantic import AfterValidator, Field, model_validator

from train_jobs.config.base import Config
from train_jobs.config.names import did_you_mean

NAMED = ("model", "objective", "optimizer", "schedule")  # sections whose name alone may stand for them

_OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_own(name: str) -> bool:
    """Whether a name is one of the user's own code."""
    return ":" in name


def one_of(*known: str) -> AfterValidator:
    """Takes one of the names that we know, or MODULE:NAME."""

    def check(name: str) -> str:
        if name in known or _OWN.fullmatch(name):
            return name
        raise ValueError(f"must be {', '.join(known)} or MODULE:NAME of your own code{did_you_mean(name, known)}")

    check.known = known  # type: ignore[attr-defined]  # for who completes a command line
    return AfterValidator(check)


class Named(Config):
    """A section with a name; written as a plain text, it is its name and the rest stays as it was."""

    name: str
    """What is built."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments for a class or function of your own."""

    @model_validator(mode="after")
    def _options_are_for_own_code(self) -> Named:
        if self.options and not is_own(self.name):
            raise ValueError(f"options are for a class or function of your own, and name is {self.name}")
        return self


def own_names(config: object) -> dict[str, str]:
    """Dotted key -> MODULE:NAME, of the sections of a configuration that name one."""
    found = {f"{section}.name": getattr(config, section).name for section in NAMED}
    return {key: name for key, name in found.items() if is_own(name)}
