"""Arithmetic of the forward and backward pass, and the dynamic loss scale that fp16 needs.

Weights, gradients and optimizer state are fp32 whatever the precision.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve(precision: str, device: torch.device) -> str:
    """Turns "auto" into "bf16" where the hardware multiplies its matrices natively; else "fp16" (GPU), "fp32" (CPU)."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"
    # private names, so looked up gently: without them we only lose the automatic choice
    probes = (getattr(torch.cpu, name, None) for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"))
    return "bf16" if any(probe() for probe in probes if probe) else "fp32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context that the forward pass runs under."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[precision])


@dataclass
class LossScale:
    """fp16 dynamic loss scale: doubled after `interval` good steps, halved on a bad one, never below `floor`.

    The scale of NVIDIA's recipe without a floor was seen to decay to zero in endless loops
    (DeepLearningExamples issues 252 and 543), so here it has one. In the other precisions the scale is 1 for good.
    """

    scale: float = 2.0**16
    floor: float = 1.0
    interval: int = 2000
    good_steps: int = field(default=0)

    @classmethod
    def for_precision(cls, precision: str) -> LossScale:
        """A dynamic scale for fp16, a scale of 1 otherwise."""
        return cls() if precision == "fp16" else cls(scale=1.0)

    @property
    def at_floor(self) -> bool:
        """True when a non-finite gradient can no longer be blamed on the scale."""
        return self.scale <= self.floor

    def update(self, finite: bool, *, dynamic: bool) -> None:
        """Notes whether the gradients of a step were finite."""
        if not dynamic:
            return
        if not finite:
            self.scale, self.good_steps = max(self.scale / 2, self.floor), 0
            return
        self.good_steps += 1
        if self.good_steps % self.interval == 0:
            self.scale *= 2
