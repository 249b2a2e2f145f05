"""Learning rate as a pure function of how far a run is."""

from __future__ import annotations

import math

from train_jobs.config import ScheduleConfig


def learning_rate(config: ScheduleConfig, peak: float, *, step: int, total_steps: int, time_used: float = 0.0) -> float:
    """The learning rate of one optimizer step.

    With progress x = max((step + 1) / total_steps, time_used), at most 1, and w = warmup_fraction:

        x < w    peak x / w
        else     peak (1 - x)^power                          polynomial
                 peak ((1 - x) / (1 - w))^power              polynomial, continuous
                 peak (1 + cos(pi (x - w) / (1 - w))) / 2    cosine
                 peak                                        constant

    Polynomial and constant are NVIDIA's (DeepLearningExamples, PyTorch BERT, schedulers.py, PolyWarmUpScheduler): the
    polynomial ends at zero in the last step, and unless continuous it jumps at the end of warm-up: to 0.846 of the peak
    for w = 0.2843 and power 0.5. The cosine is that of Loshchilov and Hutter 2017 (arXiv 1608.03983, equation 5, one
    period); NVIDIA's CosineWarmUpScheduler adds pi to the progress where it is to be multiplied, and has no equal here.

    AzureML-BERT (pretrain/PyTorch/optimization.py, warmup_linear_decay_exp) counts the step in hand from 0, so that its
    first rate is zero; with x = max(step / total_steps, time_used):

        x < w    peak x / w
        else     peak decay_rate^((x - w) total_steps / decay_steps)    exponential

    Without any warm-up its rate never decays; here it does.

    Args:
        config: the shape.
        peak: the highest rate.
        step: the optimizer's own, counted from 0: steps skipped for gradients that are not finite do not count.
        total_steps: steps of the whole run.
        time_used: share of the run's hours that is over; past 1 it counts as 1.
    """
    assert 0 <= step < total_steps, f"step {step} of {total_steps}"
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
