"""The lineage of a pretraining run: its inputs at its start, its results at its end.

Facts that only the laptop knows (handle, snapshot, commit) come in the run's tags, a JSON file that
ORCHESTRATOR_RUN_TAGS names. Plain torchrun has none, and the lineage records None.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from train_jobs.artifacts.files import file_sha256, write_text
from train_jobs.artifacts.fingerprints import EMBEDDED_LICENSE, DataFingerprint, fingerprint
from train_jobs.artifacts.lineage import (
    LINEAGE_FILE,
    Attempt,
    DataFacts,
    FinetuneFacts,
    Lineage,
    Link,
    PretrainFacts,
    RunFacts,
    Source,
    StretchFacts,
    read_lineage,
    store_digest,
)
from train_jobs.artifacts.sequence_figures import SequenceFigures
from train_jobs.artifacts.start_model import STRETCH, initial_lineage, initial_weights
from train_jobs.artifacts.start_phase import find_checkpoint, phase_lineage, read_phase
from train_jobs.artifacts.store_manifest import store_folder
from train_jobs.config import PretrainConfig, SpecError, UserError
from train_jobs.config.prepare import SourceConfig
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.runtime import storage
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.huggingface import WEIGHTS
from train_jobs.records.commands import commands
from train_jobs.records.markdown import CARD_FILE
from train_jobs.records.pretraining_card import model_card

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "pydantic")  # packages that affect a result
TAGS_VARIABLE = "ORCHESTRATOR_RUN_TAGS"
DIRTY = "+dirty"  # suffix of the commit: the code had uncommitted changes
FACTS: dict[str, type[RunFacts]] = {"pretrain": PretrainFacts, "finetune": FinetuneFacts}
HASHES = "hashes.json"  # in the folder of token stores: content hashes of files read before


@dataclass(frozen=True)
class TrainingStart:
    """Facts of one start of a training job."""

    attempt: Attempt
    model: torch.nn.Module
    absent: Sequence[str]
    """Tensors that the initial model did not hold."""
    output: Path
    """Folder of the run."""
    tags: Mapping[str, str]
    """Tags of the run, see `read_tags`."""
    figures: SequenceFigures | None = None
    """How the sequences of a pretraining use the text."""
    stretch: StretchFacts | None = None
    """Interpolated positions of a pretraining and their loss."""

    @property
    def run_name(self) -> str:
        """Name of the run in its lineage: its own, or that of its folder."""
        return self.tags.get("orchestrator.run") or self.output.resolve().name


def begin(config: PretrainConfig, store: TokenStore, start: TrainingStart, cache: Path) -> Lineage:
    """Write OUTPUT/lineage.json for a run that starts or resumes; call it on the main process.

    A resumed run keeps its recorded ancestors, even if their folders no longer exist.

    Args:
        config: the configuration.
        store: token store of the run.
        start: this start of the job.
        cache: folder of token stores.

    Raises:
        ConflictError: the lineage of the initial model does not verify.
        StorageError: the file cannot be written.
    """
    lineage = resumed_lineage(start, PretrainFacts)
    if lineage is not None:
        _warn_of_another_model(config, lineage, cache)
        card = {"card": config.card.model_dump(mode="json")}  # the user may improve it at any time
        lineage = with_facts(lineage, config=lineage.head.facts["config"] | card)
    else:
        parents, before = _parents(config, store, cache)
        named = _named(config, parents)
        phase = read_phase(find_checkpoint(config.phase_from)).facts if config.phase_from is not None else None
        facts = PretrainFacts(
            **start_facts(start),
            config=named,
            commands=commands(named, start.attempt),
            phase=phase,
            text_use=start.figures,
            stretch=start.stretch,
        )
        lineage = before.followed_by(Link.make("pretrain", start.run_name, facts, parents=parents))
    write(lineage, start.output)
    return lineage


def resumed_lineage(start: TrainingStart, facts_type: type[RunFacts]) -> Lineage | None:
    """Return the lineage of a resumed run with one more attempt; None for a new run or a lost lineage.

    Args:
        start: this start of the job.
        facts_type: type of the run's facts.
    """
    # Lineage is a record, not an input: a damaged file must not keep a run from resuming, so it is only a warning.
    if not start.attempt.step:
        return None
    try:
        lineage = read_lineage(start.output / LINEAGE_FILE)
        if lineage is None:
            return None
        facts = facts_type.model_validate(lineage.head.facts)
    except (UserError, ValidationError) as problem:
        print(f"warning: the lineage of this run starts again: {problem}", flush=True)
        return None
    return with_facts(lineage, attempts=[*facts.attempts, start.attempt], ended=None, weights=None, metrics=None)


def start_facts(start: TrainingStart) -> dict[str, Any]:
    """Return the facts of a training run that are known at its start, by the names of `RunFacts`."""
    tags = start.tags
    commit = tags.get("orchestrator.commit")
    return {
        "run": tags.get("orchestrator.handle"),
        "run_hash": tags.get("orchestrator.run_hash"),
        "snapshot": tags.get("orchestrator.snapshot"),
        "sweep": _sweep(tags),
        "commit": commit.removesuffix(DIRTY) if commit else None,
        "dirty": commit.endswith(DIRTY) if commit else None,
        "packages": {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
        "parameters": sum(parameter.numel() for parameter in start.model.parameters()),
        "absent": list(start.absent),
        "attempts": [start.attempt],
    }


def _sweep(tags: Mapping[str, str]) -> str | None:
    if "orchestrator.sweep" not in tags:
        return None
    begun = f", begun with {tags['orchestrator.warm_start']}" if "orchestrator.warm_start" in tags else ""
    return f"trial {tags.get('orchestrator.trial')} of {tags['orchestrator.sweep']}{begun}"


def trained_positions(begun: Lineage, config: PretrainConfig) -> int:
    """Return the tokens of the longest sequences that a model was trained on, in this run and before it.

    A model from elsewhere is taken to be trained on all of its positions.

    Args:
        begun: result of `begin`.
        config: the configuration of this run.
    """
    known = [config.data.sequence_length]
    for link in begun.links:
        if link.kind == "pretrain":
            known.append(int(link.facts.get("config", {}).get("data", {}).get("sequence_length", 0)))
        elif link.kind == "external":
            known.append(config.model.max_position_embeddings)
    return min(max(known), config.model.max_position_embeddings)


def stretched_positions(begun: Lineage, trained: int) -> int | None:
    """Return the positions that the trained ones were interpolated to cover, in this run and before it.

    Args:
        begun: result of `begin`.
        trained: result of `trained_positions`.

    Returns:
        The positions. None: no more than the trained ones.
    """
    known = [int(link.facts.get("config", {}).get(STRETCH) or 0) for link in begun.links]
    return max(known) if max(known) > trained else None


def describe(begun: Lineage, folder: Path, *, steps: int, sequences: int, metrics: Mapping[str, float]) -> None:
    """Write the complete lineage and the model card into the folder of a trained model.

    Args:
        begun: result of `begin`.
        folder: folder of the exported weights.
        steps: optimizer steps.
        sequences: training sequences.
        metrics: metrics of the last validation.

    Raises:
        StorageError: a file cannot be written.
    """
    complete = with_facts(begun, **end_facts(folder, steps, metrics), sequences=sequences)
    write(complete, folder, card=model_card(complete))


def end_facts(folder: Path, steps: int, metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return the facts of a training run that are known at its end, by the names of `RunFacts`."""
    return {
        "ended": _now(),
        "steps": steps,
        # JSON has no NaN, and a lineage that other programs cannot parse would be worthless
        "metrics": {name: value if math.isfinite(value) else None for name, value in metrics.items()},
        "weights": file_sha256(folder / WEIGHTS),
    }


def write(lineage: Lineage, folder: Path, *, card: str | None = None) -> None:
    """Write FOLDER/lineage.json, and a model card if there is one.

    Raises:
        StorageError: a file cannot be written.
    """
    with storage.storage_errors(folder, "the lineage"):
        write_text(folder / LINEAGE_FILE, lineage.text())
    if card is not None:
        with storage.storage_errors(folder, "the model card"):
            write_text(folder / CARD_FILE, card)


def this_attempt(world: World, precision: str, step: int) -> Attempt:
    """Return the facts of this start of the job, which continues after `step` optimizer steps."""
    on_gpu = world.device.type == "cuda"
    return Attempt(
        started=_now(),
        step=step,
        processes=world.size,
        nodes=world.size // int(os.environ.get("LOCAL_WORLD_SIZE", world.size)),
        threads=torch.get_num_threads(),
        device=world.device.type,
        hardware=torch.cuda.get_device_name(world.device) if on_gpu else _processor(),
        precision=precision,
    )


def read_tags(environ: Mapping[str, str]) -> dict[str, str]:
    """Read the tags of the run from the file that the environment names; none without a file.

    Raises:
        SpecError: the file is not a JSON object of texts.
    """
    path = environ.get(TAGS_VARIABLE)
    if not path:
        return {}
    try:
        tags = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise SpecError(f"cannot read {TAGS_VARIABLE} {path}", facts={"why": problem}) from None
    if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
        raise SpecError(f"{TAGS_VARIABLE} {path} is not a JSON object of texts")
    return tags


def data_link(config: PretrainConfig, store: TokenStore, cache: Path) -> Link:
    """Return the link of a run's text, as its token store has it."""
    manifest = store.manifest
    if store_folder(config.data, config.data.store) is not None:
        sources = [_source(manifest.data.name, manifest.data)]  # the text itself may be deleted by now
        names = [source.name for source in manifest.sources]
    else:
        found = [fingerprint([source], cache / HASHES) for source in config.data.text] or [fingerprint([])]
        names = [_title(source) for source in config.data.text] or [found[0].name]
        sources = [_source(name, text) for name, text in zip(names, found, strict=True)]
    facts = DataFacts(
        sources=sources,
        text=manifest.data.sha256,
        license=config.card.data_license or (None if config.data.text or config.data.store else EMBEDDED_LICENSE),
        store=manifest.key,
        content=store_digest(shard.model_dump() for shard in manifest.shards),
        vocabulary=manifest.vocab_sha256,
        vocab_size=manifest.vocab_size,
        **manifest.rule._asdict(),
        validation_fraction=manifest.validation_fraction,
        unigram_entropy=manifest.validation_unigram_entropy,
        documents={split: counts.documents for split, counts in manifest.splits.items()},
        tokens={split: counts.tokens for split, counts in manifest.splits.items()},
    )
    return Link.make("data", ", ".join(names), facts)


def _title(source: SourceConfig) -> str:
    """Return the name of a source, without its folders."""
    return source.name or source.dataset or ", ".join(Path(path).resolve().name for path in source.path)


def _source(name: str, found: DataFingerprint) -> Source:
    return Source(name=name, files=found.files, total_bytes=found.total_bytes, sha256=found.sha256)


def _parents(config: PretrainConfig, store: TokenStore, cache: Path) -> tuple[list[Link], Lineage]:
    """Return the links of the text and of the initial model or phase, and the chain that ends with them."""
    data = data_link(config, store, cache)
    if config.init_from is not None:
        before = initial_lineage(config.init_from, cache / HASHES)
    elif config.phase_from is not None:
        before = phase_lineage(read_phase(find_checkpoint(config.phase_from)))
    else:
        return [data], Lineage(links=(data,))
    return [data, before.head], before.followed_by(data)


def _warn_of_another_model(config: PretrainConfig, lineage: Lineage, cache: Path) -> None:
    """Warn that the initial model changed since the run started, which has no effect on a resumed run."""
    if config.init_from is None or (now := initial_weights(config.init_from, cache / HASHES)) is None:
        return
    begun = [parent.weights for parent in lineage.parents(lineage.head) if parent.kind != "data"]
    if now not in begun:
        print(
            f"warning: {config.init_from} is not the model that this run started with; the run resumes from its"
            " checkpoint and ignores it",
            flush=True,
        )


def with_facts(lineage: Lineage, **changes: Any) -> Lineage:
    """Return the lineage with changed facts of its head.

    Args:
        lineage: the lineage.
        changes: names of facts and their new values.
    """
    # The head is linked again: its hash covers its facts, so an edited link would no longer verify.
    head = lineage.head
    facts = FACTS[head.kind].model_validate(head.facts).model_copy(update=changes)
    again = Link.make(head.kind, head.name, facts, parents=lineage.parents(head))
    return Lineage(links=(*lineage.links[:-1], again))


def _named(config: PretrainConfig, parents: Sequence[Link]) -> dict[str, Any]:
    """Return the configuration with names in place of paths."""
    tree = config.model_dump(mode="json")
    data, vocabulary = tree["data"], config.data.vocabulary
    data["text"] = [
        source.model_copy(update={"path": [Path(path).resolve().name for path in source.path]}).model_dump(mode="json")
        for source in config.data.text
    ]
    data["store"] = config.data.store.name if config.data.store else None
    data["vocabulary"] = vocabulary.name if vocabulary else None
    tree["init_from"] = parents[-1].name if config.init_from else None
    tree["phase_from"] = parents[-1].name if config.phase_from else None
    return tree


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
