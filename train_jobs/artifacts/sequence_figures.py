"""Figures of the sequences of a pretraining: recorded with a token store, and shown before and after a training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from train_jobs.config.fields import Config

if TYPE_CHECKING:  # slow to import, and most readers of these figures need no configuration
    from train_jobs.config import DataConfig, ObjectiveConfig

# Sentence pairs of English books at 64 tokens have 63% random ones, of Wikipedia 58%; of one-sentence documents 100%.
MOST_RANDOM = 0.75
Layout = Literal["pairs", "full-sentences", "doc-sentences"]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class SequenceFigures(Config):
    """Sequences of one length, measured on a sample of the training text."""

    sequence_length: Annotated[int, Field(gt=0)]
    """Length that the sequences were built for."""
    layout: Layout | None
    """Pairs of next-sentence prediction, or `objective.sequences`; None: the user's own objective."""
    tokens_per_sequence: Annotated[float, Field(gt=0)]
    """Mean tokens of a sequence, with [CLS] and [SEP], without padding."""
    text_used: Share
    """Share of the text's tokens that are in a sequence of one pass over the text."""
    random_pairs: Share
    """Share of sequences whose second part is random, so that next-sentence prediction has this base rate."""

    def text(self) -> str:
        """Return the figures as one line."""
        pairs = f", {self.random_pairs:.0%} of pairs random" if self.layout == "pairs" else ""
        return (
            f"{self.tokens_per_sequence:.0f} of {self.sequence_length} tokens on average, "
            f"{self.text_used:.0%} of the text used per pass{pairs}"
        )

    def warnings(self) -> list[str]:
        """Return a warning if most pairs are random."""
        if self.layout != "pairs" or self.random_pairs <= MOST_RANDOM:
            return []
        return [
            f"{self.random_pairs:.0%} of next-sentence pairs are random at {self.sequence_length} tokens (usual: 50% to"
            f" {MOST_RANDOM:.0%}), because few documents have two sentences that follow each other:"
            " objective.next_sentence=false trains without pairs"
        ]


def layout(objective: ObjectiveConfig) -> Layout | None:
    """Return how an objective lays text out as sequences; None: the user's own code decides."""
    if objective.own:
        return None
    return "pairs" if objective.next_sentence else objective.sequences


def find_figures(
    recorded: Iterable[SequenceFigures], data: DataConfig, objective: ObjectiveConfig
) -> SequenceFigures | None:
    """Return the figures for the sequences of a job, if they were recorded."""
    wanted = (data.sequence_length, layout(objective))
    return next((one for one in recorded if (one.sequence_length, one.layout) == wanted), None)
