"""What a fine-tuning job needs, for the laptop, which validates it first, and for the job, which does again."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from train_jobs.config.base import Config

Column = Annotated[str, Field(min_length=1)]


class ColumnsConfig(Config):
    """What the columns of the user's own tables are."""

    text: Column = "text"
    """Column of the text, or of the first of two."""
    pair: Column | None = None
    """Column of the second text. None: there is one text a row."""
    label: Column = "label"
    """Column of what is to be predicted."""
    regression: bool = False
    """Labels are numbers, and a number is predicted. Off, they are names of classes, whatever they look like."""
    format: Literal["auto", "tsv", "csv", "jsonl", "parquet"] = "auto"
    """What the files are. auto: what their names end in."""
    quoting: bool | None = None
    """TSV and CSV: a field in quotation marks may hold separators and ends of lines. None: in CSV, not in TSV."""

    @model_validator(mode="after")
    def _columns_differ(self) -> ColumnsConfig:
        names = [name for name in (self.text, self.pair, self.label) if name is not None]
        if len(set(names)) < len(names):
            raise ValueError(f"text, pair and label must be different columns, and are {', '.join(names)}")
        return self
