"""Going on from a checkpoint: whether there is one, whether it is this run's, and what may differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from train_jobs.artifacts.commit import COMMIT
from train_jobs.config import ConflictError, PretrainConfig, SpecError
from train_jobs.config.finetune import FinetuneConfig
from train_jobs.config.pretrain import OBSERVERS
from train_jobs.engine.checkpoint.checkpoints import Checkpoint
from train_jobs.engine.loop.loop import Loop

FREE_TO_CHANGE = {"validation", "checkpoint", "resume", "card", *OBSERVERS}  # sections that a resumed run may change


def check_batch(config: PretrainConfig, output: Path, *, world_size: int) -> None:
    """Refuses a batch that does not divide, before anything is prepared.

    A run that goes on with another number of processes than it began with is not refused: its shares are then ragged.

    Raises:
        SpecError: the batch does not divide at the start of a run, or there is not a sequence for each process.
    """
    if not has_checkpoint(output):
        config.train.accumulation_steps(world_size)
    elif config.train.global_batch_size < world_size:
        raise SpecError(
            f"train.global_batch_size {config.train.global_batch_size} is less than {world_size} processes",
            fix=f"start at most {config.train.global_batch_size} processes",
        )


def has_checkpoint(output: Path) -> bool:
    """Whether the output folder holds what looks like a checkpoint; whether it verifies is for `resume` to say."""
    return any((output / "checkpoints").glob(f"step-*/{COMMIT}"))


def resume(loop: Loop, config: PretrainConfig | FinetuneConfig) -> None:
    """Goes on from the newest valid checkpoint, if the configuration says so and there is one.

    Raises:
        ConflictError: the folder is used and must not be, or holds a run that would have gone elsewhere.
    """
    checkpoint = newest_for_all(loop)
    if checkpoint is None:
        return
    if config.resume == "never":
        raise ConflictError(
            "the output folder holds a checkpoint and resume is never",
            facts={"where": checkpoint.folder},
            fix="another --output, or --set resume=auto",
        )
    changed = differences(checkpoint.state()["config"], loop.checkpoint_extra["config"])
    if changed:
        raise ConflictError(
            "the checkpoint in the output folder was made with another configuration",
            facts={"where": checkpoint.folder, "changed": "; ".join(changed)},
            fix="another --output, or the configuration that the run began with",
        )
    loop.restore(checkpoint)
    loop.world.say(f"resumed at step {checkpoint.step} from {checkpoint.folder}")
    before = checkpoint.state()
    now = {
        "world_size": loop.world.size,
        "threads": torch.get_num_threads(),
        "precision": loop.precision,
        "device": loop.world.device_name,
    }
    differs = {key: f"{key} {before[key]} -> {value}" for key, value in now.items() if before.get(key, value) != value}
    if config.train.micro_batch_size == "auto" and differs.keys() & {"world_size", "device"}:
        loop.state.micro_batch_size = None  # what fits is another question there
    if differs:
        loop.world.say(f"warning: not bit for bit what it would have been: {', '.join(differs.values())}")


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What of the wanted sections of a configuration is stored otherwise, each as `section.key: before -> now`."""
    return sorted(
        f"{section}.{key}: {stored.get(section, {}).get(key)} -> {value}"
        for section, values in wanted.items()
        for key, value in values.items()
        if stored.get(section, {}).get(key) != value
    )


def newest_for_all(loop: Loop) -> Checkpoint | None:
    """The newest valid checkpoint that the main process sees; every process must see the same.

    Raises:
        ConflictError: this process does not have it: the output folder is not shared, or damaged here.
    """
    mine = loop.checkpoints.newest() if loop.world.is_main else None
    step = loop.world.from_main(mine.step if mine else -1)
    if step < 0 or mine:
        return mine
    found = loop.checkpoints.at(step)
    if found is None:
        raise ConflictError(
            f"rank {loop.world.rank} cannot read the checkpoint of step {step} that rank 0 resumes from",
            facts={"where": loop.checkpoints.root},
            fix="put the output folder on a disk that all nodes share",
        )
    return found


def trajectory(config: PretrainConfig, store: str) -> dict[str, Any]:
    """What decides what the weights become: sections of the configuration, and the text by the content of its store."""
    sections: dict[str, Any] = config.model_dump(mode="json", exclude=FREE_TO_CHANGE)
    for key in ("text", "vocabulary"):  # where they lie does not matter, what they hold does
        del sections["data"][key]
    sections["data"]["store"] = store
    del sections["train"]["log_every"]
    del sections["optimizer"]["sharded"]  # no weight depends on who keeps the moments
    sections["start"] = {key: sections.pop(key) is not None for key in ("init_from", "phase_from")}
    return sections
