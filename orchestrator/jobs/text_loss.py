"""Rows and warnings of a plan about letters that a rule for words loses."""

from __future__ import annotations

from collections.abc import Iterator

from train_jobs.artifacts.store_manifest import USUAL_SENTENCE
from train_jobs.artifacts.text_rule import MOST_LOST
from train_jobs.artifacts.text_sample import TextFacts, TextLoss, measure_text
from train_jobs.artifacts.vocabulary_file import pieces_of
from train_jobs.config import TextConfig
from train_jobs.config.prepare import AUTO


def measured_text(data: TextConfig) -> TextFacts | None:
    """Return how the text of a plan becomes words; None for the embedded text, which is English.

    Raises:
        DataError: the vocabulary cannot be read, or a source does not exist.
    """
    if not data.text:
        return None
    return measure_text(data, pieces_of(data.vocabulary) if data.vocabulary else None)


def words_rows(data: TextConfig, text: TextFacts | None) -> Iterator[tuple[str, str]]:
    """Yield how text becomes words, and the shares that are lost."""
    if text is None:
        return
    auto = [key for key in ("strip_accents", "split_unspaced") if getattr(data, key) == AUTO]
    yield "words", text.rule.words + (f" ({' and '.join(auto)}: auto)" if auto else "")
    for loss in text.losses:
        yield (
            "",
            f"{loss.source}: {loss.dropped:.1%} of the characters dropped, {loss.unknown_words:.1%} of the words"
            f" [UNK], by {loss.characters:,} characters of it",
        )
    if text.unread:
        yield "", f"not measured before the job starts: {', '.join(text.unread)}"


def loss_warnings(data: TextConfig, text: TextFacts | None, *, start: str | None = None) -> Iterator[str]:
    """Yield a warning for each source that loses more than 2% of its characters or words.

    Args:
        data: the settings.
        text: what is lost.
        start: key of the model that training starts from, whose rule cannot be changed. None: without one.
    """
    for loss in text.losses if text is not None else ():
        if loss.dropped > MOST_LOST:
            keep = _other_start(start) if start else "--set data.strip_accents=false keeps them"
            yield f"{loss.source}: stripping accents drops or takes apart {loss.dropped:.1%} of the characters; {keep}"
        if max(loss.unknown_words, loss.unknown_text) > MOST_LOST:
            yield (
                f"{loss.source}: {loss.unknown_words:.1%} of the words, {loss.unknown_text:.1%} of the text, become"
                f" [UNK]; {_advice(data, loss, start)}"
            )


def sentence_warnings(text: TextFacts | None) -> Iterator[str]:
    """Yield a warning for each source with so few ends of sentences that most next-sentence pairs are random."""
    for loss in text.losses if text is not None else ():
        if loss.words_per_end > USUAL_SENTENCE[1]:
            yield (
                f"{loss.source}: a sentence has {loss.words_per_end:.0f} words or more on average (usual:"
                f" {USUAL_SENTENCE[0]} to {USUAL_SENTENCE[1]} tokens): most next-sentence pairs will be random;"
                " objective.next_sentence=false trains without pairs"
            )


def _advice(data: TextConfig, loss: TextLoss, start: str | None) -> str:
    if start is not None:
        return _other_start(start)
    if data.vocabulary is None or loss.too_long > MOST_LOST:  # a trained vocabulary loses only words that are too long
        return "--set data.split_unspaced=true keeps scripts without blanks"
    return "--set data.vocabulary=null trains a vocabulary on the text"


def _other_start(key: str) -> str:
    return f"start from a model of that language: --set {key}=MODEL"
