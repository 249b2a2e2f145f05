"""Draw the points of a search space.

Trial i of random, sobol and grid sampling is a function of (space, seed, i). Points of bayesian sampling (tpe, gp)
depend on the results of earlier trials: Optuna's tree of Parzen estimators or Gaussian process.

Every parameter is drawn in two steps. The *latent* is sampled, and is what Optuna sees: the value of a range, the
index of an option, the quantile of a normal value. The *value* is what the job receives. Optuna never sees values: it
cannot store a mapping or a list as a choice, and its steps of a range are not Azure's.

Sobol's sequence comes from SciPy, with the direction numbers of Joe and Kuo (2008, new-joe-kuo-6). It is not scrambled
by SciPy, because that depends on NumPy's generator, and trial i must not change with NumPy's version. Each parameter
gets a digital shift instead.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from orchestrator.specs.settings import Settings
from orchestrator.specs.space import Parameter, Space, all_parameters, join
from orchestrator.specs.sweep_spec import SamplingSpec, SweepSpec, grid_size, option_sizes, size

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

BITS = 32  # of a Sobol coordinate
MAX_DIMENSIONS = 21_201  # of the table of direction numbers
BLOCK = 256  # Sobol points drawn at a time: a generator takes milliseconds to set up
MODEL_BASED = {"bayesian", "tpe", "gp"}  # samplers that depend on earlier trials
Latent = float | int
Latents = dict[str, Latent]
TAIL = 1e-9  # limits a normal value to six standard deviations: a quantile of 0 or 1 would be infinite
DIGITS = 12  # significant digits of a quantised value: 0.3 and not 0.30000000000000004


def draw(spec: SweepSpec, index: int) -> Settings:
    """Return the settings of a trial, for sampling that does not depend on other trials.

    Args:
        spec: the sweep.
        index: number of the trial, from 0.

    Raises:
        IndexError: the grid has no such point.
    """
    return values(spec.space, latents(spec, index))


def latents(spec: SweepSpec, index: int) -> Latents:
    """Return the latents of a trial by name of the parameter, without parameters below options that are not chosen.

    Raises:
        IndexError: the grid has no such point.
    """
    if spec.sampling.name == "grid":
        return _grid_point(spec.space, index)
    names = [name for name, _, _ in all_parameters(spec.space)]
    units = quantiles(spec.sampling.name, spec.sampling.seed, index, names)
    return walk(spec.space, lambda name, parameter: latent(parameter, units[name]))


def walk(space: Space, ask: Callable[[str, Parameter], Latent], name: str = "") -> Latents:
    """Draw the latent of every parameter, except for parameters below options that are not chosen.

    Args:
        space: the space.
        ask: (name, parameter) -> latent; called in the order of the space, as Optuna suggests one at a time.
        name: name of the parameter that the space is below; empty: the whole space.
    """
    drawn: Latents = {}
    for key, parameter in space.items():
        full = join(name, key)
        drawn[full] = ask(full, parameter)
        if (below := _space_below(parameter, drawn[full])) is not None:
            drawn |= walk(below, ask, f"{full}[{drawn[full]}]")
    return drawn


def values(space: Space, drawn: Latents, prefix: str = "", name: str = "") -> Settings:
    """Return the settings of latents: dotted path -> value."""
    settings: Settings = {}
    for key, parameter in space.items():
        full, path = join(name, key), join(prefix, key)
        if (below := _space_below(parameter, drawn[full])) is not None:
            settings |= values(below, drawn, path, f"{full}[{drawn[full]}]")
        else:
            settings[path] = value(parameter, drawn[full])
    return settings


def latents_of(space: Space, setting: Callable[[str], Any], prefix: str = "", name: str = "") -> Latents | None:
    """Return the latents of settings, the inverse of `values`; None: the space has no such point.

    Args:
        space: the space.
        setting: dotted path -> value.
        prefix, name: path and name of the parameter that the space is below.
    """
    drawn: Latents = {}
    for key, parameter in space.items():
        full, path = join(name, key), join(prefix, key)
        # An option that is a mapping has no value of its own: it was chosen if the settings below it fit.
        below = {
            number: inner
            for number, option in enumerate(parameter.choice or ())
            if option.space is not None
            and (inner := latents_of(option.space, setting, path, f"{full}[{number}]")) is not None
        }
        number, inner = next(iter(below.items()), (latent_of(parameter, setting(path)), {}))
        if number is None:
            return None
        drawn |= {full: number, **inner}
    return drawn


def latent_of(parameter: Parameter, value: Any) -> Latent | None:
    """Return a latent of a value, the inverse of `value`; None: the parameter never has this value.

    A quantised value has many latents; any of them gives the sampler the same information.
    """
    if parameter.kind == "choice":
        same = [option.space is None and _same(option.value, value) for option in parameter.options]
        return same.index(True) if True in same else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if parameter.kind == "randint":
        return int(value) if value in range(size(parameter)) else None
    one, other = parameter.bounds
    if parameter.kind == "range":
        slack = (parameter.q or 0.0) / 2
        return min(max(float(value), one), other) if one - slack <= value <= other + slack else None
    if parameter.log and value <= 0:
        return None
    unit = NormalDist(one, other).cdf(math.log(value) if parameter.log else value)
    return unit if TAIL < unit < 1 - TAIL else None


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal; unlike in Python, True does not equal 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def latent(parameter: Parameter, unit: float) -> Latent:
    """Return the latent at quantile `unit` (0 <= unit < 1)."""
    if parameter.kind == "normal":
        return unit
    if parameter.kind == "range":
        low, high = parameter.bounds
        if not parameter.log:
            return min(low + (high - low) * unit, high)
        return min(max(math.exp(math.log(low) + (math.log(high) - math.log(low)) * unit), low), high)
    return int(unit * size(parameter))


def value(parameter: Parameter, drawn: Latent) -> Any:
    """Return the value of a latent; an option that is a mapping has none."""
    if parameter.kind == "choice":
        return parameter.options[int(drawn)].value
    if parameter.kind == "randint":
        return int(drawn)
    number = float(drawn)
    if parameter.kind == "normal":
        mean, deviation = parameter.bounds
        number = NormalDist(mean, deviation).inv_cdf(min(max(number, TAIL), 1 - TAIL))
        number = math.exp(number) if parameter.log else number
    if parameter.q is None:
        return number
    # Azure's quantisation: multiples of q from zero, not from the lower bound, which Optuna's `step` would draw.
    number = round(number / parameter.q) * parameter.q
    return round(number) if parameter.q.is_integer() else float(f"{number:.{DIGITS}g}")


def _grid_point(space: Space, index: int) -> Latents:
    """Return point `index` of a grid; the last parameter changes fastest."""
    if not 0 <= index < grid_size(space):
        raise IndexError(f"the grid has {grid_size(space)} points, and no point {index}")
    return dict(_grid_latents(space, index, ""))


def _grid_latents(space: Space, index: int, name: str) -> Iterator[tuple[str, Latent]]:
    # Digits of a mixed-radix number. An option that is a mapping counts as many values as its own grid has points.
    for key, parameter in reversed(space.items()):
        full = join(name, key)
        if parameter.randint is not None:  # without a list of its values, which can be very long
            index, number = divmod(index, parameter.randint)
            yield full, number
            continue
        sizes = option_sizes(parameter)
        index, rest = divmod(index, sum(sizes))
        number = 0
        while rest >= sizes[number]:
            rest -= sizes[number]
            number += 1
        yield full, number
        if (below := _space_below(parameter, number)) is not None:
            yield from _grid_latents(below, rest, f"{full}[{number}]")


def _space_below(parameter: Parameter, drawn: Latent) -> Space | None:
    """Return the space below the chosen option; None: the option is a value, or the parameter is not a choice."""
    return parameter.options[int(drawn)].space if parameter.kind == "choice" else None


def quantiles(sampling: str, seed: int, index: int, names: Sequence[str]) -> dict[str, float]:
    """Return a quantile in [0, 1) for each parameter of a trial, from Sobol's sequence or pseudorandom numbers.

    Each parameter of a Sobol point gets a digital shift (XOR with a constant), which keeps the points evenly spread.

    Args:
        sampling: name of the sampling.
        seed: of the sweep.
        index: number of the trial, from 0.
        names: the parameters, in the order of the space.
    """
    if sampling != "sobol":
        return {name: uniform(seed, index, name) for name in names}
    return {
        name: (coordinate ^ int(uniform(seed, -1, name) * (1 << BITS))) / (1 << BITS)
        for name, coordinate in zip(names, sobol(index, len(names)), strict=True)
    }


def uniform(seed: int, index: int, name: str) -> float:
    """Return a pseudorandom number in [0, 1) that depends only on seed, trial and parameter."""
    # A hash and not a generator: adding a parameter or a trial must not change the numbers of the others, and
    # neither must a new version of NumPy. 53 bits are the precision of a float.
    digest = hashlib.sha256(f"{seed}\0{index}\0{name}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / (1 << 53)


def sobol(index: int, dimensions: int) -> list[int]:
    """Return the coordinates of a point of Sobol's sequence, in units of 2**-32 and in Gray-code order.

    Args:
        index: number of the point, from 0, below 2**30.
        dimensions: coordinates of a point, at most `MAX_DIMENSIONS`.
    """
    block, place = divmod(index, BLOCK)
    return [int(coordinate * (1 << BITS)) for coordinate in _block(block, dimensions)[place]]


@lru_cache(maxsize=4)
def _block(number: int, dimensions: int) -> Any:
    """Return the coordinates in [0, 1) of `BLOCK` points, one row for each point."""
    from scipy.stats.qmc import Sobol

    engine = Sobol(dimensions, scramble=False)
    if number:  # SciPy's fast_forward fails for 0 points
        engine.fast_forward(number * BLOCK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the sequence is balanced only for powers of two
        return engine.random(BLOCK)


def propose(spec: SweepSpec, index: int, past: Sequence[FrozenTrial] = ()) -> Latents:
    """Return the latents of trial `index` (0, 1, ...).

    Args:
        spec: the sweep.
        index: its number.
        past: every earlier trial, from an Optuna study; running ones keep new points away from their own.

    Raises:
        IndexError: the grid has no such point.
    """
    if spec.sampling.name not in MODEL_BASED:
        return latents(spec, index)
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # A study in memory, filled with the past, makes a proposal a function of its arguments. NopPruner, because
        # Optuna's default is a MedianPruner that differs from Azure's policy; the driver applies policies itself.
        sampler = _sampler(spec.sampling, len(past), conditional=is_conditional(spec.space))
        study = optuna.create_study(direction=spec.objective.goal, sampler=sampler, pruner=optuna.pruners.NopPruner())
        study.add_trials(past)
        trial = study.ask()
        return walk(spec.space, lambda name, parameter: _suggest(trial, name, parameter))


def is_conditional(space: Space) -> bool:
    """Return whether some parameters exist only if an option is chosen."""
    return any("[" in name for name, _, _ in all_parameters(space))


def distribution(parameter: Parameter) -> BaseDistribution:
    """Return Optuna's distribution of a parameter's latent."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.kind == "choice":
        return CategoricalDistribution(range(size(parameter)))
    if parameter.kind == "randint":
        return IntDistribution(0, size(parameter) - 1)
    if parameter.kind == "normal":
        return FloatDistribution(0.0, 1.0)
    low, high = parameter.bounds
    return FloatDistribution(low, high, log=parameter.log)


def distributions(space: Space, drawn: Latents) -> dict[str, BaseDistribution]:
    """Return Optuna's distributions of latents."""
    known = {name: parameter for name, _, parameter in all_parameters(space)}
    return {name: distribution(known[name]) for name in drawn}


def _sampler(sampling: SamplingSpec, existing: int, *, conditional: bool) -> BaseSampler:
    """Return a sampler that is seeded with the sweep's seed and the number of existing trials.

    A sampler seeded with a constant replays its startup draws after a restart, so points would repeat (optuna#3255).
    """
    from optuna.samplers import GPSampler, TPESampler

    seed = int.from_bytes(hashlib.sha256(f"{sampling.seed}\0{existing}".encode()).digest()[:4], "big")
    return GPSampler(seed=seed) if sampling.name == "gp" else TPESampler(seed=seed, group=conditional)


def _suggest(trial: Trial, name: str, parameter: Parameter) -> Latent:
    if parameter.kind == "choice":
        return int(trial.suggest_categorical(name, range(size(parameter))))
    if parameter.kind == "randint":
        return int(trial.suggest_int(name, 0, size(parameter) - 1))
    low, high = (0.0, 1.0) if parameter.kind == "normal" else parameter.bounds
    return float(trial.suggest_float(name, low, high, log=parameter.log and parameter.kind == "range"))
