"""The base of every model of the configuration: unknown keys refused, frozen, docstrings as help."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """A section of a configuration. The docstring under a field is its help text."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=False,
        allow_inf_nan=False,
    )
