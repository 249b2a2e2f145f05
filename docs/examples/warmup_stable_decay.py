"""Warm-up, a plateau, a decay to zero (Hu et al. 2024, arXiv 2404.06395): the plateau may be of any length.

orchestrator submit pretrain --code docs/examples --set schedule=warmup_stable_decay:warmup_stable_decay
"""

from __future__ import annotations


def warmup_stable_decay(
    *, step: int, total_steps: int, time_used: float, peak: float, warmup: float = 0.01, decay: float = 0.1
) -> float:
    """Return the learning rate of a step.

    Args:
        step: optimizer steps made.
        total_steps: of the run.
        time_used: share of the run's hours that is over, where it has a budget of them.
        peak: the rate of the plateau.
        warmup: share of the run before the plateau.
        decay: share of the run after it.
    """
    progress = min(max((step + 1) / total_steps, time_used), 1.0)
    if progress < warmup:
        return peak * progress / warmup
    return peak * min((1 - progress) / decay, 1.0)
