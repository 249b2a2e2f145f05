"""What a configuration names, ready to be used: ours, or a class or function of the user's own code.

Their code is imported and its form is checked before anything is prepared: what is missing, or does not fit
`train_jobs.protocols`, is an error of the spec.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from train_jobs.assembly.bert_objective import BertObjective
from train_jobs.config import ModelConfig, ObjectiveConfig, OptimizerConfig, PretrainConfig, SpecError
from train_jobs.config.names import did_you_mean
from train_jobs.config.own import Named, is_own
from train_jobs.corpus.examples.pairs import PlanBlock, checked
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise
from train_jobs.optim.factory import build_optimizer
from train_jobs.optim.groups import parameter_groups
from train_jobs.optim.schedules import learning_rate
from train_jobs.protocols import Objective

LABELS = ("masked_labels", "next_sentence_labels")
NamedParameters = Iterable[tuple[str, torch.nn.Parameter]]


@dataclass(frozen=True)
class Parts:
    """What is trained, on what, and how."""

    model: Callable[[ModelConfig, int, int], torch.nn.Module]
    """Section, rows of the embedding table, seed -> a model with its weights drawn, on the CPU."""
    objective: Objective
    """Examples and losses."""
    plan: PlanBlock
    """The objective's, checked if it is not ours."""
    optimizer: Callable[[NamedParameters], torch.optim.Optimizer]
    """Over the trainable ones of these parameters."""
    schedule: Callable[[int, float], float]
    """Optimizer step (from 0), share of the time budget used -> learning rate."""


def load_parts(config: PretrainConfig) -> Parts:
    """Finds and checks everything that the configuration names.

    Raises:
        SpecError: a module or a name in it is missing, or it does not fit.
    """
    objective = _objective(config.objective)
    own = is_own(config.objective.name)
    return Parts(
        model=_model(config),
        objective=objective,
        plan=checked(objective.plan, config.objective.name) if own else objective.plan,
        optimizer=_optimizer(config.optimizer),
        schedule=_schedule(config),
    )


def exported_as(model: torch.nn.Module, config: ModelConfig) -> dict[str, Any]:
    """What config.json says otherwise than for BERT."""
    if isinstance(model, BertForPreTraining):
        return dict(getattr(model, "hugging_face", {}))
    return {"architectures": [config.name], "model_type": config.name, "options": config.options}


def _model(config: PretrainConfig) -> Callable[[ModelConfig, int, int], torch.nn.Module]:
    if not is_own(config.model.name):
        return _bert
    section = config.model
    found = _found("model", section, section, 1)
    if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
        raise _misfit("model", section, "is no class of torch.nn.Module", need="class NAME(BertForPreTraining)")
    if config.init_from is not None and not issubclass(found, BertForPreTraining):
        raise _misfit("model", section, "takes no weights from init_from", need="class NAME(BertForPreTraining)")

    def build(shape: ModelConfig, rows: int, seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        model = _called("model", section, lambda: found(shape, rows, **section.options))
        if isinstance(model, BertForPreTraining):
            initialise(model, seed)
        return model

    return build


def _bert(shape: ModelConfig, rows: int, seed: int) -> BertForPreTraining:
    model = BertForPreTraining(shape, rows)
    initialise(model, seed)
    return model


def _objective(section: ObjectiveConfig) -> Objective:
    if not is_own(section.name):
        return BertObjective(section)
    found = _found("objective", section)
    made = _called("objective", section, lambda: found(**section.options))
    labels = getattr(made, "labels", None)
    if not isinstance(labels, Mapping) or not labels or not set(labels.values()) <= set(LABELS):
        need = f"a mapping of the names of its terms to {' or '.join(LABELS)}"
        raise _misfit("objective", section, "has no labels as they are needed", need=need, have=repr(labels))
    _fits("objective", section, made, "plan", None, sequence_length=8, short_sequence_probability=0.0, rng=None)
    _fits("objective", section, made, "losses", None, None, padded=False)
    return made


def _optimizer(section: OptimizerConfig) -> Callable[[NamedParameters], torch.optim.Optimizer]:
    if not is_own(section.name):
        return lambda named: build_optimizer(section, named)
    found = _found("optimizer", section, [], lr=section.learning_rate)

    def build(named: NamedParameters) -> torch.optim.Optimizer:
        groups = parameter_groups(named, section.weight_decay)
        made = _called("optimizer", section, lambda: found(groups, lr=section.learning_rate, **section.options))
        if not isinstance(made, torch.optim.Optimizer):
            kind = type(made).__name__
            raise _misfit("optimizer", section, f"gives something of type {kind}", need="a torch.optim.Optimizer")
        return made

    build([("weight", torch.nn.Parameter(torch.zeros(2, 2)))])  # so that what is wrong with it is known at once
    return build


def _schedule(config: PretrainConfig) -> Callable[[int, float], float]:
    section, peak, steps = config.schedule, config.optimizer.learning_rate, config.train.steps
    if not is_own(section.name):
        return lambda step, time_used: learning_rate(section, peak, step=step, total_steps=steps, time_used=time_used)
    found = _found("schedule", section, step=0, total_steps=steps, time_used=0.0, peak=peak)

    def rate(step: int, time_used: float) -> float:
        value = found(step=step, total_steps=steps, time_used=time_used, peak=peak, **section.options)
        if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            have = f"{value!r} at step {step + 1}"
            raise _misfit("schedule", section, "gives no learning rate", need="a number, 0 or more", have=have)
        return float(value)

    _called("schedule", section, lambda: rate(0, 0.0))
    return rate


def _found(where: str, section: Named, *given: Any, **known: Any) -> Any:
    """What a section names, which can be called with these arguments and the section's options.

    Raises:
        SpecError: it is not there, or cannot be called so.
    """
    module_name, _, name = section.name.partition(":")
    try:
        module = import_module(module_name)
    except Exception as problem:  # whatever the user's module does when it is imported
        gone = isinstance(problem, ModuleNotFoundError) and f"{module_name}.".startswith(f"{problem.name}.")
        raise SpecError(
            f"{where}.name: {'there is no module' if gone else 'cannot import'} {module_name}",
            facts={} if gone else {"why": f"{type(problem).__name__}: {problem}"},
            fix=f"--code DIR with {module_name.replace('.', '/')}.py in it" if gone else f"mend {module_name}",
        ) from None
    if not hasattr(module, name):
        there = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise SpecError(
            f"{where}.name: {module_name} has no {name}{did_you_mean(name, there)}",
            facts={"known": ", ".join(there) or "nothing that can be called"},
            fix=f"--set {where}={module_name}:NAME",
        )
    found = getattr(module, name)
    if not callable(found):
        raise _misfit(where, section, f"is of type {type(found).__name__}", need="a class or a function")
    _require_call(where, section, found, section.name, given, {**known, **section.options})
    return found


def _fits(where: str, section: Named, made: object, method: str, *given: Any, **known: Any) -> None:
    """Sees that an object has a method that takes these arguments."""
    found = getattr(made, method, None)
    if not callable(found):
        have = sorted(key for key in dir(made) if not key.startswith("_"))
        raise _misfit(where, section, f"has no method {method}", need=method, have=", ".join(have) or "nothing")
    _require_call(where, section, found, f"{method} of {section.name}", given, known)


def _require_call(
    where: str, section: Named, found: Any, called: str, given: tuple[Any, ...], known: dict[str, Any]
) -> None:
    try:
        signature = inspect.signature(found)
    except ValueError:  # a class of an extension that does not tell
        return
    try:
        signature.bind(*given, **known)
    except TypeError as problem:
        words = ["..." for _ in given] + [f"{key}=..." for key in known]
        raise SpecError(
            f"{where}: {called} cannot be called as it is to be: {problem}",
            facts={"need": f"({', '.join(words)})", "have": str(signature)},
            fix=f"mend its arguments, or {where}.options (docs/own-classes.md)",
        ) from None


def _called(where: str, section: Named, call: Callable[[], Any]) -> Any:
    """What a call of the user's code gives; an error of theirs is one of the spec."""
    try:
        return call()
    except SpecError:
        raise
    except Exception as problem:
        raise SpecError(
            f"{where}: {section.name} cannot be used: {type(problem).__name__}: {problem}",
            facts={"options": section.options or "none"},
            fix=f"mend it, or {where}.options",
        ) from problem


def _misfit(where: str, section: Named, what: str, **facts: str) -> SpecError:
    fix = f"write it as train_jobs/protocols.py has it, or --set {where}=NAME of another (docs/own-classes.md)"
    return SpecError(f"{where}.name: {section.name} {what}", facts=facts, fix=fix)
