"""The start of training: the run's own checkpoint, an earlier phase, an initial model, or random weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from train_jobs.artifacts.commit import COMMIT, DAMAGED, folder_name, verify
from train_jobs.artifacts.model_trust import require_trusted, require_trusted_phase
from train_jobs.artifacts.start_model import CONFIG, STRETCH, initial_weights, read_initial_model
from train_jobs.artifacts.start_phase import WEIGHTS, find_checkpoint, read_phase
from train_jobs.artifacts.text_rule import TextRule
from train_jobs.artifacts.vocabulary_file import given_rule
from train_jobs.config import ConflictError, DataConfig, FinetuneConfig, PretrainConfig, SpecError
from train_jobs.config.pretrain import OBSERVERS
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.corpus.tokenize.vocabulary import load_vocabulary
from train_jobs.engine.checkpoint.checkpoints import Checkpoint, CheckpointStore
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert.positions import stretch_positions
from train_jobs.models.bert.pretraining_heads import BertForPreTraining
from train_jobs.models.huggingface import load_weights, require_shapes

FREE_TO_CHANGE = {"validation", "checkpoint", "resume", "card", *OBSERVERS}  # sections that a resumed run may change
SCORED = "scored"  # section of a fine-tuning's configuration: what determines its scores and predictions
HASH_DIGITS = 15  # hex digits of a digest that fit into the int64 of `World.from_main`


def check_start(config: PretrainConfig, *, resumes: bool) -> None:
    """Require that the initial model or the earlier phase of a run exists; called before anything is prepared.

    Args:
        config: configuration of the run.
        resumes: whether the run has a checkpoint of its own, and so needs neither of them.

    Raises:
        SpecError: the folder does not exist, the weights of the initial model have other shapes than its config.json
            states, or the earlier phase has no checkpoint, or would need a signature.
        DataError: the initial model is not trusted, see `require_trusted`.
        TrainingError: the weights of the initial model cannot be read.
    """
    known = ", or a name on the Hugging Face Hub"
    for key, folder, names in (("init_from", config.init_from, known), ("phase_from", config.phase_from, "")):
        if folder is not None and not folder.is_dir() and not resumes:
            raise SpecError(f"no such folder: {folder}", facts={"where": key}, fix=f"--set {key}=FOLDER{names}")
    if config.phase_from is not None and not resumes:
        find_checkpoint(config.phase_from)
        require_trusted_phase(config.trust)
    if config.init_from is not None and not resumes:
        require_trusted(config.init_from, config.trust)
        if (config.init_from / CONFIG).is_file():  # else its loader reports the missing file
            sizes = read_initial_model(config.init_from).sizes
            require_shapes(config.init_from, sizes, allow_pickle=config.trust.allow_pickle)


def load_initial_model(model: torch.nn.Module, config: PretrainConfig, world: World, hashes: Path) -> list[str]:
    """Load the weights of `init_from`, if it is given, into a model with random weights; call it on every process.

    Args:
        model: model to load into.
        config: configuration of the run.
        world: processes of the run.
        hashes: JSON file that caches content hashes.

    Returns:
        Names of tensors that the folder lacks; they keep their random values.

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
    allowed = config.trust.allow_pickle
    absent = load_weights(model, folder, pieces=pieces, new_words=spellings, allow_pickle=allowed)
    world.log(f"weights    {folder}, SHA-256 {weights[:8]}")
    if config.stretch_positions is not None:
        initial = read_initial_model(folder)
        initial.require_stretchable(config.stretch_positions)
        table = model.bert.embeddings.position_embeddings.weight
        stretch_positions(table, initial.usable_positions, config.stretch_positions)
    if spellings:
        world.log(f"words      {len(spellings)} added, each initialised as the mean of its former pieces")
    if absent:
        heads = ", ".join(sorted({".".join(name.split(".")[:2]) for name in absent}))
        world.log(f"warning: the initial model lacks {heads}: initialised at random from train.seed")
    return absent


def spell_added_tokens(data: DataConfig) -> tuple[int, list[list[int]]]:
    """Return the size of the initial model's vocabulary, and for each added word the ids of its pieces in it."""
    if not data.add_tokens:
        return 0, []
    rule = given_rule(data)
    assert data.vocabulary is not None, "it is the initial model's"
    assert rule is not None, "there is a vocabulary"
    tokenizer = load_vocabulary(data.vocabulary, **rule._asdict())
    encoded = tokenizer.encode_batch(data.add_tokens, add_special_tokens=False)
    return tokenizer.get_vocab_size(), [word.ids for word in encoded]


def begin_phase(loop: Loop, config: PretrainConfig, store: TokenStore) -> None:
    """Load weights and moments of `phase_from`, if it is given; call it on every process at step 0.

    Args:
        loop: training loop at step 0.
        config: configuration of the run.
        store: store that the run trains on.

    Raises:
        ConflictError: the checkpoint does not verify, differs from the one that rank 0 reads, or has another
            vocabulary.
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
            fix="give the vocab.txt of the earlier phase: --set data.vocabulary=FILE",
        )
    loop.begin_phase(Checkpoint(phase.folder, phase.step))
    loop.world.log(
        f"phase      weights and moments of step {phase.step} from {phase.folder}, SHA-256 {phase.files[WEIGHTS][:8]}"
    )


def _require_same(world: World, digest: str, what: str, facts: dict[str, object]) -> None:
    """Raise ConflictError if this process reads other content than the main process."""
    # Nodes may mount different disks at the same path. Without this check, ranks would silently train from different
    # weights.
    mine = int(digest[:HASH_DIGITS], 16)
    if world.from_main(mine) != mine:
        raise ConflictError(
            f"rank {world.rank} reads another {what} than rank 0",
            facts=facts,
            fix=f"store the {what} on a disk that all nodes share",
        )


def check_batch(config: PretrainConfig, output: Path, *, world_size: int, on_cpu: bool) -> None:
    """Require that the global batch divides among the processes; called before anything is prepared.

    A resumed run may have another number of processes; their shares of the batch are then uneven. With
    `train.loss_normalization: micro_batch` all micro batches must keep the same size.

    Args:
        config: configuration of the run.
        output: output folder of the run.
        world_size: number of processes.
        on_cpu: whether training runs on CPUs.

    Raises:
        SpecError: the batch of a new run does not divide, there are fewer sequences than processes, or the micro
            batches of a resumed run would differ in size.
    """
    possible = config.train.resumable_world_sizes()
    if not has_checkpoint(output):
        config.train.on_device(on_cpu=on_cpu).accumulation_steps(world_size)
    elif config.train.global_batch_size < world_size:
        raise SpecError(
            f"train.global_batch_size {config.train.global_batch_size} is less than the {world_size} processes",
            fix=f"start at most {config.train.global_batch_size} processes",
        )
    elif possible and world_size not in possible:  # none is possible: the micro batch changed, which `resume` refuses
        raise SpecError(
            f"cannot resume with {world_size} processes: micro batches of unequal size would have equal weight",
            facts={"possible": ", ".join(map(str, possible)), "setting": "train.loss_normalization: micro_batch"},
            fix=f"start {max(size for size in possible if size <= world_size)} processes",
        )


def has_checkpoint(output: Path) -> bool:
    """Return whether the output folder contains a commit of a checkpoint; `resume` verifies it."""
    return any((output / "checkpoints").glob(f"step-*/{COMMIT}"))


def resume(loop: Loop, config: PretrainConfig | FinetuneConfig) -> None:
    """Restore the newest valid checkpoint, if there is one; call it on every process.

    Args:
        loop: training loop at step 0.
        config: configuration of the run.

    Raises:
        ConflictError: the folder has a checkpoint although `resume` is never, or one with another configuration.
    """
    checkpoint = newest_for_all(loop)
    if checkpoint is None:
        return
    if config.resume == "never":
        raise ConflictError(
            "the output folder has a checkpoint, and resume is never",
            facts={"where": checkpoint.folder},
            fix="give another --output, or --set resume=auto",
        )
    before = checkpoint.state()
    stored, wanted = before["config"], loop.policy.checkpoint_extra["config"]
    if loop.policy.config.loss_normalization == "micro_batch":
        # The divisor of the loss follows from the configured micro batch, and the loop keeps the checkpoint's. A
        # configuration can leave its size out, so the numbers in use are compared instead of the keys.
        stored = _with_micro_batch(stored, before["loop"]["micro_batch_size"])
        wanted = _with_micro_batch(wanted, loop.given_micro_batch)
    if changed := differences(stored, wanted):
        raise ConflictError(
            "the checkpoint in the output folder has another configuration",
            facts={"where": checkpoint.folder, "changed": "; ".join(changed)},
            fix="give another --output, or the configuration that the run started with",
        )
    loop.restore(checkpoint)
    loop.world.log(f"resumed at step {checkpoint.step} from {checkpoint.folder}")
    # Another number of processes or threads changes the order of floating-point sums, so the run is no longer
    # bit-exact. It is still valid, so this is a warning.
    now = {
        "world_size": loop.world.size,
        "threads": torch.get_num_threads(),
        "precision": loop.policy.precision,
        "device": loop.world.device_name,
    }
    differs = {key: f"{key} {before[key]} -> {value}" for key, value in now.items() if before.get(key, value) != value}
    # The main process decides for all: the checkpoint has its GPU only, and the search for a size calls collectives. If
    # each rank compared its own GPU, ranks with another model would search alone.
    moved = not isinstance(config.train.micro_batch_size, int) and bool(differs.keys() & {"world_size", "device"})
    if loop.world.from_main(moved):
        loop.state.micro_batch_size = loop.given_micro_batch  # another size may fit there
    if differs:
        loop.world.log(f"warning: not bit-exact with an uninterrupted run: {', '.join(differs.values())}")


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the keys whose stored values differ, each as `section.key: before -> now`.

    Args:
        stored: sections of a checkpoint's configuration.
        wanted: sections of the current configuration; keys that only `stored` has are ignored, and so is `SCORED`
            if `stored` lacks it, as runs of an older version do.
    """
    return sorted(
        f"{section}.{key}: {stored.get(section, {}).get(key)} -> {value}"
        for section, values in wanted.items()
        if section != SCORED or section in stored
        for key, value in values.items()
        if stored.get(section, {}).get(key) != value
    )


def newest_for_all(loop: Loop) -> Checkpoint | None:
    """Return the newest valid checkpoint of the main process; call it on every process.

    Raises:
        ConflictError: this process cannot read it: the output folder is not shared, or is damaged here.
    """
    mine = loop.services.checkpoints.newest() if loop.world.is_main else None
    if loop.world.is_main:
        set_aside_damaged(loop.services.checkpoints, mine)
    step = loop.world.from_main(mine.step if mine else -1)
    if step < 0 or mine:
        return mine
    found = loop.services.checkpoints.at(step)
    if found is None:
        raise ConflictError(
            f"rank {loop.world.rank} cannot read the checkpoint of step {step} that rank 0 resumes from",
            facts={"where": loop.services.checkpoints.root},
            fix="use an output folder on a disk that all nodes share",
        )
    return found


def set_aside_damaged(store: CheckpointStore, used: Checkpoint | None) -> None:
    """Rename the damaged checkpoints newer than the one that the run resumes from, with a warning for each."""
    for damaged in store.set_aside_damaged(used.step if used else -1):
        instead = f"resuming from step {used.step}" if used else "starting over"
        folder = store.root / f"{DAMAGED}{folder_name(damaged)}"
        print(f"warning: the checkpoint of step {damaged} is damaged, {instead}; its files are in {folder}", flush=True)
    if unused := [step for step in store.steps() if step > (used.step if used else -1)]:
        steps = ", ".join(map(str, unused))
        print(f"warning: step {steps} is not used: the result is the best checkpoint, and it is damaged", flush=True)


def without_default_micro_batch(sections: dict[str, Any]) -> None:
    """Remove the micro batch from the sections of a configuration that leaves it to the device."""
    # The checkpoint has the size that was taken; the default may differ on the machine of a resumed run.
    if sections["train"]["micro_batch_size"] is None:
        del sections["train"]["micro_batch_size"]


def _with_micro_batch(sections: Mapping[str, Any], size: int | None) -> dict[str, Any]:
    """Return the sections of a configuration with this micro batch."""
    return {**sections, "train": {**sections["train"], "micro_batch_size": size}}


def trajectory(config: PretrainConfig, store: str, rule: TextRule | None = None) -> dict[str, Any]:
    """Return the settings that determine the trained weights, by section.

    Args:
        config: configuration of the run.
        store: hash of the content of its token store.
        rule: rule of the store's words, which replaces every `auto`. None: as configured.
    """
    sections: dict[str, Any] = config.model_dump(mode="json", exclude=FREE_TO_CHANGE)
    for key in ("text", "vocabulary"):  # paths, which may change; the hash of the store covers their content
        del sections["data"][key]
    sections["data"]["store"] = store
    sections["data"] |= rule._asdict() if rule is not None else {}
    del sections["train"]["log_every"]
    without_default_micro_batch(sections)
    del sections["optimizer"]["sharded"]  # does not affect the weights
    sections["start"] = {key: sections.pop(key) is not None for key in ("init_from", "phase_from")}
    if (stretched := sections.pop(STRETCH)) is not None:
        sections["start"][STRETCH] = stretched
    return sections
