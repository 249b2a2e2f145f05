"""LAMB (You et al. 2020, arXiv 1904.00962) as NVIDIA ran it: NVLAMB (DeepLearningExamples, lamb_amp_opt)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from train_jobs.optim.norms import l2_norms


class Lamb(torch.optim.Optimizer):
    """Adam's direction with decoupled weight decay, as long in each tensor as the weights are there.

    With g the gradient, already clipped over all tensors (`clip_by_global_norm_`, step 2 of NVLAMB), at step t:

        m = b1 m + (1 - b1) g                  v = b2 v + (1 - b2) g^2
        m_hat = m / (1 - b1^t)                 v_hat = v / (1 - b2^t)
        u = m_hat / (sqrt(v_hat) + eps) + weight_decay w
        w = w - lr r u      r = |w| / |u| of the tensor if neither norm is zero, else 1

    r is not clipped: the paper leaves bounds on |w| open, NVIDIA's kernels have none. Every step is a few multi-tensor
    operations and never waits for the device: norms and counters stay there, in `state[p]` as `step` (fp32, 0-dim),
    `exp_avg` (m) and `exp_avg_sq` (v). Weights are to be fp32 or fp64: an update is smaller than the last bit of 16-bit
    weights. A parameter without a gradient is left alone.

    Args:
        params: parameters or groups of them; a group may override every option below. All of a group on one device
            and of one type.
        lr: learning rate.
        betas: decay of m and v.
        eps: added outside the root.
        weight_decay: decoupled.
        bias_correction: off, m_hat is m and v_hat is v.
        trust_ratio: off, r is 1: AdamW. NVIDIA's PyTorch recipe turns it off for what has no weight decay
            (lamb_amp_opt/csrc/multi_tensor_lamb.cu, LAMBStage2Functor with use_nvlamb off), which are biases and
            LayerNorm; the paper (algorithm 2) and NVIDIA's TensorFlow recipe do not.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
        trust_ratio: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "trust_ratio": trust_ratio,
            "capturable": True,  # tells load_state_dict to put the step counters on the device, as fp32
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Updates the weights from their gradients; returns what `closure`, if given, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._update(group)
        return loss

    def _update(self, group: dict[str, Any]) -> None:
        params = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not params:
            return
        states = [self._state_of(parameter) for parameter in params]
        first = [state["exp_avg"] for state in states]
        second = [state["exp_avg_sq"] for state in states]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        _decay_moments(first, second, [parameter.grad for parameter in params], group["betas"])
        corrections = _corrections(steps, group["betas"], params[0].dtype) if group["bias_correction"] else None
        updates = _adam_direction(first, second, corrections, group["eps"])
        if group["weight_decay"] != 0:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
        if group["trust_ratio"]:
            torch._foreach_mul_(updates, _trust_ratios(params, updates))
        torch._foreach_add_(params, updates, alpha=-group["lr"])

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


def _decay_moments(first: list[Tensor], second: list[Tensor], grads: list[Tensor], betas: tuple[float, float]) -> None:
    beta1, beta2 = betas
    torch._foreach_mul_(first, beta1)
    torch._foreach_add_(first, grads, alpha=1 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, grads, grads, value=1 - beta2)


def _corrections(
    steps: list[Tensor], betas: tuple[float, float], dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor]]:
    """1 - beta^t of both moments, for each tensor; in fp64 first, since 1 - 0.999 loses four digits in fp32."""
    count = torch.stack(steps).to(torch.float64)
    first, second = ((1 - beta**count).to(dtype) for beta in betas)
    return list(first.unbind()), list(second.unbind())


def _adam_direction(
    first: list[Tensor], second: list[Tensor], corrections: tuple[list[Tensor], list[Tensor]] | None, eps: float
) -> list[Tensor]:
    """m_hat / (sqrt(v_hat) + eps)."""
    if corrections is None:
        roots, updates = torch._foreach_sqrt(second), tuple(first)
    else:
        roots = torch._foreach_div(second, corrections[1])
        torch._foreach_sqrt_(roots)
        updates = torch._foreach_div(first, corrections[0])
    torch._foreach_add_(roots, eps)
    return list(torch._foreach_div(updates, roots))


def _trust_ratios(params: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """|w| / |u| of each tensor, 1 where either is zero."""
    weights = l2_norms(params)
    lengths = l2_norms(updates)
    ratios = (weights / lengths).masked_fill((weights == 0) | (lengths == 0), 1.0)
    return list(ratios.unbind())
