"""ZeRO stage 1: each process keeps the optimizer state of its share of the tensors, and updates no others.

The paper (Rajbhandari et al. 2020, arXiv 1910.02054, P_os) cuts one vector of all weights into even parts. Here whole
tensors are assigned: values per tensor, such as LAMB's trust ratio, and therefore all weights, are bit-exact with
those of an unsharded run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from train_jobs.engine.loop.gradients import FlatGradients
from train_jobs.engine.runtime.distributed import World


class ShardedOptimizer:
    """Any torch optimizer, of which each process uses the part that updates its own tensors.

    All processes call every method together.

    Args:
        optimizer: over all parameters, the same on every process. Like torch's own it must skip a parameter without a
            gradient, and create the state of a parameter at its first update.
        gradients: of the same parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, gradients: FlatGradients, world: World) -> None:
        self._optimizer, self._world = optimizer, world
        parameters = gradients.parameters
        owners = assign_owners([parameter.numel() for parameter in parameters], world.size)
        slots, self._parts = _slots(parameters, owners, gradients.flat)
        ours = [owner == world.rank for owner in owners]
        self._own = [(parameter, slot) for parameter, slot, own in zip(parameters, slots, ours, strict=True) if own]
        self._others = [
            (parameter, slot) for parameter, slot, own in zip(parameters, slots, ours, strict=True) if not own
        ]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Options of the optimizer, by groups of all parameters."""
        return self._optimizer.param_groups

    @property
    def inner(self) -> torch.optim.Optimizer:
        """The optimizer that updates this process's tensors."""
        return self._optimizer

    @property
    def own_elements(self) -> int:
        """Number of elements whose state this process keeps."""
        return sum(parameter.numel() for parameter, _ in self._own)

    @torch.no_grad()
    def step(self) -> None:
        """Update all weights. This overwrites the gradients: processes exchange the new weights in their memory."""
        # Any optimizer skips parameters without a gradient, so hiding gradients works without knowing its class.
        hidden = [(parameter, parameter.grad) for parameter, _ in self._others]
        for parameter, _ in hidden:
            parameter.grad = None
        self._optimizer.step()
        for parameter, gradient in hidden:
            parameter.grad = gradient
        # The new weights travel in the gradients' buffer, which is free until the next step zeroes it: no memory of its
        # own, and one contiguous broadcast per process instead of one per tensor.
        for parameter, slot in self._own:
            slot.copy_(parameter)
        self._world.broadcast_each_(self._parts)
        for parameter, slot in self._others:
            parameter.copy_(slot)

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, as without sharding; every process must call it.

        Returns:
            On the main process the state of all parameters, those of other processes in host memory. On the other
            processes their own part.
        """
        mine = self._optimizer.state_dict()
        # All processes exchange names, types and shapes first, so that all issue the same broadcasts in the same order.
        # Tensors follow one by one: a device never holds more than one tensor of another process.
        contents = [json.loads(text) for text in self._world.gather_texts(json.dumps(_describe_state(mine["state"])))]
        found: dict[int, dict[str, Any]] = {}
        for rank, content in enumerate(contents):
            for number, key, dtype, shape, value in content:
                if dtype is not None:
                    value = self._fetch(rank, mine["state"], number, key, dtype, shape)
                if self._world.is_main:  # elsewhere it would take the memory that sharding saves
                    found.setdefault(number, {})[key] = value
        return {**mine, "state": dict(sorted(found.items()))} if self._world.is_main else mine

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load this process's part of a complete state.

        Args:
            state_dict: result of `state_dict` on the main process, or of the same optimizer without sharding.
        """
        own = {id(parameter) for parameter, _ in self._own}
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        ours = [number for number, parameter in zip(numbers, parameters, strict=True) if id(parameter) in own]
        state = {number: state_dict["state"][number] for number in ours if number in state_dict["state"]}
        self._optimizer.load_state_dict({**state_dict, "state": state})

    def _fetch(
        self, rank: int, state: dict[int, dict[str, Any]], number: int, key: str, dtype: str, shape: list[int]
    ) -> torch.Tensor:
        """Return one tensor of the state of process `rank`; on the main process in host memory."""
        device = self._world.device
        if rank == self._world.rank:
            tensor = state[number][key].to(device).contiguous()
        else:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        self._world.broadcast_(tensor, rank)
        return tensor.cpu() if self._world.is_main else tensor


def assign_owners(sizes: Sequence[int], shares: int) -> list[int]:
    """Assign tensors to shares greedily: the largest first, each to the share with the fewest elements so far.

    Args:
        sizes: number of elements of each tensor.
        shares: number of shares.

    Returns:
        The share of each tensor, from 0; the same on every process, since ties go to the first.
    """
    held = [0] * shares
    owners = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        owners[number] = held.index(min(held))
        held[owners[number]] += sizes[number]
    return owners


def _slots(
    parameters: Sequence[torch.Tensor], owners: Sequence[int], memory: torch.Tensor
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return a view of `memory` for each parameter, and one for all parameters of each owner.

    Parameters of one owner are adjacent, so that one broadcast sends all of them.
    """
    slots: dict[int, torch.Tensor] = {}
    parts = []
    begin = end = 0
    for rank in range(max(owners) + 1):
        for number in (number for number, owner in enumerate(owners) if owner == rank):
            slots[number] = memory[end : end + parameters[number].numel()].view_as(parameters[number])
            end += parameters[number].numel()
        parts.append(memory[begin:end])
        begin = end
    return [slots[number] for number in range(len(parameters))], parts


def _describe_state(state: dict[int, dict[str, Any]]) -> list[list[Any]]:
    """Return JSON-safe rows (number, key, type, shape, value).

    Tensors have no value, and other entries neither type nor shape.
    """
    return [
        [number, key, str(value.dtype).removeprefix("torch."), list(value.shape), None]
        if isinstance(value, torch.Tensor)
        else [number, key, None, None, value]
        for number, entries in state.items()
        for key, value in entries.items()
    ]
