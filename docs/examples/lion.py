"""Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2): every weight moves by the learning rate, or not at all.

    orchestrator submit pretrain --code docs/examples --set optimizer=lion:Lion --set optimizer.learning_rate=1e-4

The paper takes a learning rate 3 to 10 times smaller than AdamW's, and a weight decay as many times larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Sign of an interpolated momentum, with decoupled weight decay.

    Args:
        params: parameter groups, as any optimizer of torch takes them.
        lr: learning rate; the schedule sets it before each step.
        betas: of the interpolation, and of the momentum.
        weight_decay: decoupled; each group comes with its own.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the weights from their gradients."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]  # tensors and plain values in it are part of every checkpoint
                momentum = state.setdefault("momentum", torch.zeros_like(weight))
                direction = torch.lerp(weight.grad, momentum, beta1).sign_()
                weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=group["lr"])
                momentum.lerp_(weight.grad, 1 - beta2)
        return loss
