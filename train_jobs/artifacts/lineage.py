"""The lineage of a model: links identified by the hash of their content, each of which lists its parents' hashes.

    {"version": 1, "links": [
      {"kind": "data", "name": "notes", "inputs": [], "facts": {...}, "hash": "3f2a..."},
      {"kind": "pretrain", "name": "pretrain-tiny-4e919d08", "inputs": ["3f2a..."], "facts": {...}, "hash": "77aa..."}
    ]}

Parents precede their children, and the model itself is the last link, the head. A hash covers the hashes of the parents
and through them all ancestors, so the hash of the head identifies the complete chain. The document is exported with the
model: it contains names of files and folders, but no path of the machine that wrote it.

A new kind of job adds a kind of link. Facts are hashed as they were written, so old documents always verify.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from train_jobs.artifacts.regular_files import SpecialFileError, read_bytes
from train_jobs.artifacts.sequence_figures import SequenceFigures
from train_jobs.artifacts.text_rule import TextRule, bert_rule
from train_jobs.config import Config, ConflictError, in_shell

METRICS_FILE = "metrics.jsonl"  # one line per report: step, time, metrics

LINEAGE_FILE = "lineage.json"
Kind = Literal["data", "tables", "pretrain", "finetune", "predict", "external"]
READ = ("data", "tables")  # kinds of links that are not models


class Source(Config):
    """A file or folder of text, as the user named it."""

    name: str
    """Name, without folders."""
    files: int
    """Number of files."""
    total_bytes: int
    """Total size of the files in bytes."""
    sha256: str
    """Hash over (relative name, content hash) of every file, in order."""


class DataFacts(Config):
    """Source and content of a token store; equal stores from text with equal names have equal facts."""

    sources: list[Source]
    """The text."""
    text: str
    """Hash of all sources together, as in the plan."""
    license: str | None
    """Licence of the text; None: not stated."""
    store: str
    """Key of the token store, see `records.store_key`."""
    content: str
    """`store_digest` of its shards."""
    vocabulary: str
    """SHA-256 of vocab.txt."""
    vocab_size: int
    """Number of pieces of the vocabulary."""
    lowercase: bool
    """Whether the text was lower-cased."""
    strip_accents: bool | None = None
    """Whether nonspacing marks were dropped. None: if and only if it was lower-cased, in lineages of older versions."""
    split_unspaced: bool = False
    """Whether scripts without blanks were cut into characters."""
    validation_fraction: float
    """Share of documents held out for validation."""
    unigram_entropy: float
    """Entropy in nats of the validation tokens' frequencies."""
    documents: dict[str, int]
    """Documents of each split."""
    tokens: dict[str, int]
    """Tokens of each split."""

    @property
    def rule(self) -> TextRule:
        """Rule for words of the text."""
        return bert_rule(lowercase=self.lowercase, strip_accents=self.strip_accents, split_unspaced=self.split_unspaced)


class ExternalFacts(Config):
    """A model without a lineage of its own."""

    weights: str
    """SHA-256 of the file of weights."""
    file: str
    """Name of that file."""
    architectures: list[str]
    """From its config.json."""
    vocabulary: str
    """SHA-256 of vocab.txt."""
    revision: str | None
    """Commit on the Hugging Face Hub, or version in MLflow's registry, if the model is in the cache of one."""


class Attempt(Config):
    """One start of a run."""

    started: str
    """UTC, ISO 8601."""
    step: int
    """Optimizer steps done before it."""
    processes: int
    """Processes of the job."""
    nodes: int
    """Machines."""
    threads: int
    """CPU threads of each process."""
    device: str
    """cpu or cuda."""
    hardware: str
    """Name of the main process's processor or GPU."""
    precision: str
    """Arithmetic: bf16, fp16 or fp32."""


class PhaseFacts(Config):
    """The checkpoint of an earlier phase that a run started from, with its weights and moments."""

    step: int
    """Optimizer steps of that run."""
    optimizer: str
    """Optimizer of the moments."""
    weights: str
    """SHA-256 of the checkpoint's file of weights, which differs from the exported one."""
    moments: str
    """SHA-256 of the checkpoint's file of moments."""


class RunFacts(Config):
    """A training run; facts with a default are set when it finishes, except `sweep`."""

    run: str | None
    """Handle; None: started without the orchestrator."""
    run_hash: str | None
    """Hash of everything that determines the result, from the run's plan."""
    snapshot: str | None
    """Digest of the code, from the run's plan."""
    sweep: str | None = None
    """Its trial and sweep, and the sweeps that supplied earlier trials. None: not a trial."""
    commit: str | None
    """Git commit that the code was taken from."""
    dirty: bool | None
    """Whether the code differed from that commit."""
    config: dict[str, Any]
    """Configuration of the job, with names instead of paths."""
    commands: dict[str, list[str]]
    """orchestrator or torchrun -> words of the command that repeats the run, with names instead of paths."""
    packages: dict[str, str]
    """Versions of Python and of the packages that affect the result."""
    parameters: int
    """Number of trainable parameters."""
    absent: list[str]
    """Tensors that the initial model lacked, which were initialised at random."""
    attempts: list[Attempt]
    """All starts, the oldest first."""
    ended: str | None = None
    """UTC, ISO 8601."""
    steps: int | None = None
    """Optimizer steps done."""
    metrics: dict[str, float | None] | None = None
    """Metrics of the last validation, or of the exported checkpoint; None for a value that is not finite."""
    weights: str | None = None
    """SHA-256 of the exported model.safetensors."""


class StretchFacts(Config):
    """Interpolation of the position embeddings of an initial model, and its loss."""

    trained: int
    """Positions of the initial model that were trained."""
    stretched: int
    """Positions that they were interpolated to cover."""
    length: int
    """Tokens of a sequence of the run."""
    trained_loss: float
    """Held-out loss of the initial model at `trained` tokens, in nats."""
    stretched_loss: float
    """The same after interpolation, at `length` tokens and before any training."""


class PretrainFacts(RunFacts):
    """A pretraining run."""

    stretch: StretchFacts | None = None
    """Interpolated positions. None: the run interpolated none."""
    phase: PhaseFacts | None = None
    """Source of weights and moments. None: the run is a first phase."""
    sequences: int | None = None
    """Number of sequences trained on."""
    text_use: SequenceFigures | None = None
    """How its sequences use the text; None: recorded by an older version."""


class TablesFacts(Config):
    """The files of a task that a model was fine-tuned on."""

    task: str
    """Name of the task in the configuration."""
    sources: list[Source]
    """One per file."""
    rows: str
    """SHA-256 of the tokens and labels of all rows."""


class FinetuneFacts(RunFacts):
    """A fine-tuning run of one task and one seed, whose best checkpoint is exported."""

    task: str
    """Name of the task."""
    labels: list[str]
    """Names of the classes in the order of their ids; empty for regression and question answering."""
    seed: int
    """Seed of the head, the order of rows and dropout."""
    best_step: int | None = None
    """Optimizer step of the exported weights."""
    over_seeds: dict[str, dict[str, float]] | None = None
    """Metric -> mean, sd, median and max over all seeds, of which this run is the best. None: there was one seed."""
    seeds: int = 1
    """Number of seeds."""
    collapsed: int = 0
    """Number of seeds whose run collapsed: no better than an untrained model."""


class Link(Config):
    """One step of a lineage: text, a job, or a model from elsewhere."""

    kind: Kind
    """Kind of the step."""
    name: str
    """Name of the corpus, the run or the model."""
    inputs: tuple[str, ...]
    """Hashes of its parents."""
    facts: dict[str, Any]
    """`DataFacts`, `PretrainFacts`, ... as JSON; readers ignore unknown keys."""
    hash: str
    """SHA-256 of all other fields."""

    @classmethod
    def make(cls, kind: Kind, name: str, facts: Config, *, parents: Iterable[Link] = ()) -> Link:
        """Return a link with its hash.

        Args:
            kind: kind of the step.
            name: name of the corpus, the run or the model.
            facts: facts of that kind.
            parents: links that the step used.
        """
        inputs = tuple(parent.hash for parent in parents)
        written = facts.model_dump(mode="json")
        return cls(kind=kind, name=name, inputs=inputs, facts=written, hash=_digest(kind, name, inputs, written))

    @property
    def verifies(self) -> bool:
        """Whether the hash matches the content."""
        return self.hash == _digest(self.kind, self.name, self.inputs, self.facts)

    @property
    def weights(self) -> str | None:
        """SHA-256 of the file of weights; None for text, and for an incomplete run."""
        found = self.facts.get("weights")
        return found if isinstance(found, str) else None


class Lineage(Config):
    """The links of a model's ancestry, parents first."""

    version: Literal[1] = 1
    """Layout of the document."""
    links: tuple[Link, ...]
    """At least one."""

    @property
    def head(self) -> Link:
        """The last link: the model or run that the lineage describes."""
        return self.links[-1]

    def parents(self, link: Link) -> list[Link]:
        """Return the parents of a link, in the order of its inputs."""
        known = {other.hash: other for other in self.links}
        return [known[parent] for parent in link.inputs]

    def followed_by(self, *links: Link) -> Lineage:
        """Return this lineage with more links appended, without those that it already contains."""
        known = {link.hash for link in self.links}
        return Lineage(links=(*self.links, *(link for link in links if link.hash not in known)))

    def text(self) -> str:
        """Return the JSON document."""
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"


def read_lineage(path: Path) -> Lineage | None:
    """Read a lineage and verify every link; None if the file is missing.

    Raises:
        ConflictError: see `parse_lineage`.
    """
    try:
        return parse_lineage(read_bytes(path), path)
    except FileNotFoundError:
        return None
    except SpecialFileError as problem:
        raise _damaged(path, "is not a lineage", str(problem.strerror)) from None


def parse_lineage(data: bytes, path: Path) -> Lineage:
    """Parse a lineage and verify every link.

    Args:
        data: the document.
        path: path that it was read from, for messages.

    Raises:
        ConflictError: the document is truncated, or a link was changed or lacks a parent; the message names the link.
    """
    try:
        lineage = Lineage.model_validate(json.loads(data))
    except ValidationError as problem:
        first = problem.errors()[0]
        from train_jobs.artifacts.layers import dotted  # imports yaml, which reading a valid lineage does not need

        raise _damaged(path, "is not a lineage", f"{dotted(first['loc'])}: {first['msg']}") from None
    except ValueError as problem:
        raise _damaged(path, "is truncated", str(problem)) from None
    if not lineage.links:
        raise _damaged(path, "is not a lineage", "no links")
    seen: set[str] = set()
    for number, link in enumerate(lineage.links, start=1):
        which = f"link {number} of {len(lineage.links)}, {link.kind} {link.name}"
        if not link.verifies:
            raise _damaged(path, "was changed after it was written", f"{which}: does not match its hash")
        if missing := [parent for parent in link.inputs if parent not in seen]:
            raise _damaged(path, "was changed after it was written", f"{which}: lacks its parent {missing[0]}")
        seen.add(link.hash)
    return lineage


def store_digest(shards: Iterable[Mapping[str, Any]]) -> str:
    """Return the SHA-256 over name and hash of every shard of a token store, in the order of its manifest."""
    lines = "".join(f"{shard['file']}\0{shard['sha256']}\n" for shard in shards)
    return hashlib.sha256(lines.encode()).hexdigest()


def _digest(kind: str, name: str, inputs: Iterable[str], facts: Mapping[str, Any]) -> str:
    document = {"kind": kind, "name": name, "inputs": list(inputs), "facts": facts}
    # Canonical, so that the hash does not depend on key order or indentation; NaN is not JSON and would not parse
    # elsewhere.
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _damaged(path: Path, what: str, why: str) -> ConflictError:
    return ConflictError(
        f"{path.name} {what}",
        facts={"where": path, "why": why},
        fix=f"restore the file, or delete it to start a new lineage with this model: rm {in_shell(path)}",
    )


def seed_folder(seed: int) -> str:
    """Return the folder name of one seed of a fine-tuning with several; it has its own metrics file."""
    return f"seed-{seed}"
