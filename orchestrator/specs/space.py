"""The search space of a sweep: which settings are drawn, and from what."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationInfo, field_validator, model_validator

from train_jobs.config.fields import Config

KINDS = {"low": "range", "high": "range", "mean": "normal", "sd": "normal", "choice": "choice", "randint": "randint"}
FORMS = "{low, high}, {mean, sd}, {choice: [...]}, {randint: N}, or a list to choose from"


class Parameter(Config):
    """A setting that is drawn. A list stands for a choice among its items, a plain value for a choice of one.

    A quantised draw is round(x / q) * q, as Azure has it: a multiple of q counted from zero, which may lie half a q
    outside of the range; the two outermost values come up half as often as the others.
    """

    low: float | None = None
    """Least value of a range."""
    high: float | None = None
    """Greatest value of a range."""
    mean: float | None = None
    """Mean of a normal distribution; with log, of the natural logarithm of the value."""
    sd: float | None = None
    """Its standard deviation; with log, of the natural logarithm of the value."""
    log: bool = False
    """The logarithm of the value is what is uniform or normal. low and high are the values' own bounds all the same."""
    q: float | None = None
    """Values are multiples of this number; with an integer, they are integers."""
    randint: int | None = None
    """Any of the whole numbers 0 to N - 1, all as likely."""
    choice: list[Option] | None = None
    """Any of these, all as likely. A mapping is a space of its own below this setting, drawn if it is chosen."""

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, written: Any) -> Any:
        if isinstance(written, list):
            return {"choice": written}
        return written if isinstance(written, dict | Parameter) else {"choice": [written]}

    @field_validator("choice", mode="before")
    @classmethod
    def _options(cls, written: Any) -> Any:
        if not isinstance(written, list):
            return written  # validation reports the expected type
        return [
            item if isinstance(item, Option) else {"space": item} if isinstance(item, dict) else {"value": item}
            for item in written
        ]

    @field_validator("low", "high", "mean", "sd", "q", "randint", mode="before")
    @classmethod
    def _is_a_number(cls, written: Any, info: ValidationInfo) -> Any:
        if isinstance(written, bool):
            raise ValueError(f"{info.field_name} must be a number")
        return written

    @model_validator(mode="after")
    def _check_form(self) -> Parameter:
        given = [key for key in KINDS if getattr(self, key) is not None]
        kinds = {KINDS[key] for key in given}
        if len(kinds) != 1:
            what = f"{' and '.join(given)} together" if given else "nothing to draw from"
            raise ValueError(f"{what}: give one of {FORMS}")
        if self.kind in {"choice", "randint"} and (self.log or self.q is not None):
            raise ValueError(f"{'log' if self.log else 'q'} is for a range or a normal distribution")
        if self.q is not None and self.q <= 0:
            raise ValueError(f"q {self.q:g} is not above 0")
        {"range": self._check_range, "normal": self._check_normal}.get(self.kind, self._check_finite)()
        return self

    @property
    def kind(self) -> str:
        """range, normal, choice or randint."""
        return next(KINDS[key] for key in KINDS if getattr(self, key) is not None)

    @property
    def bounds(self) -> tuple[float, float]:
        """low and high of a range, mean and sd of a normal distribution."""
        first, second = (self.low, self.high) if self.kind == "range" else (self.mean, self.sd)
        assert first is not None
        assert second is not None
        return first, second

    @property
    def options(self) -> list[Option]:
        """The options of a choice."""
        assert self.choice is not None
        return self.choice

    @property
    def finite(self) -> bool:
        """Whether a grid can go through all of its values."""
        return self.kind in {"choice", "randint"}

    def _check_range(self) -> None:
        if self.low is None or self.high is None:
            raise ValueError("a range needs both low and high")
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        if self.low == self.high:
            raise ValueError(f"low and high are both {self.low:g}: write {self.low:g} alone, and it is fixed")
        if self.log and self.low <= 0:
            raise ValueError(self._log_bounds_message(self.low, self.high))
        if self.q is not None and self.q > self.high - self.low:
            raise ValueError(f"q {self.q:g} is more than the range, {self.low:g} to {self.high:g}")

    def _check_normal(self) -> None:
        if self.mean is None or self.sd is None:
            raise ValueError("a normal distribution needs both mean and sd")
        if self.sd <= 0:
            raise ValueError(f"sd {self.sd:g} is not above 0")

    def _check_finite(self) -> None:
        if self.kind == "choice" and not self.choice:
            raise ValueError("choice has nothing to choose from")
        if self.randint is not None and self.randint < 1:
            raise ValueError(f"randint {self.randint} is less than 1: the values are 0 to N - 1")

    @staticmethod
    def _log_bounds_message(low: float, high: float) -> str:
        text = f"low {low:g} has no logarithm: log: true takes the bounds themselves and not their logarithms"
        if high >= 0 or low < -700:
            return text
        return f"{text} (did you mean low: {math.exp(low):.3g}, high: {math.exp(high):.3g}?)"


class Option(Config):
    """One of the things that a choice chooses from."""

    value: Any = None
    """Its value, unless it is a mapping."""
    space: dict[str, Parameter] | None = None
    """For a mapping: setting below the choice's own -> its parameter."""


Parameter.model_rebuild()

Space = dict[str, Parameter]


def all_parameters(space: Space, prefix: str = "", name: str = "") -> Iterator[tuple[str, str, Parameter]]:
    """Every parameter of a space, those of options behind their choice: its name, its dotted path, itself.

    The name distinguishes options, `optimizer[1].learning_rate`; the path is that of the setting,
    `optimizer.learning_rate`.
    """
    for key, parameter in space.items():
        path, called = join(prefix, key), join(name, key)
        yield called, path, parameter
        for number, option in enumerate(parameter.choice or ()):
            if option.space is not None:
                yield from all_parameters(option.space, path, f"{called}[{number}]")


def join(path: str, key: str) -> str:
    """`key` below `path`."""
    return f"{path}.{key}" if path else key
