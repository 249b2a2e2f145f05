"""Points of a sweep job's search space, drawn from its wire form: `{"lr": ["loguniform", [-9.2, -2.3]], ...}`."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from statistics import NormalDist
from typing import Any

from orchestrator.sweeps.design.sobol import BITS, MOST_DIMENSIONS, sobol
from orchestrator.testing.cloud_state import Document

Point = dict[str, Any]
FINITE = ("choice",)
PLAIN = ("choice", "uniform", "quniform")
TAIL = 1e-9
LAWS: Mapping[str, Callable[[float, float, float], float]] = {
    "uniform": lambda unit, low, high: low + (high - low) * unit,
    "loguniform": lambda unit, low, high: math.exp(low + (high - low) * unit),
    "normal": lambda unit, mean, deviation: NormalDist(mean, deviation).inv_cdf(min(max(unit, TAIL), 1 - TAIL)),
    "lognormal": lambda unit, mean, deviation: math.exp(LAWS["normal"](unit, mean, deviation)),
}
"""Of a share of the distribution and two numbers, which are logarithms of the bounds where the name begins with log."""


def problems(sweep: Document) -> Iterator[str]:
    """What the service refuses of a search space beyond its schema."""
    space, algorithm = sweep["searchSpace"], _algorithm(sweep)
    if not space:
        yield "The search space is empty."
    for name, law in space.items():
        kind = _kind(law)
        if kind is None:
            yield f"The search space of {name} is invalid: {json.dumps(law)}"
        elif algorithm == "grid" and kind not in FINITE:
            yield f"Grid sampling supports choice only, and {name} is {kind}."
        elif algorithm == "bayesian" and kind not in PLAIN:
            yield f"Bayesian sampling supports {', '.join(PLAIN)} only, and {name} is {kind}."
    if algorithm == "sobol" and len(space) > MOST_DIMENSIONS:
        yield f"The double draws Sobol's sequence in at most {MOST_DIMENSIONS} dimensions."


def count(sweep: Document) -> int | None:
    """Points of a grid; None: there is no end to them."""
    if _algorithm(sweep) != "grid":
        return None
    return math.prod(len(_options(law)) for law in sweep["searchSpace"].values())


def draw(sweep: Document, index: int) -> Point:
    """Point `index` (0, 1, ...), always the same. Bayesian sampling is drawn at random.

    Args:
        sweep: the properties of the job.
        index: below `count`, where there is one.
    """
    space, seed = sweep["searchSpace"], sweep["samplingAlgorithm"].get("seed") or 0
    if _algorithm(sweep) == "grid":
        return _grid_point(space, index)
    units = {name: _unit(seed, index, name) for name in space}
    if _algorithm(sweep) == "sobol":
        shifts = (int(_unit(seed, -1, name) * (1 << BITS)) for name in space)
        coordinates = zip(space, sobol(index, len(space)), shifts, strict=True)
        units = {name: (coordinate ^ shift) / (1 << BITS) for name, coordinate, shift in coordinates}
    return {
        name: _value(law, units[name], lambda inner, name=name: _unit(seed, index, f"{name}.{inner}"))  # type: ignore[misc]
        for name, law in space.items()
    }


def text(value: Any) -> str:
    """A value as it is put into a trial's command."""
    return value if isinstance(value, str) else json.dumps(value)


def _algorithm(sweep: Document) -> str:
    """grid, bayesian, random or sobol."""
    sampling = sweep["samplingAlgorithm"]
    named = str(sampling["samplingAlgorithmType"]).lower()
    return str(sampling.get("rule") or named).lower() if named == "random" else named


def _kind(law: Any) -> str | None:
    """Name of a distribution; None: it is none, or has other numbers."""
    if not (isinstance(law, list) and len(law) == 2 and isinstance(law[0], str) and isinstance(law[1], list)):
        return None
    name, told = law
    if name == "choice":
        return name if len(told) == 1 and isinstance(told[0], list) and told[0] else None
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in told):
        return None
    if name == "randint":
        return name if len(told) == 1 and isinstance(told[0], int) and told[0] > 0 else None
    if name in LAWS:
        return name if len(told) == 2 else None
    return name if name[:1] == "q" and name[1:] in LAWS and len(told) == 3 and told[2] > 0 else None


def _options(law: Any) -> list[Any]:
    found: list[Any] = law[1][0]
    return found


def _value(law: Any, unit: float, more: Callable[[str], float]) -> Any:
    """What a share of a distribution comes to.

    Args:
        law: the wire form.
        unit: the share, 0 <= unit < 1.
        more: shares for what is drawn below an option that is a mapping.
    """
    name, told = law
    if name == "choice":
        option = _options(law)[int(unit * len(_options(law)))]
        if isinstance(option, dict):
            return {
                key: _value(inner, more(key), lambda below, key=key: more(f"{key}.{below}"))  # type: ignore[misc]
                if _kind(inner) is not None
                else inner
                for key, inner in option.items()
            }
        return option
    if name == "randint":
        return int(unit * told[0])
    if name in LAWS:
        return LAWS[name](unit, *told)
    number = round(LAWS[name[1:]](unit, *told[:2]) / told[2]) * told[2]
    return number if isinstance(number, int) else float(f"{number:.12g}")


def _grid_point(space: Document, index: int) -> Point:
    """The last parameter changes fastest."""
    found = {}
    for name, law in reversed(space.items()):
        index, place = divmod(index, len(_options(law)))
        found[name] = _options(law)[place]
    return {name: found[name] for name in space}


def _unit(seed: int, index: int, name: str) -> float:
    """A number of [0, 1)."""
    digest = hashlib.sha256(f"azure\0{seed}\0{index}\0{name}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / (1 << 53)
