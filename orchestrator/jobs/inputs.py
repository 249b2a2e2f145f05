"""Inputs of a job, by name, and the keys of its configuration that refer to them.

A kind computes its needs while planning. A backend on another machine delivers the inputs and renders each `At` as the
path that the job finds there; a backend on this machine needs none of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train_jobs.artifacts.fingerprints import DataFingerprint
from train_jobs.artifacts.model_tokenizer import VOCABULARY
from train_jobs.artifacts.text_files import source_files
from train_jobs.config import TextConfig
from train_jobs.config.prepare import SourceConfig
from train_jobs.config.urls import is_url

Content = bytes | Path
DATA, START = "text", "start"  # inputs of jobs: data, and the model or checkpoint that a job starts from


@dataclass(frozen=True)
class JobInput:
    """An input of a job: files of this machine, or data that its site already stores."""

    name: str
    """The input's name in a submission."""
    content_type: str
    """Type of the content: text, store, tables, start."""
    digest: str = ""
    """SHA-256 that identifies its content."""
    remote: str | None = None
    """Name of data at the site; None: the files are on this machine."""
    inline: bool = False
    """Whether it is small enough to be sent with the job's configuration."""
    list_files: Callable[[], Mapping[str, Content]] = dict
    """Function that returns relative name -> content. Called only for an upload, since a folder may be large."""


@dataclass(frozen=True)
class JobOutput:
    """A folder that a job writes to."""

    name: str
    """Its name in a submission."""
    shared: bool = False
    """Whether all runs share it."""


@dataclass(frozen=True)
class At:
    """A path inside an input or output, which is known only once a backend has placed that."""

    name: str
    """Name of the input or output."""
    below: str = ""
    """Relative path in its folder."""


@dataclass(frozen=True)
class Needs:
    """The inputs of a job, and the values of its configuration that depend on their place."""

    inputs: tuple[JobInput, ...] = ()
    """Inputs to deliver to the job."""
    placed: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key of the job's configuration -> value with `At` in it: an `At`, or a list of `At` and of mappings."""
    local: tuple[str, ...] = ()
    """Keys of the configuration that hold paths of this machine."""
    undeliverable: tuple[str, ...] = ()
    """A message for each path that cannot be delivered to another machine."""


def text_needs(data: TextConfig, found: DataFingerprint, remote: str | None) -> Needs:
    """Return the needs of a section of text: its files and its vocabulary.

    Args:
        data: the section.
        found: its text by content.
        remote: name of the text at the site, which replaces the text of this machine; None: no such text.
    """
    inputs, placed = list[JobInput](), dict[str, Any]()
    if remote is not None:
        inputs.append(JobInput(DATA, "text", remote=remote))
        placed["data.text"] = [At(DATA)]
    elif data.text:
        root = _text_root(data.text)
        placed["data.text"] = [_placed_source(source, root) for source in data.text]
        if root is not None:
            inputs.append(JobInput(DATA, "text", found.sha256, list_files=lambda: _text_files(data.text)))
    if data.vocabulary is not None:
        vocabulary = data.vocabulary
        inputs.append(JobInput("vocabulary", "vocabulary", inline=True, list_files=lambda: {VOCABULARY: vocabulary}))
        placed["data.vocabulary"] = At("vocabulary", VOCABULARY)
    folders = [source.dataset_folder for source in data.text] if remote is None else []
    undeliverable = (f"data.text: {folder} is a dataset on this machine" for folder in folders if folder is not None)
    return Needs(tuple(inputs), placed, ("data.text", "data.vocabulary"), tuple(undeliverable))


def model_input(folder: Path, digest: str) -> JobInput:
    """Return the input of a model that a job starts from: the files of its folder."""

    def files() -> dict[str, Content]:
        return {path.name: path for path in sorted(folder.iterdir()) if path.is_file() and path.name[0] != "."}

    return JobInput(START, "start", digest, list_files=files)


def _text_root(text: Sequence[SourceConfig]) -> Path | None:
    """Return the folder that the paths of a text are relative to; None: the job downloads all of it."""
    folders = [Path(path).parent for source in text for path in source.path if not is_url(path)]
    return Path(os.path.commonpath(folders)) if folders else None


def _text_files(text: Sequence[SourceConfig]) -> dict[str, Content]:
    root = str(_text_root(text))
    paths = [file.path for source in text for file in source_files(source)]
    return {path.relative_to(root).as_posix(): path for path in paths if isinstance(path, Path)}


def _placed_source(source: SourceConfig, root: Path | None) -> At | str | dict[str, Any]:
    """Return a source of text with its paths relative to the input; the job reads URLs itself."""
    there: list[At | str] = [
        path if is_url(path) else At(DATA, Path(path).relative_to(str(root)).as_posix()) for path in source.path
    ]
    written = source.model_dump(mode="json")
    if isinstance(written, str):
        return there[0]
    more = {key: value for key, value in written.items() if key != "path" and value is not None}
    return {**({"path": there} if there else {}), **more}
