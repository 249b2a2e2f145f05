"""Figures of a validation: means over sources, unigram entropy of exactly the validated tokens, and an error bar.

Sums are additive, so processes add theirs. A mean is taken within each source and weighted by the source's share of the
held-out tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from train_jobs.corpus.examples.validation_sample import HeldOutSample

Floats = npt.NDArray[np.float64]
UNIGRAM, OWN_UNIGRAM, LABELS, BATCHES, MARGIN, MARGIN_SQUARE, MARGIN_LABELS, LABELS_SQUARE = range(8)
SUMS = 8


class UnigramModel:
    """Word frequencies of the validated sequences.

    Args:
        sample: of each source.
        vocab_size: ids are below this.
        separator: id of a token that is never predicted.
    """

    def __init__(self, sample: Sequence[HeldOutSample], vocab_size: int, *, separator: int) -> None:
        counts = [np.bincount(one.examples.tokens, minlength=vocab_size) for one in sample]
        for count in counts:
            count[separator] = 0
        own = [count / count.sum() for count in counts]
        mixture = sum((one.share * shares for one, shares in zip(sample, own, strict=True)), np.zeros(vocab_size))
        with np.errstate(divide="ignore"):  # pieces that do not occur are never looked up
            self._own, self._mixture = [-np.log(shares) for shares in own], -np.log(mixture)

    @property
    def base_rate(self) -> float:
        """Share of the most frequent piece: the accuracy of always predicting it."""
        return float(np.exp(-self._mixture.min()))

    def sums(self, source: int, labels: npt.NDArray[np.int64], loss: float) -> Floats:
        """Return the sums of a batch, [SUMS].

        Args:
            source: index of the batch's source in the sample.
            labels: [tokens] the tokens to predict.
            loss: sum of the model's losses over these tokens.
        """
        unigram, count = float(self._mixture[labels].sum()), float(len(labels))
        margin = loss - unigram
        own = float(self._own[source][labels].sum())
        return np.array([unigram, own, count, 1.0, margin, margin**2, margin * count, count**2])


def unigram_figures(sample: Sequence[HeldOutSample], sums: Floats, *, with_margin: bool) -> dict[str, float]:
    """Return unigram_entropy, in nats; its parts by source if there are several; and the margin's standard error.

    Args:
        sample: of each source.
        sums: [sources, SUMS] of all processes.
        with_margin: the losses in the sums are those of a masked language model.
    """
    found = {"unigram_entropy": 0.0}
    variance, batches = 0.0, 0.0
    for one, each in zip(sample, sums, strict=True):
        found["unigram_entropy"] += one.share * each[UNIGRAM] / each[LABELS]
        mean = each[MARGIN] / each[LABELS]
        # A ratio of sums over batches, Cochran 1977, Sampling Techniques, section 6.4: batches are the clusters.
        residuals = each[MARGIN_SQUARE] - 2 * mean * each[MARGIN_LABELS] + mean**2 * each[LABELS_SQUARE]
        if each[BATCHES] > 1:
            variance += (one.share / each[LABELS]) ** 2 * max(residuals, 0.0) * each[BATCHES] / (each[BATCHES] - 1)
            batches += each[BATCHES]
    for name, each in zip(slugs(sample), sums, strict=True):
        found |= {f"unigram_entropy.{name}": float(each[OWN_UNIGRAM] / each[LABELS])} if len(sample) > 1 else {}
    found["unigram_entropy"] = float(found["unigram_entropy"])
    return {**found, "unigram_margin_error": float(variance**0.5)} if with_margin and batches else found


def weighted_mean(sample: Sequence[HeldOutSample], figures: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each figure over sources, weighted by their shares; with several sources, add those of each.

    Args:
        sample: of each source.
        figures: of each source.
    """
    means = {
        name: sum(one.share * each[name] for one, each in zip(sample, figures, strict=True)) for name in figures[0]
    }
    if len(sample) > 1:
        for name, each in zip(slugs(sample), figures, strict=True):
            means |= {f"{figure}.{name}": value for figure, value in each.items() if figure != "loss"}
    return means


def slugs(sample: Sequence[HeldOutSample]) -> list[str]:
    """Return a name of each source that metric stores accept, without duplicates."""
    plain = [re.sub(r"[^A-Za-z0-9_-]+", "-", one.name).strip("-") or "source" for one in sample]
    return [name if plain.count(name) == 1 else f"{name}-{index}" for index, name in enumerate(plain)]
