"""Parameter groups: what weight decay applies to, and how much of the learning rate each layer takes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torch import nn

NO_DECAY = ("bias", "LayerNorm")
LR_SCALE = "lr_scale"  # key of a group: what the schedule's rate is multiplied by; without it by 1
_LAYER = re.compile(r"\bencoder\.layer\.(\d+)\.")


def parameter_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]], weight_decay: float, *, layer_decay: float = 1.0
) -> list[dict[str, Any]]:
    """Groups for a torch optimizer: matrices with weight decay, then biases and LayerNorm without.

    Frozen parameters are left out, and so is a group that would be empty. Names are kept: the optimizer has them in
    its groups as `param_names`, and so has its checkpoint.

    Args:
        named_parameters: `model.named_parameters()`.
        weight_decay: of the first group.
        layer_decay: each layer takes this much of the rate of the one above it, embeddings of the first layer's, and
            pooler and head all of it. At 1 there are two groups, below a pair for each different rate.
    """
    trained = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
    if layer_decay == 1.0:
        return _decayed_or_not(trained, weight_decay)
    depths = {name: int(found[1]) for name, _ in trained if (found := _LAYER.search(name))}
    layers = max(depths.values(), default=-1) + 1
    by_scale: dict[float, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in trained:
        depth = -1 if "embeddings." in name else depths.get(name, layers)
        by_scale.setdefault(layer_decay ** (layers - depth), []).append((name, parameter))
    return [
        {**group, LR_SCALE: scale}
        for scale, pairs in by_scale.items()
        for group in _decayed_or_not(pairs, weight_decay)
    ]


def _decayed_or_not(named: list[tuple[str, nn.Parameter]], weight_decay: float) -> list[dict[str, Any]]:
    decay = [pair for pair in named if not is_no_decay(pair[0])]
    no_decay = [pair for pair in named if is_no_decay(pair[0])]
    groups = [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def is_no_decay(name: str) -> bool:
    """True for the names of biases and LayerNorm weights."""
    return any(part in name for part in NO_DECAY)
