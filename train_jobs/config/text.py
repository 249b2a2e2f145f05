"""Where text comes from and what is done to it before it is tokens, for `prepare` and `pretrain`."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from train_jobs.config.base import Config

Format = Literal["auto", "text", "wikipedia", "wikiextractor", "jsonl", "parquet", "dataset"]


class SourceConfig(Config):
    """One source of a corpus: files of one kind, or a dataset by name."""

    path: list[str] = Field(default=[])
    """Files, folders and globs (`dumps/*.xml.bz2`). A string is a list of one."""
    dataset: str | None = None
    """Instead of `path`: a Hugging Face dataset, NAME[:CONFIGURATION][@SPLIT]; SPLIT is `train` if not given."""
    format: Format = "auto"
    """text (UTF-8, blank lines between documents), wikipedia (a MediaWiki XML dump), wikiextractor (its output), jsonl,
    parquet, dataset. auto: by the names of the files, and by how they begin."""
    column: str = "text"
    """jsonl, parquet, dataset: the field that holds a document."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """How often an epoch goes over this source: 2 is twice, 0.5 every other time."""
    name: str | None = None
    """What it is called in counts and errors. None: the path's last part, or the dataset's name."""

    @model_validator(mode="before")
    @classmethod
    def _one_path_is_a_list(cls, value: object) -> object:
        if isinstance(value, str | Path):
            return {"path": [str(value)]}
        if isinstance(value, dict) and isinstance(value.get("path"), str | Path):
            return {**value, "path": [str(value["path"])]}
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> SourceConfig:
        if bool(self.path) == (self.dataset is not None):
            raise ValueError("needs either `path` or `dataset`")
        if self.format != "auto" and (self.format == "dataset") == bool(self.path):
            raise ValueError(f"format {self.format} is not that of a `{'path' if self.path else 'dataset'}`")
        return self

    @property
    def title(self) -> str:
        """What it is called: `name`, or what it is read from."""
        if self.name is not None:
            return self.name
        if self.dataset is not None:
            return self.dataset
        return ", ".join(PurePath(path).name or path for path in self.path)

    def dataset_parts(self) -> tuple[str, str | None, str]:
        """Name, configuration and split of `dataset`."""
        assert self.dataset is not None, "a source of files is no dataset"
        name, _, split = self.dataset.partition("@")
        name, _, configuration = name.partition(":")
        return name, configuration or None, split or "train"

    @model_serializer(mode="wrap")
    def _as_written(self, full: SerializerFunctionWrapHandler) -> Any:
        """A source of which only the path was said is that path, as the user writes it."""
        if len(self.path) == 1 and self == SourceConfig(path=self.path):
            return self.path[0]
        return full(self)


class CleanConfig(Config):
    """What makes a document fit to learn from."""

    min_characters: Annotated[int, Field(ge=0)] = 1
    """Documents with fewer characters are dropped, and counted."""
    max_characters: Annotated[int, Field(ge=1)] | None = None
    """Documents with more are cut into documents of at most so many, at the end of a line. None: any length."""
    drop_duplicates: bool = True
    """Of documents with the very same text the first is kept, over all sources."""
