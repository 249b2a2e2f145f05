"""The base of every model of the configuration: unknown keys refused, frozen, docstrings as help."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """A section of a configuration. The docstring under a field is its help text.

    Pydantic could collect the docstrings, but parsing every model's source takes a quarter of the command line's
    start-up; who wants the help texts reads them from the source.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=False,
        allow_inf_nan=False,
    )
