"""Clipping by the global norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from train_jobs.optim.norms import l2_norms


@torch.no_grad()
def clip_by_global_norm_(grads: Sequence[Tensor], max_norm: float) -> Tensor:
    """Scales gradients in place so that the L2 norm of all of them together is at most `max_norm`.

    NVLAMB, step 2: g / (norm / max_norm) where norm > max_norm, else g untouched; no epsilon. To be called once per
    optimizer step, after accumulation, reduction and unscaling. Does not wait for the device.

    Args:
        grads: at least one gradient, all on one device. Where one is not finite, neither is the returned norm, and
            what is left in `grads` is not to be used.
        max_norm: the bound; math.inf only measures.

    Returns:
        The norm before clipping, a 0-dim tensor.
    """
    grads = list(grads)
    norm = torch.linalg.vector_norm(l2_norms(grads))
    if norm.is_cuda or not norm <= max_norm:  # to look at it costs nothing here, and to divide by 1 does
        torch._foreach_div_(grads, (norm / max_norm).clamp(min=1.0))
    return norm
