"""Whether a text is large enough: for its passes, for its vocabulary, and to be trained on at all.

Passes and words are extrapolated from a sample, so they are shown as approximate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from train_jobs.artifacts.text_documents import (
    MIN_DOCUMENTS,
    TextCount,
    too_few_documents,
    too_few_words,
)
from train_jobs.artifacts.text_files import READ_WHOLE, source_files
from train_jobs.artifacts.text_sample import TextFacts
from train_jobs.config import PretrainConfig, TextConfig
from train_jobs.config.prepare import SourceConfig

TOKENS_PER_WORD = 1.3  # of a vocabulary trained on the text; English of BERT's own vocabulary has 1.2 to 1.4
MOST_PASSES = 40  # Muennighoff et al. 2023, section 5: beyond 40 epochs repeated tokens are worth nothing
FILLED = 2.0  # pieces of a vocabulary per distinct word of the text, beyond which it cannot be filled


def passes_over(job: PretrainConfig, tokens: float | None) -> float | None:
    """Return the number of epochs of a pretraining.

    Args:
        job: what is trained.
        tokens: of an epoch: those of each source without held-out documents, times its weight. None: unknown.
    """
    if not tokens:
        return None
    train = job.train
    step = train.batch_tokens or train.global_batch_size * job.data.sequence_length
    return train.steps * step / tokens


def training_tokens(data: TextConfig, text: TextFacts | None) -> float | None:
    """Return the approximate tokens of an epoch, see `passes_over`; None: some of the text was not read."""
    if text is None or text.unread:
        return None
    words = sum(loss.words * source.weight for loss, source in zip(text.losses, data.text, strict=True))
    return words * TOKENS_PER_WORD * (1 - data.validation_fraction) or None


def passes_text(passes: float | None) -> str:
    """Return the passes for the row of steps."""
    if passes is None:
        return ""
    return f", about {passes:,.0f} epochs of the text" if passes >= 2 else f", about {passes:.1f} epochs of the text"


def passes_warnings(job: PretrainConfig, epochs: float | None, weights: Mapping[str, float]) -> Iterator[str]:
    """Yield a warning about more than 40 passes over the text, or over the source that is read most.

    Args:
        job: what is trained.
        epochs: see `passes_over`.
        weights: name of each source -> passes over it in an epoch.
    """
    name, weight = max(weights.items(), key=lambda item: item[1], default=("", 1.0))
    passes = (epochs or 0.0) * weight
    if passes > MOST_PASSES:
        steps = max(int(job.train.steps * MOST_PASSES / passes), 1)
        what = "epochs of the text" if weight == 1 else f"passes over {name}, of weight {weight:g}"
        yield (
            f"{passes:,.0f} {what}: beyond {MOST_PASSES}, repeated text improves nothing:"
            f" --set train.steps={steps}, or more text"
        )


def vocabulary_warnings(data: TextConfig, text: TextFacts | None) -> Iterator[str]:
    """Yield a warning about a vocabulary to train that is larger than the words of the text can fill."""
    distinct = text.distinct_words if text is not None else None
    if data.vocabulary is None and distinct and data.vocab_size > FILLED * distinct:
        size = max(int(FILLED * distinct) // 64 * 64, 64)
        yield (
            f"the text has about {distinct:,} distinct words, too few to fill a vocabulary of {data.vocab_size:,}"
            f" pieces: --set data.vocab_size={size}"
        )


def require_enough_text(data: TextConfig, documents: Sequence[TextCount], text: TextFacts | None) -> None:
    """Refuse a text of which all was counted, and which the job would refuse.

    With `clean.max_characters`, the job cuts documents into several, also inside of words: nothing is refused.

    Args:
        data: the sources.
        documents: counts of the sources with plain text.
        text: how the text becomes words; None for the embedded text.

    Raises:
        DataError: it has a single document, or fewer than 100 distinct words.
    """
    if data.clean.max_characters is not None:
        return
    found = sum(count.documents for count in documents)
    if 0 < found < MIN_DOCUMENTS and all(count.exact for count in documents) and all(map(_is_counted, data.text)):
        raise too_few_documents(f"{found} document")
    if text is not None and text.few_words is not None:
        raise too_few_words(text.few_words)


def _is_counted(source: SourceConfig) -> bool:
    """Return whether `count_documents` counts every document of a source whose text is small."""
    files = source_files(source) if source.path else []
    return source.dataset is None and all(file.format == "text" and file.compression in READ_WHOLE for file in files)
