"""The lineage of a run: what goes in is written when it starts, what came of it when it ends.

What only the laptop knows (handle, snapshot, commit) comes in the run's tags, a JSON file that ORCHESTRATOR_RUN_TAGS
names. Plain torchrun has none, and says so.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
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
    PhaseFacts,
    PretrainFacts,
    RunFacts,
    Source,
    read_lineage,
    store_digest,
)
from train_jobs.artifacts.start_model import initial_lineage, initial_weights
from train_jobs.artifacts.start_phase import find_checkpoint, phase_lineage, read_phase
from train_jobs.artifacts.store_manifest import store_folder
from train_jobs.config import PretrainConfig, SpecError, UserError
from train_jobs.config.text import SourceConfig
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.runtime import storage
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.huggingface import WEIGHTS
from train_jobs.records.commands import commands
from train_jobs.records.markdown import CARD_FILE
from train_jobs.records.pretraining_card import model_card

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "pydantic")  # those that shape a result
TAGS_VARIABLE = "ORCHESTRATOR_RUN_TAGS"
DIRTY = "+dirty"  # behind the commit: the code was not all in it
FACTS: dict[str, type[RunFacts]] = {"pretrain": PretrainFacts, "finetune": FinetuneFacts}
HASHES = "hashes.json"  # in the folder of token stores: content hashes of files read before


def begin(
    config: PretrainConfig,
    store: TokenStore,
    attempt: Attempt,
    model: torch.nn.Module,
    absent: Sequence[str],
    output: Path,
    cache: Path,
    tags: Mapping[str, str],
) -> Lineage:
    """Writes OUTPUT/lineage.json for a run that starts, or goes on; for the main process.

    A run that goes on keeps the ancestors that it began with, whatever has become of their folders.

    Args:
        absent: tensors that the initial model did not hold.
        cache: folder of token stores.
        tags: of the run, see `read_tags`.

    Raises:
        ConflictError: the lineage of the initial model does not verify.
        StorageError: it cannot be written.
    """
    lineage = _continued(config, attempt, output, cache) if attempt.step else None
    if lineage is None:
        parents, before = _parents(config, store, cache)
        named = _named(config, parents)
        facts = PretrainFacts(
            **begun_facts(tags, model, absent, attempt),
            config=named,
            commands=commands(named, attempt),
            phase=_phase(config),
        )
        lineage = before.followed_by(Link.make("pretrain", run_name(tags, output), facts, parents=parents))
    write(lineage, output)
    return lineage


def run_name(tags: Mapping[str, str], output: Path) -> str:
    """What a run is called in its lineage: its name, or that of its folder."""
    return tags.get("orchestrator.run") or output.resolve().name


def begun_facts(
    tags: Mapping[str, str], model: torch.nn.Module, absent: Sequence[str], attempt: Attempt
) -> dict[str, Any]:
    """What every run that trains knows of itself when it starts, by the names of `RunFacts`."""
    commit = tags.get("orchestrator.commit")
    return {
        "run": tags.get("orchestrator.handle"),
        "run_hash": tags.get("orchestrator.run_hash"),
        "snapshot": tags.get("orchestrator.snapshot"),
        "sweep": _sweep(tags),
        "commit": commit.removesuffix(DIRTY) if commit else None,
        "dirty": commit.endswith(DIRTY) if commit else None,
        "packages": {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "absent": list(absent),
        "attempts": [attempt],
    }


def _sweep(tags: Mapping[str, str]) -> str | None:
    if "orchestrator.sweep" not in tags:
        return None
    begun = f", begun with {tags['orchestrator.warm_start']}" if "orchestrator.warm_start" in tags else ""
    return f"trial {tags.get('orchestrator.trial')} of {tags['orchestrator.sweep']}{begun}"


def describe(begun: Lineage, folder: Path, *, steps: int, sequences: int, metrics: Mapping[str, float]) -> None:
    """Writes what goes with a trained model into its folder: the lineage, now complete, and the model card.

    Args:
        begun: the lineage as `begin` left it.
        folder: holds the exported weights.
        steps: optimizer steps done.
        sequences: sequences seen.
        metrics: of the last validation.

    Raises:
        StorageError: they cannot be written.
    """
    complete = with_facts(begun, **ended_facts(folder, steps, metrics), sequences=sequences)
    write(complete, folder)
    with storage.storage_errors(folder, "the model card"):
        write_text(folder / CARD_FILE, model_card(complete))


def ended_facts(folder: Path, steps: int, metrics: Mapping[str, float]) -> dict[str, Any]:
    """What every run that trains knows of itself when it ends, by the names of `RunFacts`."""
    return {
        "ended": _now(),
        "steps": steps,
        "metrics": {name: value if math.isfinite(value) else None for name, value in metrics.items()},
        "weights": file_sha256(folder / WEIGHTS),
    }


def write(lineage: Lineage, folder: Path) -> None:
    """Writes FOLDER/lineage.json.

    Raises:
        StorageError: it cannot be written.
    """
    with storage.storage_errors(folder, "the lineage"):
        write_text(folder / LINEAGE_FILE, lineage.text())


def this_attempt(world: World, precision: str, step: int) -> Attempt:
    """The start of this job, `step` optimizer steps being done already."""
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
    """The tags of the run, from the file that the environment names; none without one.

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
    """The text of a run, as it is in its token store."""
    manifest = store.manifest
    if store_folder(config.data, config.data.store) is not None:
        sources = [_source(manifest.data.name, manifest.data)]  # of which nothing may be left but the store
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
        lowercase=manifest.lowercase,
        validation_fraction=manifest.validation_fraction,
        unigram_entropy=manifest.validation_unigram_entropy,
        documents={split: counts.documents for split, counts in manifest.splits.items()},
        tokens={split: counts.tokens for split, counts in manifest.splits.items()},
    )
    return Link.make("data", ", ".join(names), facts)


def _title(source: SourceConfig) -> str:
    """What a source is called, without the folders that it lies in."""
    return source.name or source.dataset or ", ".join(Path(path).resolve().name for path in source.path)


def _named_source(source: SourceConfig) -> Any:
    """A source as the configuration has it, with names in place of paths."""
    named = source.model_copy(update={"path": [Path(path).resolve().name for path in source.path]})
    return named.model_dump(mode="json")


def _source(name: str, found: DataFingerprint) -> Source:
    return Source(name=name, files=found.files, total_bytes=found.total_bytes, sha256=found.sha256)


def _parents(config: PretrainConfig, store: TokenStore, cache: Path) -> tuple[list[Link], Lineage]:
    """The text and, if there is one, what training starts from; and the chain of both."""
    data = data_link(config, store, cache)
    if config.init_from is not None:
        before = initial_lineage(config.init_from, cache / HASHES)
    elif config.phase_from is not None:
        before = phase_lineage(read_phase(find_checkpoint(config.phase_from)))
    else:
        return [data], Lineage(links=(data,))
    return [data, before.head], before.followed_by(data)


def _phase(config: PretrainConfig) -> PhaseFacts | None:
    """What weights and moments were taken over from."""
    return read_phase(find_checkpoint(config.phase_from)).facts if config.phase_from is not None else None


def _continued(config: PretrainConfig, attempt: Attempt, output: Path, cache: Path) -> Lineage | None:
    """The lineage that the run began with, and one more attempt; None, and a warning, where it is lost."""
    try:
        lineage = read_lineage(output / LINEAGE_FILE)
        if lineage is None:
            return None
        facts = PretrainFacts.model_validate(lineage.head.facts)
    except (UserError, ValidationError) as problem:
        print(f"warning: the lineage of this run begins anew: {problem}", flush=True)
        return None
    _warn_of_another_model(config, lineage, cache)
    card = {"card": config.card.model_dump(mode="json")}  # may be written better at any time
    attempts = [*facts.attempts, attempt]
    return with_facts(lineage, config=facts.config | card, attempts=attempts, ended=None, weights=None, metrics=None)


def _warn_of_another_model(config: PretrainConfig, lineage: Lineage, cache: Path) -> None:
    """A run goes on from its checkpoint: that its initial model is another by now has no effect, and is said."""
    if config.init_from is None or (now := initial_weights(config.init_from, cache / HASHES)) is None:
        return
    begun = [parent.weights for parent in lineage.parents(lineage.head) if parent.kind != "data"]
    if now not in begun:
        print(
            f"warning: {config.init_from} is not the model that this run began with; it goes on from its"
            " checkpoint all the same",
            flush=True,
        )


def with_facts(lineage: Lineage, **changes: Any) -> Lineage:
    """The same lineage with other facts of its head, which gets another hash."""
    head = lineage.head
    facts = FACTS[head.kind].model_validate(head.facts).model_copy(update=changes)
    again = Link.make(head.kind, head.name, facts, parents=lineage.parents(head))
    return Lineage(links=(*lineage.links[:-1], again))


def _named(config: PretrainConfig, parents: Sequence[Link]) -> dict[str, Any]:
    """The configuration with names in place of paths."""
    tree = config.model_dump(mode="json")
    data, vocabulary = tree["data"], config.data.vocabulary
    data["text"] = [_named_source(source) for source in config.data.text]
    data["store"] = config.data.store.name if config.data.store else None
    data["vocabulary"] = vocabulary.name if vocabulary else None
    tree["init_from"] = parents[-1].name if config.init_from else None
    tree["phase_from"] = parents[-1].name if config.phase_from else None
    return tree


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
