"""The lineage of a model: links in a chain, each named by the hash of its content and naming its parents by theirs.

    {"version": 1, "links": [
      {"kind": "data", "name": "notes", "inputs": [], "facts": {...}, "hash": "3f2a..."},
      {"kind": "pretrain", "name": "pretrain-tiny-4e919d08", "inputs": ["3f2a..."], "facts": {...}, "hash": "77aa..."}
    ]}

Parents precede their children, and the model itself is the last link, the head. A hash covers the hashes of the parents
and through them all ancestors, so the hash of the head identifies the whole chain. The document travels with the model:
it names files and folders, without any path of the machine that wrote it.

A new kind of job adds a kind of link; facts are hashed as they were written, so old documents always verify.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from train_jobs.artifacts.text_rule import TextRule, bert_rule
from train_jobs.config import Config, ConflictError, in_shell

METRICS_FILE = "metrics.jsonl"  # a line for each report: step, time, metrics

LINEAGE_FILE = "lineage.json"
Kind = Literal["data", "tables", "pretrain", "finetune", "predict", "external"]
READ = ("data", "tables")  # kinds of links that are not models


class Source(Config):
    """A file or folder of text, as the user named it."""

    name: str
    """Its name, without folders."""
    files: int
    """Number of files."""
    total_bytes: int
    """Their total size in bytes."""
    sha256: str
    """Hash over (relative name, content hash) of every file, in order."""


class DataFacts(Config):
    """Source and content of a token store. Equal stores of equally named text have equal facts."""

    sources: list[Source]
    """The text."""
    text: str
    """Hash of all sources together, as in the plan."""
    license: str | None
    """Licence of the text; None: not stated."""
    store: str
    """Key of the token store."""
    content: str
    """`store_digest` of its shards."""
    vocabulary: str
    """SHA-256 of vocab.txt."""
    vocab_size: int
    """Pieces of the vocabulary."""
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
    """A model that came without a lineage."""

    weights: str
    """SHA-256 of the file of weights."""
    file: str
    """Name of that file."""
    architectures: list[str]
    """From its config.json."""
    vocabulary: str
    """SHA-256 of vocab.txt."""
    revision: str | None
    """Commit on the Hugging Face Hub, if the model is in the Hub's cache."""


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
    """The checkpoint of an earlier phase whose weights and moments a run took over."""

    step: int
    """Optimizer steps of that run."""
    optimizer: str
    """Optimizer of the moments."""
    weights: str
    """SHA-256 of the checkpoint's file of weights; the exported model is another file."""
    moments: str
    """SHA-256 of its file of moments."""


class RunFacts(Config):
    """A training run; the facts of its end are set when it finishes."""

    run: str | None
    """Handle; None: started without the orchestrator."""
    run_hash: str | None
    """Hash of everything that decides the result, from the run's plan."""
    snapshot: str | None
    """Digest of the code, from the run's plan."""
    sweep: str | None = None
    """Its trial and sweep, and the sweeps whose trials that one started with. None: not a trial."""
    commit: str | None
    """Git commit that the code was taken from."""
    dirty: bool | None
    """Whether the code differed from that commit."""
    config: dict[str, Any]
    """Configuration of the job, with names instead of paths."""
    commands: dict[str, list[str]]
    """Words of the commands that repeat the run, with names instead of paths: orchestrator, torchrun."""
    packages: dict[str, str]
    """Version of Python and of each package that decides a result."""
    parameters: int
    """Numbers in the model."""
    absent: list[str]
    """Tensors that were missing in the initial model, and were drawn."""
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


class PretrainFacts(RunFacts):
    """A pretraining run."""

    phase: PhaseFacts | None = None
    """Source of weights and moments. None: this is a first phase."""
    sequences: int | None = None
    """Number of sequences trained on."""


class TablesFacts(Config):
    """The files of a task that a model was fine-tuned on."""

    task: str
    """Its name in the configuration."""
    sources: list[Source]
    """Each file by its own name."""
    rows: str
    """SHA-256 of the rows as training sees them: tokens and labels."""


class FinetuneFacts(RunFacts):
    """A fine-tuning run: of one task, with one seed, whose best checkpoint is exported."""

    task: str
    """Its name."""
    labels: list[str]
    """Names of the classes in the order of their ids; empty for a number or an answer."""
    seed: int
    """Seed of the head, the order of rows and dropout."""
    best_step: int | None = None
    """Optimizer step of the exported weights."""
    over_seeds: dict[str, dict[str, float]] | None = None
    """Metric -> mean, sd, median and max over all seeds, of which this is the best. None: there was one seed."""
    seeds: int = 1
    """Number of seeds."""
    collapsed: int = 0
    """Number of seeds that learned nothing."""


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
    """SHA-256 over all of the above."""

    @classmethod
    def make(cls, kind: Kind, name: str, facts: Config, *, parents: Iterable[Link] = ()) -> Link:
        """Return a link with its hash."""
        inputs = tuple(parent.hash for parent in parents)
        written = facts.model_dump(mode="json")
        return cls(kind=kind, name=name, inputs=inputs, facts=written, hash=_digest(kind, name, inputs, written))

    @property
    def verifies(self) -> bool:
        """Whether the hash matches the content."""
        return self.hash == _digest(self.kind, self.name, self.inputs, self.facts)

    @property
    def weights(self) -> str | None:
        """SHA-256 of the file of weights; None for text, and for a run that did not complete."""
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
        """The model, or the run, of this lineage."""
        return self.links[-1]

    def parents(self, link: Link) -> list[Link]:
        """Return the links that a link names as its inputs, in that order."""
        known = {other.hash: other for other in self.links}
        return [known[parent] for parent in link.inputs]

    def followed_by(self, *links: Link) -> Lineage:
        """Return this lineage with more links appended; a link that it has already is not repeated."""
        known = {link.hash for link in self.links}
        return Lineage(links=(*self.links, *(link for link in links if link.hash not in known)))

    def text(self) -> str:
        """Return the JSON document."""
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"


def read_lineage(path: Path) -> Lineage | None:
    """Read a lineage whose every link verifies; None if there is no such file.

    Raises:
        ConflictError: see `parse_lineage`.
    """
    try:
        return parse_lineage(path.read_bytes(), path)
    except FileNotFoundError:
        return None


def parse_lineage(data: bytes, path: Path) -> Lineage:
    """Parse a lineage and verify its every link.

    Args:
        data: the document.
        path: where it was read, for messages.

    Raises:
        ConflictError: the document is truncated, a link was changed, or names a parent that does not precede it; the
            message names the link.
    """
    try:
        lineage = Lineage.model_validate(json.loads(data))
    except ValidationError as problem:
        first = problem.errors()[0]
        from train_jobs.artifacts.layers import dotted  # brings yaml; reading a sound lineage does not need it

        raise _damaged(path, "is not a lineage", f"{dotted(first['loc'])}: {first['msg']}") from None
    except ValueError as problem:
        raise _damaged(path, "is truncated", str(problem)) from None
    if not lineage.links:
        raise _damaged(path, "is not a lineage", "it has no link")
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
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _damaged(path: Path, what: str, why: str) -> ConflictError:
    return ConflictError(
        f"{path.name} {what}",
        facts={"where": path, "why": why},
        fix=f"restore the file, or remove it to start a new lineage with this model: rm {in_shell(path)}",
    )


def seed_folder(seed: int) -> str:
    """Return the folder of one of several seeds of a fine-tuning; it has its own metrics file."""
    return f"seed-{seed}"
