"""What a token store is made from: the sections that preparing text and training on it share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from train_jobs.config.base import Config, CountOrAuto
from train_jobs.config.text import CleanConfig, SourceConfig


class TextConfig(Config):
    """Text in, tokens out."""

    text: list[SourceConfig] = Field(default=[])
    """Sources of text: files, folders and globs, each a string, or {path, format, column, weight, name}; or {dataset}.
    Blank lines separate the documents of a plain text file. Empty: the embedded corpus."""
    clean: CleanConfig = CleanConfig()
    """What makes a document fit to learn from."""
    vocabulary: Path | None = None
    """A WordPiece vocab.txt to use. None: one is trained on the text."""
    vocab_size: Annotated[int, Field(ge=64, le=1_000_000)] = 30_522
    """Pieces of the vocabulary trained here (fewer if the text does not hold as many); ignored with `vocabulary`. Of
    more than 256 MB of text, it is trained on documents of that size together, chosen by a hash of their text."""
    lowercase: bool = True
    """Lower-case the text and strip accents, as the uncased BERT does."""
    add_tokens: list[str] = Field(default=[])
    """Words that the vocabulary is to have besides: a list, or a UTF-8 file of one a line. When training starts from
    `init_from`, each gets a row behind the others, at first the mean of the pieces that the word was spelled with."""
    validation_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    """Share of documents held out for validation, chosen by a hash of their text."""
    workers: CountOrAuto = "auto"
    """Processes on each machine that make text into tokens, each with some 500 MB of memory; the result does not depend
    on it. auto: one for each core."""


class PrepareConfig(Config):
    """Everything that `python -m train_jobs.prepare --config FILE` reads from FILE."""

    data: TextConfig = TextConfig()
    store: Path | None = None
    """Folder that becomes the token store, on a disk that all nodes see. None: a folder named by its content beside
    those of training, which finds it there for the same text and settings."""
    keep_steps: bool = False
    """Keep what the steps left (cleaned documents and their hashes, about the size of the compressed text) in the
    store's folder `parts`: the next preparation with other sources or settings then redoes only what it has to."""

    @model_validator(mode="after")
    def _tokens_are_added_to_something(self) -> PrepareConfig:
        if self.data.add_tokens and self.data.vocabulary is None:
            raise ValueError(
                "data.add_tokens adds to data.vocabulary, and there is none: one trained on the text has its words"
            )
        return self


def not_shaping(data: dict[str, Any]) -> dict[str, Any]:
    """A section of text as JSON has it, without what no result depends on."""
    return {key: value for key, value in data.items() if key != "workers"}
