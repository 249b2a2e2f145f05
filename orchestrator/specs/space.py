"""The search space of a sweep: its parameters and their distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationInfo, field_validator, model_validator

from train_jobs.config.fields import Config

KINDS = {"low": "range", "high": "range", "mean": "normal", "sd": "normal", "choice": "choice", "randint": "randint"}
TAIL = 6  # standard deviations from the mean within which normal values are drawn
LARGEST_LOG = 708  # the exponential of this and of its negative are numbers of full precision
MAX_RANDINT = 2**53  # of a larger number of values, a quantile could not choose each
FORMS = "{low, high}, {mean, sd}, {choice: [...]}, {randint: N}, or a list to choose from"


class Parameter(Config):
    """A setting that the sweep varies. A list is short for a choice of its items, a plain value for a choice of one.

    A quantised value is round(x / q) * q, as on Azure: a multiple of q counted from zero. It may be up to q / 2 outside
    the range, and the two outermost values are drawn half as often as the others.
    """

    low: float | None = None
    """Lower bound of a range."""
    high: float | None = None
    """Upper bound of a range."""
    mean: float | None = None
    """Mean of a normal distribution; with log, mean of the natural logarithm of the value."""
    sd: float | None = None
    """Standard deviation of a normal distribution; with log, of the natural logarithm of the value."""
    log: bool = False
    """Draw the logarithm of the value uniformly or normally. low and high remain bounds of the value itself."""
    q: float | None = None
    """Quantum: values are multiples of it, and integers if it is an integer."""
    randint: int | None = None
    """Integer from 0 to N - 1, uniformly distributed."""
    choice: list[Option] | None = None
    """Options, all equally likely. A mapping is a nested space of this setting, drawn only if it is chosen."""

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
            what = f"cannot combine {' and '.join(given)}" if given else "no distribution"
            raise ValueError(f"{what}: give one of {FORMS}")
        if self.kind in {"choice", "randint"} and (self.log or self.q is not None):
            raise ValueError(f"{'log' if self.log else 'q'} needs a range or a normal distribution")
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
        """Low and high of a range, mean and sd of a normal distribution."""
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
        """Whether a grid can enumerate its values."""
        return self.kind in {"choice", "randint"}

    @property
    def undrawable(self) -> str | None:
        """Why no sampler can draw its values; None: it can. A plan refuses it, but stored sweeps are still read."""
        if self.randint is not None and self.randint > MAX_RANDINT:
            return f"randint {self.randint} is more than {MAX_RANDINT}, the number of values that can be drawn"
        if self.mean is None or self.sd is None or not self.log:
            return None
        mean, sd = self.mean, self.sd
        if -LARGEST_LOG < mean - TAIL * sd <= mean + TAIL * sd < LARGEST_LOG:
            return None
        what = "beyond the largest number" if mean + TAIL * sd >= LARGEST_LOG else "that are almost 0"
        text = (
            f"mean {mean:g} and sd {sd:g} give values {what}: with log: true, both are those of the natural logarithm"
        )
        # The logarithm of a value near its mean has about the relative deviation of the value.
        return f"{text} (did you mean mean: {math.log(mean):.3g}, sd: {sd / mean:.3g}?)" if mean > sd else text

    def _check_range(self) -> None:
        if self.low is None or self.high is None:
            raise ValueError("a range needs both low and high")
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        if self.low == self.high:
            raise ValueError(f"low and high are both {self.low:g}: write the plain value {self.low:g} to fix it")
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
            raise ValueError("choice has no options")
        if self.randint is not None and self.randint < 1:
            raise ValueError(f"randint {self.randint} is less than 1: the values are 0 to N - 1")

    @staticmethod
    def _log_bounds_message(low: float, high: float) -> str:
        # Azure's loguniform takes logarithms as bounds: users who are used to it write -11.5 where 1e-5 is meant.
        text = f"low {low:g} has no logarithm: with log: true, bounds are values and not logarithms"
        if high >= 0 or low < -700:
            return text
        return f"{text} (did you mean low: {math.exp(low):.3g}, high: {math.exp(high):.3g}?)"


class Option(Config):
    """One option of a choice."""

    value: Any = None
    """Its value, unless it is a mapping."""
    space: dict[str, Parameter] | None = None
    """Parameters of a nested space, if the option is a mapping."""


Parameter.model_rebuild()

Space = dict[str, Parameter]


def all_parameters(space: Space, prefix: str = "", name: str = "") -> Iterator[tuple[str, str, Parameter]]:
    """Yield name, dotted path and parameter of each parameter of a space, including nested spaces.

    The name identifies the option, as in `optimizer[1].learning_rate`; the path is the setting's,
    `optimizer.learning_rate`.
    """
    for key, parameter in space.items():
        path, called = join(prefix, key), join(name, key)
        yield called, path, parameter
        for number, option in enumerate(parameter.choice or ()):
            if option.space is not None:
                yield from all_parameters(option.space, path, f"{called}[{number}]")


def join(path: str, key: str) -> str:
    """Return a key below a dotted path."""
    return f"{path}.{key}" if path else key


def map_options(space: Mapping[str, Any], change: Callable[[str, Any], Any], prefix: str = "") -> dict[str, Any]:
    """Return a space, as written in a file, with a changed value of each option.

    Args:
        space: name -> parameter in one of its forms.
        change: function of dotted setting and value that returns the new value.
        prefix: setting of the option that contains the space.
    """

    def changed(path: str, option: Any) -> Any:
        return map_options(option, change, path) if isinstance(option, dict) else change(path, option)

    found: dict[str, Any] = {}
    for key, parameter in space.items():
        path = join(prefix, key)
        options = parameter.get("choice") if isinstance(parameter, dict) else parameter
        if isinstance(options, list):
            options = [changed(path, option) for option in options]
            found[key] = {**parameter, "choice": options} if isinstance(parameter, dict) else options
        else:
            found[key] = parameter if isinstance(parameter, dict) else change(path, parameter)
    return found
