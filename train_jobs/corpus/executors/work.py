"""What a worker is told to do, as JSON has it, and how it does it: in this process, or in one of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from train_jobs.config.base import Config
from train_jobs.config.prepare import TextConfig
from train_jobs.corpus.sources import Part
from train_jobs.corpus.steps.duplicates import Stretch
from train_jobs.corpus.steps.extraction import extract
from train_jobs.corpus.steps.tokenisation import tokenise

PART = TypeAdapter(Part)


class Setting(Config):
    """What all tasks of a preparation share."""

    data: TextConfig
    """Sources and rules."""
    store: Path
    """Where shards go."""
    folder: Path
    """Where records go, and documents."""
    block_tokens: int
    """As of `store.StoreWriter`."""


class Task(Config):
    """A step for a part."""

    step: Literal["documents", "tokens"]
    """Which step."""
    number: int
    """Of the part."""
    part: dict[str, Any]
    """The part, as JSON has it."""
    key: str
    """Of the record."""
    size: int
    """Bytes to read: of the part, or of its text."""
    threshold: int = 0
    """tokens: as of `splits.SplitRule`."""
    drop: Stretch = (0, 0)
    """tokens: what to leave out, as of `duplicates.stretches`."""


def perform(setting: Setting, task: Task, advance: Callable[[int, int], None]) -> None:
    """Does it, and leaves the record."""
    part = PART.validate_python(task.part)
    if task.step == "documents":
        extract(setting.data, part, task.number, folder=setting.folder, key=task.key, advance=advance)
        return
    tokenise(
        setting.data,
        task.number,
        part.source,
        folder=setting.folder,
        store=setting.store,
        drop=task.drop,
        threshold=task.threshold,
        key=task.key,
        advance=advance,
        block_tokens=setting.block_tokens,
    )
