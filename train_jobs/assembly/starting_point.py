"""The start of training: the run's own checkpoint, an earlier phase, an initial model, or drawn weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from train_jobs.artifacts.commit import COMMIT, verify
from train_jobs.artifacts.start_model import initial_weights
from train_jobs.artifacts.start_phase import WEIGHTS, find_checkpoint, read_phase
from train_jobs.artifacts.text_rule import LetterCounts, TextRule, resolve_rule
from train_jobs.config import ConflictError, DataConfig, FinetuneConfig, PretrainConfig, SpecError
from train_jobs.config.pretrain import OBSERVERS
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.corpus.tokenize.vocabulary import load_vocabulary, pieces_of
from train_jobs.engine.checkpoint.checkpoints import Checkpoint
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert.pretraining_heads import BertForPreTraining
from train_jobs.models.huggingface import load_weights

FREE_TO_CHANGE = {"validation", "checkpoint", "resume", "card", *OBSERVERS}  # sections that a resumed run may change
HASH_DIGITS = 15  # hex digits that fit into an int64


def check_start(config: PretrainConfig, *, resumes: bool) -> None:
    """Refuse a run whose initial model or earlier phase does not exist, before anything is prepared.

    Args:
        resumes: the run has a checkpoint of its own, and needs neither any more.

    Raises:
        SpecError: there is no such folder, or no checkpoint in it.
    """
    known = ", or a name on the Hugging Face Hub"
    for key, folder, names in (("init_from", config.init_from, known), ("phase_from", config.phase_from, "")):
        if folder is not None and not folder.is_dir() and not resumes:
            raise SpecError(f"no such folder: {folder}", facts={"where": key}, fix=f"--set {key}=FOLDER{names}")
    if config.phase_from is not None and not resumes:
        find_checkpoint(config.phase_from)


def load_initial_model(model: torch.nn.Module, config: PretrainConfig, world: World, hashes: Path) -> list[str]:
    """Replace the weights just drawn by those of `init_from`, if it is given; call it on every process.

    Args:
        hashes: JSON file that remembers content hashes.

    Returns:
        Names of tensors that the folder does not hold: these stay as drawn.

    Raises:
        ConflictError: this process reads other weights than the main process.
        TrainingError: the folder cannot be read.
    """
    folder = config.init_from
    if folder is None:
        return []
    assert isinstance(model, BertForPreTraining), "load_parts refuses any other"
    weights = initial_weights(folder, hashes) or "0"
    _require_same(world, weights, "initial model", {"where": folder, "weights": weights})
    pieces, spellings = spell_added_tokens(config.data)
    absent = load_weights(model, folder, pieces=pieces, new_words=spellings)
    world.log(f"weights    {folder}, SHA-256 {weights[:8]}")
    if spellings:
        world.log(f"words      {len(spellings)} added, each the mean of the pieces that spelled it")
    if absent:
        heads = ", ".join(sorted({".".join(name.split(".")[:2]) for name in absent}))
        world.log(f"warning: the initial model does not hold {heads}: drawn from train.seed")
    return absent


def spell_added_tokens(data: DataConfig) -> tuple[int, list[list[int]]]:
    """Return the size of the initial model's vocabulary, and for each added word the pieces that spell it there."""
    if not data.add_tokens:
        return 0, []
    assert data.vocabulary is not None, "it is the initial model's"
    rule = resolve_rule(data, LetterCounts(), pieces_of(data.vocabulary))
    tokenizer = load_vocabulary(data.vocabulary, **rule._asdict())
    encoded = tokenizer.encode_batch(data.add_tokens, add_special_tokens=False)
    return tokenizer.get_vocab_size(), [word.ids for word in encoded]


def begin_phase(loop: Loop, config: PretrainConfig, store: TokenStore) -> None:
    """Take weights and moments from the checkpoint in `phase_from`, if it is given; call it on every process at step 0.

    Raises:
        ConflictError: the checkpoint does not verify, is not the one that rank 0 reads, or has another vocabulary.
    """
    if config.phase_from is None:
        return
    phase = read_phase(find_checkpoint(config.phase_from))
    _require_same(loop.world, phase.digest, "earlier phase", {"where": phase.folder})
    if not verify(phase.folder):
        raise ConflictError(
            "the checkpoint of the earlier phase is damaged",
            facts={"where": phase.folder},
            fix=f"give another folder of {phase.folder.parent} as phase_from",
        )
    if phase.vocabulary != store.manifest.vocab_sha256:
        raise ConflictError(
            "the earlier phase was trained with another vocabulary",
            facts={"need": f"SHA-256 {phase.vocabulary}", "have": store.manifest.vocab_sha256, "where": phase.folder},
            fix="--set data.vocabulary=FILE, its vocab.txt",
        )
    loop.begin_phase(Checkpoint(phase.folder, phase.step))
    loop.world.log(
        f"phase      weights and moments of step {phase.step} from {phase.folder}, SHA-256 {phase.files[WEIGHTS][:8]}"
    )


def _require_same(world: World, digest: str, what: str, facts: dict[str, object]) -> None:
    """Raise ConflictError if this process reads other content than the main process."""
    mine = int(digest[:HASH_DIGITS], 16)
    if world.from_main(mine) != mine:
        raise ConflictError(
            f"rank {world.rank} reads another {what} than rank 0",
            facts=facts,
            fix=f"put the {what} on a disk that all nodes share",
        )


def check_batch(config: PretrainConfig, output: Path, *, world_size: int) -> None:
    """Refuse a batch that does not divide among the processes, before anything is prepared.

    A run may resume with another number of processes; their shares of the batch are then uneven.

    Raises:
        SpecError: the batch does not divide at the start of a run, or has fewer sequences than there are processes.
    """
    if not has_checkpoint(output):
        config.train.accumulation_steps(world_size)
    elif config.train.global_batch_size < world_size:
        raise SpecError(
            f"train.global_batch_size {config.train.global_batch_size} is less than {world_size} processes",
            fix=f"start at most {config.train.global_batch_size} processes",
        )


def has_checkpoint(output: Path) -> bool:
    """Return whether the output folder holds a commit of a checkpoint; `resume` verifies it."""
    return any((output / "checkpoints").glob(f"step-*/{COMMIT}"))


def resume(loop: Loop, config: PretrainConfig | FinetuneConfig) -> None:
    """Resume from the newest valid checkpoint, if there is one.

    Raises:
        ConflictError: `resume: never` and the folder is used, or its checkpoint has another configuration.
    """
    checkpoint = newest_for_all(loop)
    if checkpoint is None:
        return
    if config.resume == "never":
        raise ConflictError(
            "the output folder has a checkpoint and resume is never",
            facts={"where": checkpoint.folder},
            fix="another --output, or --set resume=auto",
        )
    before = checkpoint.state()
    if changed := differences(before["config"], loop.policy.checkpoint_extra["config"]):
        raise ConflictError(
            "the checkpoint in the output folder has another configuration",
            facts={"where": checkpoint.folder, "changed": "; ".join(changed)},
            fix="another --output, or the configuration that the run started with",
        )
    loop.restore(checkpoint)
    loop.world.log(f"resumed at step {checkpoint.step} from {checkpoint.folder}")
    now = {
        "world_size": loop.world.size,
        "threads": torch.get_num_threads(),
        "precision": loop.policy.precision,
        "device": loop.world.device_name,
    }
    differs = {key: f"{key} {before[key]} -> {value}" for key, value in now.items() if before.get(key, value) != value}
    if config.train.micro_batch_size == "auto" and differs.keys() & {"world_size", "device"}:
        loop.state.micro_batch_size = None  # another size may fit there
    if differs:
        loop.world.log(f"warning: not bit-exact with an uninterrupted run: {', '.join(differs.values())}")


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the keys of the wanted sections that are stored otherwise, each as `section.key: before -> now`."""
    return sorted(
        f"{section}.{key}: {stored.get(section, {}).get(key)} -> {value}"
        for section, values in wanted.items()
        for key, value in values.items()
        if stored.get(section, {}).get(key) != value
    )


def newest_for_all(loop: Loop) -> Checkpoint | None:
    """Return the newest valid checkpoint that the main process sees; every process must see the same.

    Raises:
        ConflictError: this process does not have it: the output folder is not shared, or damaged here.
    """
    mine = loop.services.checkpoints.newest() if loop.world.is_main else None
    step = loop.world.from_main(mine.step if mine else -1)
    if step < 0 or mine:
        return mine
    found = loop.services.checkpoints.at(step)
    if found is None:
        raise ConflictError(
            f"rank {loop.world.rank} cannot read the checkpoint of step {step} that rank 0 resumes from",
            facts={"where": loop.services.checkpoints.root},
            fix="put the output folder on a disk that all nodes share",
        )
    return found


def trajectory(config: PretrainConfig, store: str, rule: TextRule | None = None) -> dict[str, Any]:
    """Return the settings that decide the weights: sections of the configuration, and the content of the text.

    Args:
        config: the configuration.
        store: content of the token store.
        rule: of the store's words, in place of every `auto`. None: as configured.
    """
    sections: dict[str, Any] = config.model_dump(mode="json", exclude=FREE_TO_CHANGE)
    for key in ("text", "vocabulary"):  # their paths do not matter, their content does
        del sections["data"][key]
    sections["data"]["store"] = store
    sections["data"] |= rule._asdict() if rule is not None else {}
    del sections["train"]["log_every"]
    del sections["optimizer"]["sharded"]  # no weight depends on it
    sections["start"] = {key: sections.pop(key) is not None for key in ("init_from", "phase_from")}
    return sections
