"""Where the loss of a pretraining is expected: what chance and word frequencies come to, and what was published.

"Is my loss normal?" is what users of the original recipes ask most (google-research/bert issues 90 and 649,
microsoft/AzureML-BERT issue 46).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from orchestrator.reports.charts.charts import Corridor, Reference

NVIDIA_LARGE = "large-nvidia-phase1"
NVIDIA_LARGE_LONG = "large-nvidia-phase2"
GOOGLE_BASE = "base-google"
# The loss curve in the README of NVIDIA's DeepLearningExamples, PyTorch/LanguageModeling/BERT, phase 1, as far as it
# can be read off a picture: step, loss of MLM and NSP together.
CURVE = ((0, 11.0), (200, 7.8), (650, 6.4), (1000, 3.6), (2000, 2.1), (7038, 1.4))
SOONER_OR_LATER = 1.25  # times the step: the plateau of BERT-large ends earlier or later by the seed and the text
ABOVE_OR_BELOW = 0.08  # of the loss: seeds differ by 2%, texts and readings of the picture by more
PHASE_2 = Reference("NVIDIA's end (5 seeds, sd 0.023)", 1.265)  # the same README, its table of stability
PERPLEXITY_4 = Reference("Google's BERT-base, held out", math.log(4.0))  # google-research/bert issue 90
SHAPING = ("train.steps", "train.global_batch_size", "optimizer.learning_rate", "optimizer.name", "schedule.name")


def levels(plan: Mapping[str, Any], entropy: float | None) -> tuple[Reference, ...]:
    """What the MLM loss is to be compared with: all pieces equally likely, as before the first step; frequencies.

    Args:
        plan: `Plan.as_dict()`.
        entropy: of the held-out tokens' own frequencies, in nats; None: not known yet.
    """
    guess = _even_guess(plan)
    found = [Reference("even guess", guess)] if guess is not None else []
    found += [Reference("unigram entropy", entropy)] if entropy is not None else []
    found += [PERPLEXITY_4] if _as_published(plan, GOOGLE_BASE) else []
    return tuple(found)


def frequencies_alone(plan: Mapping[str, Any], entropy: float | None, last_step: int) -> Corridor | None:
    """Where a model is that has learned nothing of context: between an even guess and unigram entropy."""
    guess = _even_guess(plan)
    if guess is None or entropy is None or entropy >= guess:
        return None
    return Corridor("no context learned yet", ((0, entropy, guess), (max(last_step, 1), entropy, guess)))


def published(plan: Mapping[str, Any]) -> tuple[Corridor | None, tuple[Reference, ...]]:
    """Where the loss of a published recipe was, MLM and NSP together; nothing where the recipe was changed."""
    if _as_published(plan, NVIDIA_LARGE):
        source = (
            "Corridor: NVIDIA's curve of the same recipe on Wikipedia and books, read off a picture, a quarter of the"
            f" steps sooner or later and {ABOVE_OR_BELOW:.0%} above or below."
        )
        return Corridor("as published", _around(CURVE), source), ()
    return None, ((PHASE_2,) if _as_published(plan, NVIDIA_LARGE_LONG) else ())


def _even_guess(plan: Mapping[str, Any]) -> float | None:
    """The loss of weights that were just drawn; None where training starts from others, or the vocabulary is given."""
    job, data = plan["job"], plan["job"]["data"]
    known = [job.get("init_from"), job.get("phase_from"), data.get("store"), data.get("vocabulary")]
    return None if any(known) else math.log(data["vocab_size"])


def _as_published(plan: Mapping[str, Any], recipe: str) -> bool:
    """Whether it is that recipe, and nothing was changed that bends the curve."""
    return plan["spec"]["recipe"] == recipe and not any(key in plan["changes"] for key in SHAPING)


def _around(curve: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float, float], ...]:
    """A falling curve as a band: the lowest and the highest loss within reach of each step."""
    last = curve[-1][0]
    steps = {
        step
        for at, _ in curve
        for step in (at, round(at * SOONER_OR_LATER), round(at / SOONER_OR_LATER))
        if step <= last
    }
    return tuple(
        (
            step,
            (1 - ABOVE_OR_BELOW) * _at(curve, step * SOONER_OR_LATER),
            (1 + ABOVE_OR_BELOW) * _at(curve, step / SOONER_OR_LATER),
        )
        for step in sorted(steps)
    )


def _at(curve: tuple[tuple[int, float], ...], step: float) -> float:
    """Its value, straight between points; the last one beyond them."""
    for (before, high), (after, low) in pairwise(curve):
        if step <= after:
            return high + (low - high) * (step - before) / (after - before)
    return curve[-1][1]
