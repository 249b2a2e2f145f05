"""Model, objective, optimizer and schedule of a run: built-in, or a class or function of the user's own code.

The user's code is imported, and its signatures are checked against `train_jobs.protocols`, before anything is prepared.
Preparing a corpus can take hours, and a mistyped name should not be reported only after them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from train_jobs.config import ModelConfig, ObjectiveConfig, OptimizerConfig, PretrainConfig, SpecError, did_you_mean
from train_jobs.config.fields import Named, is_user_code
from train_jobs.corpus.examples.pairs import Plan, PlanBlock, plan_block, with_checks
from train_jobs.corpus.store.token_store import Block
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise, pretraining_sums
from train_jobs.optim.factory import build_optimizer, learning_rate, parameter_groups
from train_jobs.protocols import Objective, Term

LABELS = ("masked_labels", "next_sentence_labels")
NamedParameters = Iterable[tuple[str, torch.nn.Parameter]]


@dataclass(frozen=True)
class Parts:
    """Model, objective, optimizer and schedule of a run."""

    model: Callable[[ModelConfig, int, int], torch.nn.Module]
    """Section, rows of the embedding table, seed -> a model with random weights, on the CPU."""
    objective: Objective
    """Examples and losses."""
    plan: PlanBlock
    """The objective's method `plan`; results of the user's code are checked."""
    optimizer: Callable[[NamedParameters], torch.optim.Optimizer]
    """Named parameters -> an optimizer of the trainable ones."""
    schedule: Callable[[int, float], float]
    """Optimizer step (from 0), share of the time budget used -> learning rate."""


def load_parts(config: PretrainConfig) -> Parts:
    """Load and check the parts that a configuration names.

    Raises:
        SpecError: a module or a name in it is missing, cannot be imported, or does not implement its protocol.
    """
    objective = _objective(config.objective)
    own = is_user_code(config.objective.name)
    return Parts(
        model=_model(config),
        objective=objective,
        plan=with_checks(objective.plan, config.objective.name) if own else objective.plan,
        optimizer=_optimizer(config.optimizer),
        schedule=_schedule(config),
    )


def export_settings(model: torch.nn.Module, config: ModelConfig) -> dict[str, Any]:
    """Return the keys of the exported config.json that differ from BERT's.

    Args:
        model: model to export.
        config: section `model` of the configuration.
    """
    if isinstance(model, BertForPreTraining):
        return dict(getattr(model, "hugging_face", {}))
    return {"architectures": [config.name], "model_type": config.name, "options": config.options}


def _model(config: PretrainConfig) -> Callable[[ModelConfig, int, int], torch.nn.Module]:
    if not is_user_code(config.model.name):
        return _bert
    section = config.model
    found = _import_named("model", section, section, 1)
    if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
        raise _misfit_error(
            "model", section, "is not a subclass of torch.nn.Module", need="class NAME(BertForPreTraining)"
        )
    if config.init_from is not None and not issubclass(found, BertForPreTraining):
        raise _misfit_error("model", section, "takes no weights from init_from", need="class NAME(BertForPreTraining)")

    def build(shape: ModelConfig, rows: int, seed: int) -> torch.nn.Module:
        # The user's class may draw weights in its constructor.
        torch.manual_seed(seed)
        model = _call_user_code("model", section, lambda: found(shape, rows, **section.options))
        if isinstance(model, BertForPreTraining):
            initialise(model, seed)
        return model

    return build


def _bert(shape: ModelConfig, rows: int, seed: int) -> BertForPreTraining:
    model = BertForPreTraining(shape, rows)
    initialise(model, seed)
    return model


def _objective(section: ObjectiveConfig) -> Objective:
    if not is_user_code(section.name):
        return BertObjective(section)
    found = _import_named("objective", section)
    made = _call_user_code("objective", section, lambda: found(**section.options))
    labels = getattr(made, "labels", None)
    if not isinstance(labels, Mapping) or not labels or not set(labels.values()) <= set(LABELS):
        need = f"a mapping of the names of its terms to {' or '.join(LABELS)}"
        raise _misfit_error("objective", section, "has no valid labels", need=need, have=repr(labels))
    _require_method(
        "objective", section, made, "plan", None, sequence_length=8, short_sequence_probability=0.0, rng=None
    )
    _require_method("objective", section, made, "losses", None, None, padded=False)
    return made


def _optimizer(section: OptimizerConfig) -> Callable[[NamedParameters], torch.optim.Optimizer]:
    if not is_user_code(section.name):
        return lambda named: build_optimizer(section, named)
    found = _import_named("optimizer", section, [], lr=section.learning_rate)

    def build(named: NamedParameters) -> torch.optim.Optimizer:
        groups = parameter_groups(named, section.weight_decay)
        made = _call_user_code("optimizer", section, lambda: found(groups, lr=section.learning_rate, **section.options))
        if not isinstance(made, torch.optim.Optimizer):
            kind = type(made).__name__
            raise _misfit_error(
                "optimizer", section, f"returns an object of type {kind}", need="a torch.optim.Optimizer"
            )
        return made

    build([("weight", torch.nn.Parameter(torch.zeros(2, 2)))])  # reports invalid options before anything is prepared
    return build


def _schedule(config: PretrainConfig) -> Callable[[int, float], float]:
    section, peak, steps = config.schedule, config.optimizer.learning_rate, config.train.steps
    if not is_user_code(section.name):
        return lambda step, time_used: learning_rate(section, peak, step=step, total_steps=steps, time_used=time_used)
    found = _import_named("schedule", section, step=0, total_steps=steps, time_used=0.0, peak=peak)

    def rate(step: int, time_used: float) -> float:
        value = found(step=step, total_steps=steps, time_used=time_used, peak=peak, **section.options)
        if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            have = f"{value!r} at step {step + 1}"
            raise _misfit_error(
                "schedule", section, "returns an invalid learning rate", need="a non-negative number", have=have
            )
        return float(value)

    _call_user_code("schedule", section, lambda: rate(0, 0.0))
    return rate


def _import_named(where: str, section: Named, *given: Any, **known: Any) -> Any:
    """Import the object that a section names; require that it accepts these arguments and the section's options.

    Raises:
        SpecError: the object does not exist, or does not accept the arguments.
    """
    module_name, _, name = section.name.partition(":")
    try:
        module = import_module(module_name)
    except Exception as problem:  # the user's module may raise anything when it is imported
        gone = isinstance(problem, ModuleNotFoundError) and f"{module_name}.".startswith(f"{problem.name}.")
        raise SpecError(
            f"{where}.name: {'no module' if gone else 'cannot import'} {module_name}",
            facts={} if gone else {"why": f"{type(problem).__name__}: {problem}"},
            fix=f"give the folder of {module_name.replace('.', '/')}.py: --code DIR" if gone else f"fix {module_name}",
        ) from None
    if not hasattr(module, name):
        there = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise SpecError(
            f"{where}.name: {module_name} has no {name}{did_you_mean(name, there)}",
            facts={"known": ", ".join(there) or "nothing callable"},
            fix=f"--set {where}={module_name}:NAME",
        )
    found = getattr(module, name)
    if not callable(found):
        raise _misfit_error(where, section, f"is of type {type(found).__name__}", need="a class or a function")
    _require_call(where, section, found, section.name, given, {**known, **section.options})
    return found


def _require_method(where: str, section: Named, made: object, method: str, *given: Any, **known: Any) -> None:
    """Require that an object has a method that accepts these arguments."""
    found = getattr(made, method, None)
    if not callable(found):
        have = sorted(key for key in dir(made) if not key.startswith("_"))
        raise _misfit_error(where, section, f"has no method {method}", need=method, have=", ".join(have) or "nothing")
    _require_call(where, section, found, f"{method} of {section.name}", given, known)


def _require_call(
    where: str, section: Named, found: Any, called: str, given: tuple[Any, ...], known: dict[str, Any]
) -> None:
    try:
        signature = inspect.signature(found)
    except ValueError:  # classes of extension modules may have no signature
        return
    try:
        signature.bind(*given, **known)
    except TypeError as problem:
        words = ["..." for _ in given] + [f"{key}=..." for key in known]
        raise SpecError(
            f"{where}: cannot call {called}: {problem}",
            facts={"need": f"({', '.join(words)})", "have": str(signature)},
            fix=f"change its signature, or {where}.options (docs/own-classes.md)",
        ) from None


def _call_user_code(where: str, section: Named, call: Callable[[], Any]) -> Any:
    """Call the user's code and return the result; convert its exceptions to SpecError."""
    try:
        return call()
    except SpecError:
        raise
    except Exception as problem:
        raise SpecError(
            f"{where}: {section.name} failed: {type(problem).__name__}: {problem}",
            facts={"options": section.options or "none"},
            fix=f"fix its code, or change {where}.options",
        ) from problem


def _misfit_error(where: str, section: Named, what: str, **facts: str) -> SpecError:
    fix = f"implement train_jobs/protocols.py, or give another with --set {where}=NAME (docs/own-classes.md)"
    return SpecError(f"{where}.name: {section.name} {what}", facts=facts, fix=fix)


class BertObjective:
    """BERT's own objective: masked language model and next-sentence prediction (`train_jobs.protocols.Objective`).

    Args:
        config: next_sentence and sequences are used. Without the first, examples are single sequences, and the loss
            has one term.
    """

    def __init__(self, config: ObjectiveConfig) -> None:
        self._config = config
        pairs = {"nsp": "next_sentence_labels"} if config.next_sentence else {}
        self.labels: Mapping[str, str] = {"mlm": "masked_labels", **pairs}

    def plan(
        self, block: Block, *, sequence_length: int, short_sequence_probability: float, rng: np.random.Generator
    ) -> Plan:
        """Plan sentence pairs, or consecutive text; see `pairs.plan_block`."""
        return plan_block(
            block,
            objective=self._config,
            sequence_length=sequence_length,
            short_sequence_probability=short_sequence_probability,
            rng=rng,
        )

    def losses(self, model: torch.nn.Module, batch: Mapping[str, Tensor], *, padded: bool) -> Mapping[str, Term]:
        """Return the sums of the cross entropies of both heads, see `train_jobs.protocols.Objective.losses`."""
        sums = pretraining_sums(model, batch, next_sentence=self._config.next_sentence, padded=padded)
        terms = {"mlm": Term(*sums[:3]), "nsp": Term(*sums[3:])}
        return {name: terms[name] for name in self.labels}
