"""The configuration of a preparation: text, cleaning and vocabulary; pretraining shares these sections."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from train_jobs.config.errors import did_you_mean
from train_jobs.config.fields import CheckedConfig, Config, CountOrAuto
from train_jobs.config.urls import StorePlace, has_secret, is_url

AUTO: Final = "auto"
FlagOrAuto = bool | Literal["auto"]
Format = Literal["auto", "text", "wikipedia", "wikiextractor", "jsonl", "csv", "tsv", "parquet", "dataset"]
FILE, BLANK_LINE, LINE = "file", "blank-line", "line"  # of `SourceConfig.document`; also AUTO
DOCUMENT_RULES: Final = (AUTO, FILE, BLANK_LINE, LINE)


class SourceConfig(CheckedConfig):
    """One source of a corpus: files of one format, or a dataset by name."""

    path: list[str] = Field(default=[])
    """Files, folders and globs (`dumps/*.xml.bz2`): a list or a single string. Or URLs of an object store
    (`s3://`, `gs://`, `abfss://`), which need the extra `remote`; credentials come from the environment."""
    dataset: str | None = None
    """Hugging Face dataset instead of `path`: NAME[:CONFIGURATION][@SPLIT]; the default SPLIT is `train`. NAME may be a
    folder that `datasets.load_dataset` reads; jobs on Azure read datasets of the Hub only."""
    format: Format = "auto"
    """text (UTF-8, see `document`), wikipedia (MediaWiki XML dump), wikiextractor (its output), jsonl,
    csv, tsv (a row is a document), parquet, dataset. auto: from the names and the first bytes of the files; a table
    is read if it has the column."""
    column: str = "text"
    """jsonl, csv, tsv, parquet, dataset: column that contains the text of a document."""
    document: str = AUTO
    """Plain text: what separates documents. file (each file is one), blank-line (as in Google's format), line, or a
    PATTERN: a regular expression; each line that it matches from its beginning begins a document, and the characters
    that it matches are dropped (`(?=CHAPTER )` keeps them). auto: file for several books (files of 50 kB to 32 MB of
    text with blank lines less than 600 bytes apart on average, a tenth of them less than 100), otherwise blank-line;
    the plan shows which."""
    strip_gutenberg: bool = False
    """Plain text: drop the header, footer and licence of Project Gutenberg."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Passes over this source per epoch: 2 uses it twice, 0.5 uses half of it, then the other half. Sources are mixed
    throughout the epoch."""
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
        """Yield one message per contradiction between values of the section."""
        if bool(self.path) == (self.dataset is not None):
            yield "exactly one of `path` and `dataset` is required"
        if self.format != "auto" and (self.format == "dataset") == bool(self.path):
            yield f"format {self.format} is not valid for a `{'path' if self.path else 'dataset'}`"
        if self.format not in {"auto", "text"} or self.dataset is not None:
            read_by_rule = {"document": self.document != AUTO, "strip_gutenberg": self.strip_gutenberg}
            yield from (f"{key} is for plain text" for key, is_set in read_by_rule.items() if is_set)
        urls = [path for path in self.path if is_url(path)]
        if urls and len(urls) < len(self.path):
            yield "a source has either paths or URLs: give two sources"
        if any(map(has_secret, urls)):
            yield "a URL must not contain a password or a signature: set credentials in the environment"
        yield from self._document_problems()

    def _document_problems(self) -> Iterator[str]:
        if self.document not in DOCUMENT_RULES and re.fullmatch(r"[a-z_-]*", self.document):
            names = f"{', '.join(DOCUMENT_RULES)} or a pattern such as ^CHAPTER"
            yield f"document must be {names}{did_you_mean(self.document, DOCUMENT_RULES)}"
        try:
            re.compile(self.document)
        except re.error as problem:
            yield f"document is not a valid pattern: {problem}"

    @property
    def title(self) -> str:
        """Name of the source: `name`, or the names of its files, or its dataset."""
        if self.name is not None:
            return self.name
        if self.dataset is not None:
            return self.dataset
        return ", ".join(PurePath(path).name or path for path in self.path)

    def dataset_parts(self) -> tuple[str, str | None, str]:
        """Return name, configuration (None: default) and split of `dataset`."""
        assert self.dataset is not None, "the source consists of files"
        written, _, split = self.dataset.partition("@")
        return dataset_name(written), written.partition(":")[2] or None, split or "train"

    @property
    def dataset_folder(self) -> Path | None:
        """Folder of a dataset on this machine; None: a name on the Hub, or files."""
        folder = None if self.dataset is None else Path(self.dataset_parts()[0])
        return folder if folder is not None and folder.is_dir() else None

    @model_serializer(mode="wrap")
    def _as_written(self, full: SerializerFunctionWrapHandler) -> Any:
        """Return a source with only a path as that path, the short form in a configuration."""
        if len(self.path) == 1 and self == SourceConfig(path=self.path):
            return self.path[0]
        return full(self)


def dataset_name(dataset: str) -> str:
    """Return the name or folder of a Hugging Face dataset that is written NAME[:CONFIGURATION][@SPLIT]."""
    return dataset.partition("@")[0].partition(":")[0]


class CleanConfig(Config):
    """Cleaning rules for documents."""

    min_characters: Annotated[int, Field(ge=0)] = 1
    """Minimum characters of a document; shorter ones are dropped and counted."""
    max_characters: Annotated[int, Field(ge=1)] | None = None
    """Maximum characters of a document; longer ones are split at the end of a line. None: any length."""
    drop_duplicates: bool = True
    """Keep only the first of documents whose text is identical apart from white space, across all sources."""


_PLACE = re.compile(r"(\[[^\]\s]+\]|[^\s:/@\[\]]*):([0-9]{1,5})")
_MOST_PORT = 65_535


def _is_place(text: str, *, any_host: bool = False) -> bool:
    """Return whether a text is HOST:PORT; with `any_host` the host may be empty."""
    found = _PLACE.fullmatch(text)
    return found is not None and bool(found[1] or any_host) and 1 <= int(found[2]) <= _MOST_PORT


EXECUTOR_PATHS = tuple(f"data.executor.{name}" for name in ("scheduler_file", "tls_ca_file", "tls_cert", "tls_key"))


MIN_BYTES_FOR_WORKERS = 16 << 20  # of text; one process finishes less than that before workers have started


class ExecutorConfig(CheckedConfig):
    """Settings of the executor of the work on the parts of the text; a plain string sets only the name."""

    name: Literal["auto", "processes", "dask"] = "auto"
    """processes: worker processes of this machine. dask: a Dask cluster, an existing one or, without `scheduler` and
    `scheduler_file`, one that the job starts on its own nodes and ends. auto: processes on one node, dask on several
    nodes for 16 MB of text or more. The result does not depend on it."""
    scheduler: str | None = None
    """dask: address of the scheduler of an existing cluster, such as tls://10.0.0.4:8786. The workers must see the text
    and the store at the same paths, and have the same versions of all packages."""
    scheduler_file: Path | None = None
    """dask: scheduler file of an existing cluster, as `dask scheduler --scheduler-file` and dask-jobqueue write it."""
    tls_ca_file: Path | None = None
    """dask: certificate of the authority of the scheduler. None: the setting of Dask's own configuration."""
    tls_cert: Path | None = None
    """dask: certificate of this client, PEM."""
    tls_key: Path | None = None
    """dask: private key of this client, PEM."""
    dashboard: str | None = None
    """dask: HOST:PORT of the dashboard of a cluster that the job starts; requires the package bokeh. It has neither
    password nor encryption. None: no dashboard."""

    @model_validator(mode="before")
    @classmethod
    def _name_is_a_section(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @property
    def is_existing(self) -> bool:
        """Whether the cluster exists already."""
        return self.scheduler is not None or self.scheduler_file is not None

    def starts_cluster(self, nodes: int, text_bytes: int, *, at_least: int = MIN_BYTES_FOR_WORKERS) -> bool:
        """Return whether the nodes start a Dask cluster and share the work.

        Args:
            nodes: machines.
            text_bytes: bytes of the files of the text; 0: not known, such as for a dataset by name.
            at_least: bytes of text for which auto starts one.
        """
        if self.name == "auto":
            return nodes > 1 and (text_bytes == 0 or text_bytes >= at_least)
        return self.name == "dask" and not self.is_existing

    def problems(self) -> Iterator[str]:
        """Yield one message per contradiction between values of the section."""
        used = [key for key, value in self if key != "name" and value is not None]
        if used and self.name != "dask":
            yield f"{', '.join(used)} requires name: dask, and name is {self.name}"
        if self.scheduler is not None and self.scheduler_file is not None:
            yield "scheduler and scheduler_file exclude each other"
        if self.dashboard is not None and self.is_existing:
            yield "dashboard is for a cluster that the job starts"
        elif self.dashboard is not None and not _is_place(self.dashboard, any_host=True):
            yield f"dashboard '{self.dashboard}' is not HOST:PORT, such as 127.0.0.1:8787"
        yield from self._scheduler_problems()
        yield from self._tls_problems()

    def _scheduler_problems(self) -> Iterator[str]:
        if self.scheduler is None:
            return
        scheme, _, place = self.scheduler.rpartition("://")
        if scheme not in {"", "tcp", "tls"}:
            yield f"scheduler '{self.scheduler}' must begin with tcp:// or tls://"
        elif not _is_place(place):
            yield f"scheduler '{self.scheduler}' is not tcp://HOST:PORT or tls://HOST:PORT with a port of 1 to 65535"

    def _tls_problems(self) -> Iterator[str]:
        files = (self.tls_ca_file, self.tls_cert, self.tls_key)
        if not any(files):
            return
        if not self.is_existing:
            yield "tls_* is for an existing cluster: the job makes certificates for its own"
        if not all(files):
            yield "tls_ca_file, tls_cert and tls_key belong together: Dask's connections use mutual TLS"
        if self.scheduler is not None and not self.scheduler.startswith("tls://"):
            yield "tls_* requires a scheduler of the form tls://HOST:PORT"


class TextConfig(Config):
    """Text, cleaning and vocabulary."""

    text: list[SourceConfig] = Field(default=[])
    """Sources of text: files, folders and globs, each a string or {path, format, column, document,
    strip_gutenberg, weight, name}; or {dataset}. Empty: the embedded corpus."""
    clean: CleanConfig = CleanConfig()
    """Cleaning rules for documents."""
    vocabulary: Path | None = None
    """WordPiece vocab.txt to use. None: train one on the text."""
    vocab_size: Annotated[int, Field(ge=64, le=1_000_000)] = 30_522
    """Maximum pieces of the vocabulary to train; ignored with `vocabulary`. It is trained on at most 256 MB of
    documents, sampled by a hash of their text."""
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
    """Words to add to the vocabulary: a list, or a UTF-8 file with one word per line. With `init_from`, the embedding
    of a new word starts as the mean of its former pieces."""
    validation_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    """Share of documents held out for validation, chosen by a hash of their text."""
    workers: CountOrAuto = "auto"
    """Worker processes per machine, about 500 MB of memory each; the result does not depend on their number. auto: one
    per core."""
    executor: ExecutorConfig = ExecutorConfig()
    """What runs the work on the parts of the text: auto, processes or dask."""


class PrepareConfig(CheckedConfig):
    """Configuration file of `python -m train_jobs.prepare --config FILE`."""

    data: TextConfig = TextConfig()
    store: StorePlace | None = None
    """Folder of the new token store, on a disk that all nodes share, or its URL, from which it must be copied before
    training. None: a folder in the cache of token stores, where training finds it for the same text and settings."""
    keep_steps: bool = False
    """Keep intermediate files (cleaned documents and their hashes, about the size of the compressed text) in the
    store's folder `parts`. The next preparation with other sources or settings then repeats only the changed steps."""

    def problems(self) -> Iterator[str]:
        """Yield one message per contradiction between values of the section."""
        if self.data.add_tokens and self.data.vocabulary is None:
            yield "data.add_tokens requires data.vocabulary: a vocabulary trained on the text contains its words"
        if isinstance(self.store, str):
            executor = self.data.executor
            if has_secret(self.store):
                yield "a URL must not contain a password or a signature: set credentials in the environment"
            if executor.name == "dask" and not executor.is_existing:
                yield "a store by URL needs executor processes or an existing Dask cluster: nodes meet on a shared disk"


def result_settings(data: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a section `data` without the keys that do not affect the result."""
    return {key: value for key, value in data.items() if key not in {"workers", "executor"}}
