"""Configuration of a preparation: text, its cleaning and its vocabulary; training shares these sections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from train_jobs.config.fields import CheckedConfig, Config, CountOrAuto

AUTO: Final = "auto"
FlagOrAuto = bool | Literal["auto"]
Format = Literal["auto", "text", "wikipedia", "wikiextractor", "jsonl", "parquet", "dataset"]


class SourceConfig(CheckedConfig):
    """One source of a corpus: files of one kind, or a dataset by name."""

    path: list[str] = Field(default=[])
    """Files, folders and globs (`dumps/*.xml.bz2`). A string is a list of one."""
    dataset: str | None = None
    """Instead of `path`: a Hugging Face dataset, NAME[:CONFIGURATION][@SPLIT]; SPLIT is `train` if not given."""
    format: Format = "auto"
    """text (UTF-8, blank lines between documents), wikipedia (a MediaWiki XML dump), wikiextractor (its output), jsonl,
    parquet, dataset. auto: by the names and the first bytes of the files."""
    column: str = "text"
    """jsonl, parquet, dataset: field of the document."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Passes of an epoch over this source: 2 is twice, 0.5 every other time."""
    name: str | None = None
    """Name in counts and errors. None: the last part of the path, or the name of the dataset."""

    @model_validator(mode="before")
    @classmethod
    def _one_path_is_a_list(cls, value: object) -> object:
        if isinstance(value, str | Path):
            return {"path": [str(value)]}
        if isinstance(value, dict) and isinstance(value.get("path"), str | Path):
            return {**value, "path": [str(value["path"])]}
        return value

    def problems(self) -> Iterator[str]:
        if bool(self.path) == (self.dataset is not None):
            yield "needs either `path` or `dataset`"
        if self.format != "auto" and (self.format == "dataset") == bool(self.path):
            yield f"format {self.format} is not for a `{'path' if self.path else 'dataset'}`"

    @property
    def title(self) -> str:
        """Name of the source: `name`, or the files or dataset."""
        if self.name is not None:
            return self.name
        if self.dataset is not None:
            return self.dataset
        return ", ".join(PurePath(path).name or path for path in self.path)

    def dataset_parts(self) -> tuple[str, str | None, str]:
        """Return name, configuration and split of `dataset`."""
        assert self.dataset is not None, "a source of files is no dataset"
        name, _, split = self.dataset.partition("@")
        name, _, configuration = name.partition(":")
        return name, configuration or None, split or "train"

    @model_serializer(mode="wrap")
    def _as_written(self, full: SerializerFunctionWrapHandler) -> Any:
        """Write a source with only a path as that path, as the user does."""
        if len(self.path) == 1 and self == SourceConfig(path=self.path):
            return self.path[0]
        return full(self)


class CleanConfig(Config):
    """Rules for documents."""

    min_characters: Annotated[int, Field(ge=0)] = 1
    """Minimum characters of a document; shorter ones are dropped and counted."""
    max_characters: Annotated[int, Field(ge=1)] | None = None
    """Maximum characters of a document; longer ones are split at the end of a line. None: any length."""
    drop_duplicates: bool = True
    """Keep only the first of documents with the same text, over all sources."""


class TextConfig(Config):
    """Text in, tokens out."""

    text: list[SourceConfig] = Field(default=[])
    """Sources of text: files, folders and globs, each a string, or {path, format, column, weight, name}; or {dataset}.
    Blank lines separate the documents of a plain text file. Empty: the embedded corpus."""
    clean: CleanConfig = CleanConfig()
    """Rules for documents."""
    vocabulary: Path | None = None
    """WordPiece vocab.txt to use. None: train one on the text."""
    vocab_size: Annotated[int, Field(ge=64, le=1_000_000)] = 30_522
    """Pieces of the vocabulary to train (fewer if the text has fewer); ignored with `vocabulary`. It is trained on at
    most 256 MB of documents, chosen by a hash of their text."""
    lowercase: bool = True
    """Lower-case the text, as uncased BERT does."""
    strip_accents: FlagOrAuto = "auto"
    """Drop all nonspacing marks: the accents of Latin letters, but the vowels of Hindi and Thai. auto: as the text of
    `vocabulary` was; without one, if the text is lower-cased and at most 0.5% of its characters are such marks, as in
    English."""
    split_unspaced: FlagOrAuto = "auto"
    """Cut scripts without blanks between words (Thai, Lao, Khmer, Burmese, Japanese kana) into characters with their
    marks, as BERT does with Chinese. auto: as the text of `vocabulary` was; without one, if more than 0.5% of the text
    is in these scripts."""
    add_tokens: list[str] = Field(default=[])
    """Words to add to the vocabulary: a list, or a UTF-8 file with one per line. When training starts from `init_from`,
    each gets a new row: the mean of the pieces that spelled the word."""
    validation_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    """Share of documents held out for validation, chosen by a hash of their text."""
    workers: CountOrAuto = "auto"
    """Processes per machine that tokenise text, about 500 MB of memory each; the result does not depend on it. auto:
    one per core."""


class PrepareConfig(CheckedConfig):
    """Everything that `python -m train_jobs.prepare --config FILE` reads from FILE."""

    data: TextConfig = TextConfig()
    store: Path | None = None
    """Folder of the new token store, on a disk that all nodes share. None: a folder named by its content next to those
    of training, which finds it there for the same text and settings."""
    keep_steps: bool = False
    """Keep intermediate files (cleaned documents and their hashes, about the size of the compressed text) in the
    store's folder `parts`: the next preparation with other sources or settings then redoes only the steps that
    change."""

    def problems(self) -> Iterator[str]:
        if self.data.add_tokens and self.data.vocabulary is None:
            yield "data.add_tokens needs data.vocabulary: a vocabulary trained on the text has its words"


def not_shaping(data: dict[str, Any]) -> dict[str, Any]:
    """Return a section of text as JSON, without keys that do not affect the result."""
    return {key: value for key, value in data.items() if key != "workers"}
