"""From a search space to points of it: trial i of random, sobol and grid sampling is a function of (space, seed, i).

Every parameter is drawn in two steps. The *latent* is what is sampled and what Optuna sees: the value of a range, the
number of an option, the probability of a normal value. The *value* is what the job is given.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any

from orchestrator.specs.space import Option, Parameter, Space, all_parameters, join
from orchestrator.specs.sweep_spec import Settings, SweepSpec, _option_sizes, grid_size, size
from orchestrator.sweeps.design.sobol import BITS, sobol

Latent = float | int
Latents = dict[str, Latent]
TAIL = 1e-9  # a normal value is within six standard deviations of its mean
DIGITS = 12  # significant ones of a quantised value: 0.3 and not 0.30000000000000004


def draw(spec: SweepSpec, index: int) -> Settings:
    """Settings of trial `index` (0, 1, ...), of sampling that needs to know nothing of other trials.

    Raises:
        IndexError: the grid has no such point.
    """
    return values(spec.space, latents(spec, index))


def latents(spec: SweepSpec, index: int) -> Latents:
    """What is sampled for trial `index`, by the names of parameters; those of options not chosen are not in it."""
    if spec.sampling.name == "grid":
        return _grid_point(spec.space, index)
    places = {name: place for place, (name, _, _) in enumerate(all_parameters(spec.space))}
    if spec.sampling.name == "sobol":
        point = sobol(index, len(places))
        units = {name: _shifted(point[place], spec.sampling.seed, name) for name, place in places.items()}
    else:
        units = {name: _uniform(spec.sampling.seed, index, name) for name in places}
    return walk(spec.space, lambda name, parameter: latent(parameter, units[name]))


def walk(space: Space, ask: Callable[[str, Parameter], Latent], name: str = "") -> Latents:
    """Asks for the latent of every parameter that counts: those of an option only if it was chosen."""
    found: Latents = {}
    for key, parameter in space.items():
        called = join(name, key)
        found[called] = ask(called, parameter)
        if (chosen := _chosen(parameter, found[called])) is not None and chosen.space is not None:
            found |= walk(chosen.space, ask, f"{called}[{found[called]}]")
    return found


def values(space: Space, drawn: Latents, prefix: str = "", name: str = "") -> Settings:
    """Settings that latents stand for: dotted path -> value."""
    found: Settings = {}
    for key, parameter in space.items():
        called, path = join(name, key), join(prefix, key)
        chosen = _chosen(parameter, drawn[called])
        if chosen is not None and chosen.space is not None:
            found |= values(chosen.space, drawn, path, f"{called}[{drawn[called]}]")
        else:
            found[path] = value(parameter, drawn[called])
    return found


def latents_of(space: Space, setting: Callable[[str], Any], prefix: str = "", name: str = "") -> Latents | None:
    """The latents that stand for settings, the other way round than `values`; None: the space has no such point.

    Args:
        space: the space.
        setting: dotted path -> value.
        prefix, name: of what the space is below.
    """
    found: Latents = {}
    for key, parameter in space.items():
        called, path = join(name, key), join(prefix, key)
        below = {
            number: latents_of(option.space, setting, path, f"{called}[{number}]")
            for number, option in enumerate(parameter.choice or ())
            if option.space is not None
        }
        fitting = next((number for number, inner in below.items() if inner is not None), None)
        drawn = latent_of(parameter, setting(path)) if fitting is None else fitting
        if drawn is None:
            return None
        found |= {called: drawn, **((below[fitting] or {}) if fitting is not None else {})}
    return found


def latent_of(parameter: Parameter, value: Any) -> Latent | None:
    """The latent of a value, of which a quantised one has many; None: it is never drawn."""
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
    """Whether values are equal, and no truth value is taken for a number."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def latent(parameter: Parameter, unit: float) -> Latent:
    """The latent at a share `unit` (0 <= unit < 1) of its distribution."""
    if parameter.kind == "normal":
        return unit
    if parameter.kind == "range":
        low, high = parameter.bounds
        if not parameter.log:
            return min(low + (high - low) * unit, high)
        return min(max(math.exp(math.log(low) + (math.log(high) - math.log(low)) * unit), low), high)
    return int(unit * size(parameter))


def value(parameter: Parameter, drawn: Latent) -> Any:
    """What the job is given; an option that is a mapping has no value of its own."""
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
    number = round(number / parameter.q) * parameter.q
    return round(number) if parameter.q.is_integer() else float(f"{number:.{DIGITS}g}")


def _grid_point(space: Space, index: int) -> Latents:
    """The point of number `index`; the last parameter changes fastest."""
    if not 0 <= index < grid_size(space):
        raise IndexError(f"the grid has {grid_size(space)} points, and no point {index}")
    return dict(_grid_latents(space, index, ""))


def _grid_latents(space: Space, index: int, name: str) -> Iterator[tuple[str, Latent]]:
    for key, parameter in reversed(space.items()):
        sizes = _option_sizes(parameter)
        index, rest = divmod(index, sum(sizes))
        number = 0
        while rest >= sizes[number]:
            rest -= sizes[number]
            number += 1
        called = join(name, key)
        yield called, number
        if (chosen := _chosen(parameter, number)) is not None and chosen.space is not None:
            yield from _grid_latents(chosen.space, rest, f"{called}[{number}]")


def _chosen(parameter: Parameter, drawn: Latent) -> Option | None:
    return parameter.options[int(drawn)] if parameter.kind == "choice" else None


def _uniform(seed: int, index: int, name: str) -> float:
    """A number of [0, 1) for a parameter of a trial; that of one does not depend on which others there are."""
    digest = hashlib.sha256(f"{seed}\0{index}\0{name}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / (1 << 53)


def _shifted(coordinate: int, seed: int, name: str) -> float:
    """A coordinate with a digital shift of the seed and the parameter, which keeps the points as even as they were."""
    return (coordinate ^ int(_uniform(seed, -1, name) * (1 << BITS))) / (1 << BITS)
