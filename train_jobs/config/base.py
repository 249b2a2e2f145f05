"""What every model of the configuration shares: unknown keys refused, frozen, docstrings as help; `auto`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _count_or_auto(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError('must be a whole number above 0, or "auto"')


# One check for both kinds of value: a plain union would report every mistake twice, once for each of its members.
CountOrAuto = Annotated[int | Literal["auto"], BeforeValidator(_count_or_auto)]


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
