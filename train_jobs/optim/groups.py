"""Parameter groups: what weight decay applies to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

NO_DECAY = ("bias", "LayerNorm")


def parameter_groups(named_parameters: Iterable[tuple[str, nn.Parameter]], weight_decay: float) -> list[dict[str, Any]]:
    """Groups for a torch optimizer: matrices with weight decay, then biases and LayerNorm without.

    Frozen parameters are left out, and so is a group that would be empty. Names are kept: the optimizer has them in
    its groups as `param_names`, and so has its checkpoint.

    Args:
        named_parameters: `model.named_parameters()`.
        weight_decay: of the first group.
    """
    trained = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
    decay = [pair for pair in trained if not is_no_decay(pair[0])]
    no_decay = [pair for pair in trained if is_no_decay(pair[0])]
    groups = [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def is_no_decay(name: str) -> bool:
    """True for the names of biases and LayerNorm weights."""
    return any(part in name for part in NO_DECAY)
