"""Points that depend on how earlier trials did: a tree of Parzen estimators, or a Gaussian process, of Optuna.

Optuna sees latents (`orchestrator.sweeps.design.points`), never values: it can hold no mapping or list as a choice, and
its own steps of a range are not Azure's.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.specs.space import Parameter, Space, all_parameters
from orchestrator.specs.sweep_spec import SamplingSpec, SweepSpec, size
from orchestrator.sweeps.design.points import Latent, Latents, latents, walk

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

LEARNING = {"bayesian", "tpe", "gp"}  # sampling that looks at how earlier trials did


def propose(spec: SweepSpec, index: int, past: Sequence[FrozenTrial] = ()) -> Latents:
    """Latents of trial `index` (0, 1, ...).

    Args:
        spec: the sweep.
        index: its number.
        past: every earlier trial, as an Optuna study has it; those that are going on keep others away from them.

    Raises:
        IndexError: the grid has no such point.
    """
    if spec.sampling.name not in LEARNING:
        return latents(spec, index)
    import optuna

    direction = spec.objective.goal
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = _sampler(spec.sampling, len(past), conditional=is_conditional(spec.space))
        study = optuna.create_study(direction=direction, sampler=sampler, pruner=optuna.pruners.NopPruner())
        study.add_trials(past)
        trial = study.ask()
        return walk(spec.space, lambda name, parameter: _suggest(trial, name, parameter))


def is_conditional(space: Space) -> bool:
    """Whether some parameters are there only if an option is chosen."""
    return any("[" in name for name, _, _ in all_parameters(space))


def distribution(parameter: Parameter) -> BaseDistribution:
    """What Optuna is told of a parameter's latent."""
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
    """What Optuna is told of latents."""
    known = {name: parameter for name, _, parameter in all_parameters(space)}
    return {name: distribution(known[name]) for name in drawn}


def _sampler(sampling: SamplingSpec, existing: int, *, conditional: bool) -> BaseSampler:
    """A sampler whose seed is a function of the trials there are: one that is made again draws nothing twice."""
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
