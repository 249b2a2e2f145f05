"""Optimizer, parameter groups and learning rate schedule of a configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from train_jobs.config import OptimizerConfig, ScheduleConfig
from train_jobs.optim.lamb import Lamb

# As in google-research/bert (optimization.py, exclude_from_weight_decay) and NVIDIA's recipe.
NO_DECAY = ("bias", "LayerNorm")
LR_SCALE = "lr_scale"  # key of a group: factor of the schedule's rate, 1 if missing
_LAYER = re.compile(r"\bencoder\.layer\.(\d+)\.")
_FUSED_ADAMW = {"cpu", "cuda"}  # device types of torch's fused AdamW


def build_optimizer(
    config: OptimizerConfig, named_parameters: Iterable[tuple[str, nn.Parameter]], *, layer_decay: float = 1.0
) -> torch.optim.Optimizer:
    """Return the optimizer of the trainable parameters, at the peak learning rate until a schedule sets it.

    Args:
        config: name and options; `max_grad_norm` is applied by the loop.
        named_parameters: `model.named_parameters()`, on the device of training.
        layer_decay: see `parameter_groups`.

    Returns:
        torch's AdamW, or `Lamb` for LAMB and for AdamW without bias correction.
    """
    groups = parameter_groups(named_parameters, config.weight_decay, layer_decay=layer_decay)
    assert groups, "no trainable parameters"
    if config.name == "adamw" and config.bias_correction:
        devices = {parameter.device.type for group in groups for _, parameter in group["params"]}
        return torch.optim.AdamW(
            groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=devices <= _FUSED_ADAMW
        )
    # BERT's own AdamWeightDecayOptimizer does not correct the bias, and torch's AdamW always does: LAMB without trust
    # ratio is the same update. With trust_ratio "matrices", as in NVIDIA's PyTorch code, it depends on the group.
    for group in groups:
        no_decay = all(is_no_decay(name) for name, _ in group["params"])
        group["trust_ratio"] = config.name == "lamb" and (config.trust_ratio == "all" or not no_decay)
    return Lamb(
        groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, bias_correction=config.bias_correction
    )


def parameter_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]], weight_decay: float, *, layer_decay: float = 1.0
) -> list[dict[str, Any]]:
    """Return the groups of a torch optimizer: matrices with weight decay, then biases and LayerNorm without.

    Frozen parameters and empty groups are left out. The optimizer stores the names as `param_names`.

    Args:
        named_parameters: `model.named_parameters()`.
        weight_decay: decay of matrices.
        layer_decay: ratio of the learning rate of a layer to that of the layer above it (Clark et al. 2020, ELECTRA,
            layerwise decay). The embeddings are below the first layer; pooler and head have the full rate.

    Returns:
        Two groups with `layer_decay` 1, otherwise up to two for each rate, with the factor of the rate as `lr_scale`.
    """
    trained = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
    if layer_decay == 1.0:
        return _decayed_or_not(trained, weight_decay)
    depths = {name: int(found[1]) for name, _ in trained if (found := _LAYER.search(name))}
    layers = max(depths.values(), default=-1) + 1
    by_scale: dict[float, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in trained:
        # heads and pooler have no number in their name: they are at the top, with the full rate
        depth = -1 if "embeddings." in name else depths.get(name, layers)
        by_scale.setdefault(layer_decay ** (layers - depth), []).append((name, parameter))
    return [
        {**group, LR_SCALE: scale}
        for scale, pairs in by_scale.items()
        for group in _decayed_or_not(pairs, weight_decay)
    ]


def _decayed_or_not(named: list[tuple[str, nn.Parameter]], weight_decay: float) -> list[dict[str, Any]]:
    groups = [
        {"params": [pair for pair in named if is_no_decay(pair[0]) == no_decay], "weight_decay": decay}
        for no_decay, decay in ((False, weight_decay), (True, 0.0))
    ]
    return [group for group in groups if group["params"]]


def is_no_decay(name: str) -> bool:
    """Return whether the name is that of a bias or of a LayerNorm weight."""
    return any(part in name for part in NO_DECAY)


def learning_rate(config: ScheduleConfig, peak: float, *, step: int, total_steps: int, time_used: float = 0.0) -> float:
    """Return the learning rate of one optimizer step, a pure function of the progress of the run.

    With progress x = max((step + 1) / total_steps, time_used), at most 1, and w = warmup_fraction:

        x < w    peak x / w
        else     peak (1 - x)^power                          polynomial
                 peak ((1 - x) / (1 - w))^power              polynomial, continuous
                 peak (1 + cos(pi (x - w) / (1 - w))) / 2    cosine
                 peak                                        constant

    Polynomial and constant are NVIDIA's (DeepLearningExamples, PyTorch BERT, schedulers.py, PolyWarmUpScheduler): the
    polynomial ends at zero in the last step. Unless continuous, it jumps at the end of warm-up: to 0.846 of the peak
    for w = 0.2843 and power 0.5. The cosine is that of Loshchilov and Hutter 2017 (arXiv 1608.03983, equation 5, one
    period); NVIDIA's CosineWarmUpScheduler adds pi to the progress instead of multiplying by it, and is not offered.

    AzureML-BERT (pretrain/PyTorch/optimization.py, warmup_linear_decay_exp) counts steps from 0, so its
    first rate is zero; with x = max(step / total_steps, time_used):

        x < w    peak x / w
        else     peak decay_rate^((x - w) total_steps / decay_steps)    exponential

    Its rate never decays without warm-up; here it does.

    Args:
        config: shape of the schedule.
        peak: highest learning rate.
        step: number of the optimizer step, from 0; steps skipped for gradients that are not finite do not count.
        total_steps: optimizer steps of the whole run.
        time_used: share of the time budget used so far; values above 1 count as 1.
    """
    assert 0 <= step < total_steps, f"step {step} of {total_steps}"
    # The larger of the two: a run that is slower than planned still reaches the end of its schedule within its hours.
    made = step if config.name == "exponential" else step + 1
    progress = min(max(made / total_steps, time_used), 1.0)
    warmup = config.warmup_fraction
    if progress < warmup:
        return peak * progress / warmup
    match config.name:
        case "polynomial":
            remaining = (1 - progress) / (1 - warmup) if config.continuous else 1 - progress
            return peak * remaining**config.power
        case "exponential":
            return peak * config.decay_rate ** ((progress - warmup) * total_steps / config.decay_steps)
        case "cosine":
            return peak * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup))) / 2
        case _:  # constant
            return peak
