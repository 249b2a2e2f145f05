"""From a configuration to an optimizer."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from train_jobs.config import OptimizerConfig
from train_jobs.optim.groups import is_no_decay, parameter_groups
from train_jobs.optim.lamb import Lamb

_FUSED_ADAMW = {"cpu", "cuda"}  # device types that torch's fused AdamW runs on


def build_optimizer(
    config: OptimizerConfig, named_parameters: Iterable[tuple[str, nn.Parameter]], *, layer_decay: float = 1.0
) -> torch.optim.Optimizer:
    """The optimizer of `config` over the trainable parameters, at the peak learning rate until a schedule sets it.

    Args:
        config: which one, and its options. Clipping (`max_grad_norm`) is left to the caller.
        named_parameters: `model.named_parameters()`, on the device that they are trained on.
        layer_decay: as of `parameter_groups`.
    """
    groups = parameter_groups(named_parameters, config.weight_decay, layer_decay=layer_decay)
    assert groups, "no trainable parameters"
    if config.name == "adamw" and config.bias_correction:
        devices = {parameter.device.type for group in groups for _, parameter in group["params"]}
        return torch.optim.AdamW(
            groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=devices <= _FUSED_ADAMW
        )
    for group in groups:  # without a trust ratio LAMB is AdamW, and torch's AdamW always corrects
        no_decay = all(is_no_decay(name) for name, _ in group["params"])
        group["trust_ratio"] = config.name == "lamb" and (config.trust_ratio == "all" or not no_decay)
    return Lamb(
        groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, bias_correction=config.bias_correction
    )
