"""The state of a torch optimizer as named tensors and plain values, and back: nothing in it needs pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from train_jobs.config import TrainingError

STEP = "step"  # what torch's optimizers call their counter of steps


def flatten(state_dict: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Takes an optimizer's `state_dict()` apart.

    Returns:
        Tensors named PARAMETER.KEY (`bert.pooler.dense.weight.exp_avg`), where an optimizer that was given no names
        has the parameter's number; and the rest, JSON-safe: `param_groups` as they are, and `values`, what is no
        tensor, by the same names.

    Raises:
        TrainingError: an optimizer keeps something else.
    """
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Any] = {}
    names = _names(state_dict["param_groups"])
    for number, entries in state_dict["state"].items():
        for key, value in entries.items():
            (tensors if isinstance(value, torch.Tensor) else values)[f"{names[number]}.{key}"] = value
    rest = {"param_groups": list(state_dict["param_groups"]), "values": values}
    if lost := [name for name, value in values.items() if not _survives(value)]:
        raise TrainingError(
            "the optimizer keeps something that no checkpoint can hold",
            facts={"need": "tensors, numbers, None, lists of them", "have": f"{values[lost[0]]!r} as {lost[0]}"},
            fix="keep it in another form (docs/own-classes.md)",
        )
    return tensors, rest


def unflatten(tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> dict[str, Any]:
    """What `flatten` took apart, for `load_state_dict`; a tuple among the options has become a list."""
    numbers = {name: number for number, name in _names(rest["param_groups"]).items()}
    state: dict[int, dict[str, Any]] = {}
    for full_name, value in {**tensors, **rest["values"]}.items():
        name, _, key = full_name.rpartition(".")
        state.setdefault(numbers[name], {})[key] = value
    return {"state": state, "param_groups": rest["param_groups"]}


def carried_over(earlier: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer's `state_dict()` with the state of an earlier one for parameters of the same name.

    Options are `own`'s. Step counters begin at zero; a parameter that the earlier one did not train has no state yet.

    Args:
        earlier: the other `state_dict()`, of the same kind of optimizer.
        own: of an optimizer that has made no step.
    """
    numbers = {name: number for number, name in _names(own["param_groups"]).items()}
    names = _names(earlier["param_groups"])
    state = {
        numbers[names[number]]: {key: _restarted(value) if key == STEP else value for key, value in entries.items()}
        for number, entries in earlier["state"].items()
        if names[number] in numbers
    }
    return {"state": state, "param_groups": own["param_groups"]}


def _survives(value: Any) -> bool:
    """Whether JSON and `load_state_dict` leave a value as it was: the latter makes nonsense of texts."""
    if isinstance(value, list):
        return all(map(_survives, value))
    return value is None or isinstance(value, bool | int | float)


def _restarted(step: Any) -> Any:
    return torch.zeros_like(step) if isinstance(step, torch.Tensor) else type(step)(0)


def _names(groups: list[dict[str, Any]]) -> dict[int, str]:
    """Number of each parameter -> its name."""
    return {
        number: name
        for group in groups
        for number, name in zip(group["params"], group.get("param_names", map(str, group["params"])), strict=True)
    }
