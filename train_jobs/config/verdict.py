"""The verdict of a validation loss: a comparison with the loss of a model that knows only word frequencies."""

from __future__ import annotations

from enum import StrEnum

STANDARD_ERRORS = 2.0


class LossVerdict(StrEnum):
    """The three answers."""

    WORSE = "worse than word frequencies"
    NO_BETTER = "no better than word frequencies"
    LEARNED = "learned from context"


def verdict(loss: float, entropy: float, error: float | None) -> LossVerdict:
    """Return what a loss shows.

    Args:
        loss: of the validated tokens, in nats.
        entropy: unigram entropy of the same tokens, in nats.
        error: standard error of their difference; None: not known, taken as 0.
    """
    reach = STANDARD_ERRORS * (error or 0.0)
    if entropy - loss > reach:
        return LossVerdict.LEARNED
    return LossVerdict.WORSE if loss - entropy > reach else LossVerdict.NO_BETTER


def margin_text(loss: float, entropy: float, error: float | None) -> str:
    """Return the difference with its error bar, in nats: `0.4710 ± 0.0312 below unigram entropy`."""
    bar = f" ± {STANDARD_ERRORS * error:.4f}" if error is not None else ""
    return f"{abs(entropy - loss):.4f}{bar} {'below' if loss < entropy else 'above'} unigram entropy"
