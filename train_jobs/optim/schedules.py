"""Learning rate as a pure function of the optimizer step."""

from __future__ import annotations

from train_jobs.config import ScheduleConfig


def learning_rate(config: ScheduleConfig, peak: float, *, step: int, total_steps: int) -> float:
    """The learning rate of one optimizer step.

    With x = (step + 1) / total_steps and w = warmup_fraction, NVIDIA's rule (DeepLearningExamples, schedules.py):

        x < w    peak x / w
        else     peak (1 - x)^power                polynomial
                 peak ((1 - x) / (1 - w))^power    polynomial, continuous
                 peak                              constant

    so the polynomial ends at zero in the last step, and unless continuous it jumps at the end of warm-up: to 0.846 of
    the peak for w = 0.2843 and power 0.5.

    Args:
        config: the shape.
        peak: the highest rate.
        step: the optimizer's own, counted from 0: steps skipped for gradients that are not finite do not count.
        total_steps: steps of the whole run.
    """
    assert 0 <= step < total_steps, f"step {step} of {total_steps}"
    progress = (step + 1) / total_steps
    warmup = config.warmup_fraction
    if progress < warmup:
        return peak * progress / warmup
    if config.name == "constant":
        return peak
    remaining = (1 - progress) / (1 - warmup) if config.continuous else 1 - progress
    return peak * remaining**config.power
