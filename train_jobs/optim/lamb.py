"""LAMB (You et al. 2020, arXiv 1904.00962) as in NVLAMB (NVIDIA DeepLearningExamples, lamb_amp_opt), and clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

_BLOCK = 1024  # elements whose squares are summed together on the CPU


class Lamb(torch.optim.Optimizer):
    """Adam with decoupled weight decay whose update of each tensor is scaled to the norm of its weights.

    With g the gradient, already clipped over all tensors (`clip_by_global_norm_`, step 2 of NVLAMB), at step t:

        m = b1 m + (1 - b1) g                  v = b2 v + (1 - b2) g^2
        m_hat = m / (1 - b1^t)                 v_hat = v / (1 - b2^t)
        u = m_hat / (sqrt(v_hat) + eps) + weight_decay w
        w = w - lr r u      r = |w| / |u| of the tensor if neither norm is zero, else 1

    r is not clipped: the paper leaves bounds on |w| open, NVIDIA's kernels have none. A step is a few multi-tensor
    operations and never waits for the device: norms and counters stay there, in `state[p]` as `step` (fp32, 0-dim),
    `exp_avg` (m) and `exp_avg_sq` (v). Weights must be fp32 or fp64: updates are smaller than the last bit of 16-bit
    weights. Parameters without a gradient are skipped.

    Args:
        params: parameters or groups of them; a group may override every option below. The parameters of a group have
            one device and one dtype.
        lr: learning rate.
        betas: decay rates b1 and b2 of the moments m and v.
        eps: added to sqrt(v_hat), outside of the root.
        weight_decay: factor of the decoupled weight decay.
        bias_correction: False: m_hat is m and v_hat is v.
        trust_ratio: False: r is 1 (AdamW). NVIDIA's PyTorch recipe turns it off for parameters without weight decay
            (lamb_amp_opt/csrc/multi_tensor_lamb.cu, LAMBStage2Functor with use_nvlamb off): biases and
            LayerNorm. The paper (algorithm 2) and NVIDIA's TensorFlow recipe do not.
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
            "capturable": True,  # makes load_state_dict put the step counters on the device, as fp32
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update the weights from their gradients.

        Args:
            closure: computes the gradients first, as with any torch optimizer.

        Returns:
            The result of `closure`; None without one.
        """
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
        # _foreach operations launch one kernel for many tensors: with a loop per tensor, BERT-large's 400 tensors would
        # cost thousands of launches per step.
        states = [self._state_of(parameter) for parameter in params]
        steps, first, second = ([state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq"))
        torch._foreach_add_(steps, 1)
        _decay_moments(first, second, [parameter.grad for parameter in params], group["betas"])
        # The order is NVLAMB's: moments of the clipped gradient, Adam's direction, then decay, then the ratio of the
        # norm with the decay in it. Decay after the ratio would be another optimizer.
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
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
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
    """Return 1 - beta^t of both moments for each tensor, [tensors] each."""
    # In fp64: 1 - 0.999^t cancels, so that at the first steps fp32 has four digits less. From the counters on the
    # device, since reading them would make the host wait in every step.
    count = torch.stack(steps).to(torch.float64)
    first, second = ((1 - beta**count).to(dtype) for beta in betas)
    return list(first.unbind()), list(second.unbind())


def _adam_direction(
    first: list[Tensor], second: list[Tensor], corrections: tuple[list[Tensor], list[Tensor]] | None, eps: float
) -> list[Tensor]:
    """Return m_hat / (sqrt(v_hat) + eps) as new tensors; the moments do not change."""
    if corrections is None:
        roots, updates = torch._foreach_sqrt(second), tuple(first)
    else:
        roots = torch._foreach_div(second, corrections[1])
        torch._foreach_sqrt_(roots)
        updates = torch._foreach_div(first, corrections[0])
    torch._foreach_add_(roots, eps)
    return list(torch._foreach_div(updates, roots))


def _trust_ratios(params: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """Return |w| / |u| of each tensor, 0-dim each; 1 if either norm is zero."""
    # A tensor of zeros, such as a bias at the start, would otherwise never move: its ratio would be 0. The branch is a
    # masked_fill, since an `if` would read the norms on the host.
    weights, lengths = l2_norms(params), l2_norms(updates)
    return list((weights / lengths).masked_fill((weights == 0) | (lengths == 0), 1.0).unbind())


def l2_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the L2 norms of tensors, [len(tensors)].

    On the CPU torch sums squares one after another: in fp32 the norm of an embedding table of 23 M elements is 0.13%
    too small and depends on the number of threads. There, a norm is the norm of the norms of blocks, which is correct
    to 1e-6 for any number of threads. GPU kernels sum in blocks themselves.
    """
    if all(tensor.is_cuda for tensor in tensors):
        return torch.stack(torch._foreach_norm(list(tensors)))
    return torch.stack([_norm_by_blocks(tensor.reshape(-1)) for tensor in tensors])


def _norm_by_blocks(flat: Tensor) -> Tensor:
    end = flat.numel() // _BLOCK * _BLOCK
    blocks = torch.linalg.vector_norm(flat[:end].view(-1, _BLOCK), dim=1)
    rest = torch.linalg.vector_norm(flat[end:])
    return torch.linalg.vector_norm(torch.cat([blocks, rest[None]]))


@torch.no_grad()
def clip_by_global_norm_(grads: Sequence[Tensor], max_norm: float) -> Tensor:
    """Scale gradients in place so that their joint L2 norm is at most `max_norm`.

    NVLAMB, step 2: g / (norm / max_norm) where norm > max_norm, else g unchanged; no epsilon. Call it once per
    optimizer step, after accumulation, reduction and unscaling. It does not wait for the device.

    Args:
        grads: at least one gradient, all on one device. If one is not finite, neither is the returned norm, and
            `grads` must not be used.
        max_norm: the bound; math.inf to measure only.

    Returns:
        The norm before clipping, a 0-dim tensor.
    """
    grads = list(grads)
    norm = torch.linalg.vector_norm(l2_norms(grads))
    # On a GPU always divide: the comparison would make the host wait for the device. On the CPU reading the norm is
    # free, and dividing by 1 is not. `not <=`, so that NaN takes the branch too.
    if norm.is_cuda or not norm <= max_norm:
        torch._foreach_div_(grads, (norm / max_norm).clamp(min=1.0))
    return norm
