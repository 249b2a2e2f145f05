"""Checkpoints: folders that count only when their COMMIT.json verifies.

    checkpoints/step-00000500/
        model.safetensors      weights under their Hugging Face names
        optimizer.safetensors  moments and counters: PARAMETER.exp_avg, ...
        state.json             step, data cursor, loss scale, the optimizer's options, configuration
        COMMIT.json            validation loss; names, sizes and SHA-256 of the others; written last and read back

A mounted blob store copies and deletes where a disk renames, so no rename, no mtime and no link is trusted: the newest
folder that verifies under its own name is the checkpoint, and any other is the remains of a death.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from train_jobs.artifacts.commit import (
    COMMIT,
    FOLDER,
    Commit,
    committed,
    folder_name,
    verify,
    verifying,
    write_commit,
    write_file,
)
from train_jobs.config import CheckpointConfig
from train_jobs.engine.checkpoint.cadence import Retention
from train_jobs.engine.checkpoint.optimizer_state import flatten, unflatten
from train_jobs.engine.checkpoint.safetensors_file import bytes_of, write_tensors
from train_jobs.engine.checkpoint.staging import StagingMemory
from train_jobs.engine.checkpoint.writer import Work, Writer
from train_jobs.engine.runtime import storage

WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint."""

    folder: Path
    step: int

    def weights(self) -> dict[str, torch.Tensor]:
        """The model's state, on the CPU."""
        return load_file(self.folder / WEIGHTS)

    def optimizer(self) -> dict[str, Any]:
        """The optimizer's state, on the CPU."""
        # load_file maps the file and an optimizer keeps what it is given, but the file will be deleted
        tensors = {name: tensor.clone() for name, tensor in load_file(self.folder / OPTIMIZER).items()}
        return unflatten(tensors, self.state()["optimizer"])

    def state(self) -> dict[str, Any]:
        """Step, cursor, loss scale, configuration; under "optimizer" what of the optimizer is no tensor."""
        state: dict[str, Any] = json.loads((self.folder / STATE).read_text())
        return state


@dataclass(frozen=True)
class Committed:
    """A checkpoint that was written."""

    step: int
    bytes: int
    seconds: float
    """To write it, to read it back and to delete those before it."""


class CheckpointStore:
    """The checkpoints of one run, for one thread; the thread that writes them is the store's own.

    Args:
        root: the folder that holds them.
        keep_last, keep_best, keep_every: which are kept, as `Retention` has it.
        asynchronous: write in a thread, from a copy of the tensors in host memory.
        warn: told, once, if there is no memory for that copy; the caller of `save` then waits for the disk.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep_last: int,
        keep_best: int = 0,
        keep_every: int | None = None,
        asynchronous: bool = False,
        warn: Callable[[str], None] = print,
    ) -> None:
        self.root = root
        self.retention = Retention(keep_last, keep_best, keep_every)
        self._staging = StagingMemory() if asynchronous else None
        self._warn = warn
        self._writer = Writer()
        self._pending: Work[Committed] | None = None

    @classmethod
    def of(cls, config: CheckpointConfig, output: Path, *, warn: Callable[[str], None] = print) -> CheckpointStore:
        """The checkpoints in the folder of a run's outputs, kept as its configuration says."""
        return cls(
            output / "checkpoints",
            keep_last=config.keep_last,
            keep_best=config.keep_best,
            keep_every=config.keep_every,
            asynchronous=config.asynchronous,
            warn=warn,
        )

    @property
    def asynchronous(self) -> bool:
        """True if what is saved is copied first, and written while training goes on."""
        return self._staging is not None

    @property
    def writing(self) -> bool:
        """True while a checkpoint is being written."""
        return self._pending is not None and not self._pending.done

    def save(
        self,
        step: int,
        *,
        weights: Tensors,
        optimizer: Mapping[str, Any],
        state: Mapping[str, Any],
        validation_loss: float | None = None,
    ) -> None:
        """Begins the checkpoint of `step`; once this returns, everything given may change. `collect` tells the end.

        It is written, committed and read back; then those that no rule keeps are deleted, and all remains of a death.
        One is written at a time: a call finishes the one before.

        Args:
            validation_loss: of these very weights, where they were validated.

        Raises:
            StorageError: the disk is full or read-only, for this checkpoint or the one before; nothing half-written
                stays.
        """
        self.collect(wait=True)
        moments, rest = flatten(optimizer)
        tensors = {WEIGHTS: dict(weights), OPTIMIZER: moments}
        text = json.dumps({**state, "optimizer": rest}, indent=1)
        if copies := self._copies(tensors):
            work = Work(self._write(step, validation_loss, text, copies))
            self._writer.start(work)
        else:
            work = Work(self._write(step, validation_loss, text, tensors))
            work.finish()
            work.result()  # raises at once what `collect` would else raise
        self._pending = work

    def collect(self, *, wait: bool) -> Committed | None:
        """What became of the last `save`, told once; None if there is nothing to tell, or not yet.

        Args:
            wait: finish it first, if it is not.

        Raises:
            StorageError: it failed; nothing half-written stays.
        """
        work = self._pending
        if work is None or not (wait or work.done):
            return None
        self._pending = None
        work.finish()
        return work.result()

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies, or None; first finishes one that is being written.

        Raises:
            ConflictError: it is of another format.
        """
        if self._pending is not None:
            self._pending.finish()  # what became of it is still to be told
        for step, folder in sorted(self._folders().items(), reverse=True):
            if verify(folder):
                return Checkpoint(folder, step)
        return None

    def best(self) -> Checkpoint | None:
        """That of the lowest validation loss among those that verify, the earliest of equal ones; None without any.

        Raises:
            ConflictError: it is of another format.
        """
        found = [one for folder in self._folders().values() if (one := committed(folder))]
        ranked = sorted((one.validation_loss, one.step) for one in found if one.validation_loss is not None)
        return next((checkpoint for _, step in ranked if (checkpoint := self.at(step))), None)

    def at(self, step: int) -> Checkpoint | None:
        """The checkpoint of `step` if it verifies, or None.

        Raises:
            ConflictError: it is of another format.
        """
        folder = self.root / folder_name(step)
        return Checkpoint(folder, step) if verify(folder) else None

    def _copies(self, tensors: Mapping[str, Tensors]) -> dict[str, dict[str, torch.Tensor]] | None:
        """Copies that nothing changes while they are written; None where the caller is to wait instead."""
        if self._staging is None:
            return None
        need = sum(bytes_of(held.values()) for held in tensors.values())
        try:
            return self._staging.copy(tensors)
        except (MemoryError, RuntimeError) as problem:
            self._staging = None
            self._warn(
                f"warning: no memory for a copy of {need / storage.MIB:.0f} MiB, so training waits while checkpoints"
                f" are written ({str(problem).partition(chr(10))[0]})"
            )
            return None

    def _write(
        self, step: int, validation_loss: float | None, text: str, tensors: Mapping[str, Tensors]
    ) -> Generator[None, None, Committed]:
        """Everything that a checkpoint needs of the disk, in small steps."""
        started = time.perf_counter()
        folder, doing = self.root / folder_name(step), f"the checkpoint of step {step}"
        if self._staging is not None:
            self._staging.wait()
        with storage.storage_errors(self.root, doing, partial=folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            storage.require_free(self.root, sum(bytes_of(held.values()) for held in tensors.values()), doing)
            files = {}
            for name, held in tensors.items():
                files[name] = yield from write_tensors(folder / name, held)
            files[STATE] = yield from write_file(folder / STATE, [text.encode()])
            write_commit(folder, Commit(step, validation_loss, files))
            yield
            if not (yield from verifying(folder)):
                raise OSError(f"{folder} does not read back as it was written")
        self._prune(step)
        return Committed(step, sum(file.bytes for file in files.values()), time.perf_counter() - started)

    def _folders(self) -> dict[int, Path]:
        """Step -> folder, whatever is in it."""
        if not self.root.is_dir():
            return {}
        found = ((FOLDER.fullmatch(path.name), path) for path in self.root.iterdir())
        return {int(match[1]): path for match, path in found if match and path.is_dir() and not path.is_symlink()}

    def _prune(self, saved: int) -> None:
        """Deletes what no rule keeps.

        What is newer than the step just saved did not verify, or the run would have gone on from there: it must not
        count as kept.
        """
        folders = self._folders()
        found = [committed(folder) for step, folder in folders.items() if step <= saved]
        kept = self.retention.keeps([one for one in found if one])
        for step in folders.keys() - kept:
            # the commit goes first: a deletion cut short must not leave a folder that looks valid for longer
            (folders[step] / COMMIT).unlink(missing_ok=True)
            shutil.rmtree(folders[step], ignore_errors=True)
