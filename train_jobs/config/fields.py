"""The base classes of all sections of a configuration, and types of their fields.

Sections are frozen and reject unknown keys. A section may name the object to build: a built-in one, or MODULE:NAME of
the user's own code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from train_jobs.config.errors import did_you_mean


def _count_or_auto(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError('must be a whole number above 0, or "auto"')


# One validator for both types: a plain union would report every mistake twice, once per member.
CountOrAuto = Annotated[int | Literal["auto"], BeforeValidator(_count_or_auto)]
CountAutoOrNone = Annotated[
    int | Literal["auto"] | None, BeforeValidator(lambda value: value if value is None else _count_or_auto(value))
]


AS_WRITTEN = "as written"  # mark of a field: `layers.build` gives it the text of a number, a truth value or a date
# YAML reads `NCCL_DEBUG: 1`, `version: 1.10` and `label: yes` as other values, but these fields are text.
Text = Annotated[str, Field(coerce_numbers_to_str=True), AS_WRITTEN]


class Config(BaseModel):
    """A section of a configuration. The docstring under a field is its help text."""

    # Not `use_attribute_docstrings=True`: pydantic would parse the source of every model at import, a quarter of the
    # start-up of the command line. `help_texts` reads the docstrings from the source when they are needed.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=False,
        allow_inf_nan=False,
        defer_build=True,  # a command validates a few of the 90 models; building all would take 3% of a dry run
    )


class CheckedConfig(Config):
    """A section with constraints between its values."""

    def problems(self) -> Iterator[str]:
        """Yield one message per contradiction between values of the section."""
        yield from ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for problem in self.problems():
            raise ValueError(problem)
        return self


NAMED = ("model", "objective", "optimizer", "schedule")  # sections for which `KEY: NAME` is short for a mapping

_OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_user_code(name: str) -> bool:
    """Return whether a name refers to the user's own code: MODULE:NAME."""
    return ":" in name


def one_of(*known: str) -> AfterValidator:
    """Return a validator that accepts the known names and MODULE:NAME."""

    def check(name: str) -> str:
        if name in known or _OWN.fullmatch(name):
            return name
        raise ValueError(f"must be {', '.join(known)} or MODULE:NAME of your own code{did_you_mean(name, known)}")

    check.known = known  # type: ignore[attr-defined]  # shell completion reads it
    return AfterValidator(check)


class Named(CheckedConfig):
    """A section that names the object to build; a plain string sets only the name."""

    name: str
    """The object to build."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments for a class or function of your own."""

    def problems(self) -> Iterator[str]:
        """Yield one message per contradiction between values of the section."""
        if self.options and not is_user_code(self.name):
            yield f"options are only for a class or function of your own, and name is {self.name}"


def user_code_names(config: object) -> dict[str, str]:
    """Return dotted key -> MODULE:NAME for the sections of a configuration that name the user's own code."""
    found = {f"{section}.name": getattr(config, section).name for section in NAMED}
    return {key: name for key, name in found.items() if is_user_code(name)}
