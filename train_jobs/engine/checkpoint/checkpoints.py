"""Checkpoints: folders that count only when their COMMIT.json verifies.

    checkpoints/step-00000500/
        model.safetensors      weights under their Hugging Face names
        optimizer.safetensors  moments and counters: PARAMETER.exp_avg, ...
        state.json             step, data cursor, loss scale, the optimizer's options, configuration
        COMMIT.json            validation loss; names, sizes and SHA-256 of the others; written last and read back

A newer one that was committed and does not verify is renamed to damaged-step-... when the run resumes.

A mounted blob store copies and deletes where a disk renames, so no rename, no mtime and no link is trusted: the newest
folder that verifies under its own name is the checkpoint; any other comes from a process that died.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from train_jobs.artifacts.commit import (
    COMMIT,
    DAMAGED,
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
from train_jobs.engine.checkpoint.background import StagingMemory, Work, writer_thread
from train_jobs.engine.checkpoint.serialization import flatten, total_bytes, unflatten, write_tensors
from train_jobs.engine.runtime import storage

WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint."""

    folder: Path
    step: int

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the state of the model, on the CPU."""
        return load_file(self.folder / WEIGHTS)

    def optimizer(self) -> dict[str, Any]:
        """Return the state of the optimizer, on the CPU."""
        # load_file maps the file, and an optimizer keeps the tensors that it loads; but the file will be deleted
        tensors = {name: tensor.clone() for name, tensor in load_file(self.folder / OPTIMIZER).items()}
        return unflatten(tensors, self.state()["optimizer"])

    def state(self) -> dict[str, Any]:
        """Return step, cursor, loss scale, configuration, and under "optimizer" its values other than tensors."""
        state: dict[str, Any] = json.loads((self.folder / STATE).read_text())
        return state


@dataclass(frozen=True)
class Committed:
    """A checkpoint that was written."""

    step: int
    bytes: int
    seconds: float
    """Time to write it, to read it back and to delete earlier ones."""


class CheckpointStore:
    """Checkpoints of one run, for use by one thread; a thread of the store writes them.

    Args:
        root: the folder that holds them.
        keep_last, keep_best, keep_every: see `Retention`.
        asynchronous: write in a thread, from a copy of the tensors in host memory.
        best_is_result: the best checkpoint is the result of the run, so a newer one is useless without it.
        warn: called once if there is no memory for that copy; `save` then waits for the disk.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep_last: int,
        keep_best: int = 0,
        keep_every: int | None = None,
        asynchronous: bool = False,
        best_is_result: bool = False,
        warn: Callable[[str], None] = print,
    ) -> None:
        self.root = root
        self.retention = Retention(keep_last, keep_best, keep_every)
        self._best_is_result = best_is_result
        self._staging = StagingMemory() if asynchronous else None
        self._warn = warn
        self._writer = writer_thread()
        self._pending: Work[Committed] | None = None

    @classmethod
    def from_config(
        cls,
        config: CheckpointConfig,
        output: Path,
        *,
        best_is_result: bool = False,
        warn: Callable[[str], None] = print,
    ) -> CheckpointStore:
        """Return the checkpoint store of a run.

        Args:
            config: retention rules, and whether to write during training.
            output: output folder of the run; checkpoints are in its subfolder `checkpoints`.
            best_is_result, warn: see the class.
        """
        return cls(
            output / "checkpoints",
            keep_last=config.keep_last,
            keep_best=config.keep_best,
            keep_every=config.keep_every,
            asynchronous=config.asynchronous,
            best_is_result=best_is_result,
            warn=warn,
        )

    @property
    def asynchronous(self) -> bool:
        """Whether a checkpoint is copied first, and written while training continues."""
        return self._staging is not None

    @property
    def writing(self) -> bool:
        """Whether a checkpoint is being written."""
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
        """Start to write the checkpoint of `step`; once this returns, the tensors may change. See `collect`.

        It is written, committed and read back; then checkpoints that no rule keeps and incomplete folders are deleted.
        One is written at a time: a call finishes the one before.

        Args:
            validation_loss: of exactly these weights. None: they were not validated.

        Raises:
            StorageError: the disk is full or read-only, for this checkpoint or the one before; nothing half-written
                stays.
        """
        # A failed write must raise before its error is lost with the next checkpoint; and the staging memory that the
        # writer reads from is about to be overwritten.
        self.collect(wait=True)
        moments, rest = flatten(optimizer)
        tensors = {WEIGHTS: dict(weights), OPTIMIZER: moments}
        # Serialised now: the caller keeps changing these objects while the thread writes.
        text = json.dumps({**state, "optimizer": rest}, indent=1)
        copies = self._copies(tensors)
        work = Work(self._write(step, validation_loss, text, copies or tensors))
        if copies:
            self._writer.submit(work.run)
        else:
            work.finish()
            work.result()  # raises here what `collect` would raise later
        self._pending = work

    def collect(self, *, wait: bool) -> Committed | None:
        """Return the outcome of the last `save` once; None before a first `save` and while it is being written.

        Args:
            wait: finish writing first.

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
        """Return the newest checkpoint that verifies, or None; finish one that is being written first.

        If the best checkpoint is the result of the run, the best ones of that step verify too: a run that continued
        without them would end with another result than an undisturbed one.

        Raises:
            ConflictError: its format is unknown to this version.
        """
        if self._pending is not None:
            self._pending.finish()  # `collect` still returns its outcome
        # By the step in the name, never by modification time: a mounted blob store does not preserve it.
        for step, folder in sorted(self._folders().items(), reverse=True):
            if verify(folder) and (not self._best_is_result or self._has_best(Checkpoint(folder, step))):
                return Checkpoint(folder, step)
        return None

    def steps(self) -> list[int]:
        """Return the steps of the committed checkpoints, in ascending order; their files are not verified."""
        return sorted(one.step for folder in self._folders().values() if (one := committed(folder)))

    def _has_best(self, checkpoint: Checkpoint) -> bool:
        """Return whether the checkpoints verify that were the best ones when this one was written."""
        found = [one for folder in self._folders().values() if (one := committed(folder))]
        # the earliest last: of equal losses its checkpoint is the best
        ranked = sorted((one for one in found if one.step <= checkpoint.step), key=lambda one: -one.step)
        steps = {one.validation_loss: one.step for one in ranked}
        loop = checkpoint.state().get("loop", {})
        best = loop.get("best", [])
        # another checkpoint may have the same loss; a version that did not record the steps gives none, or 0
        needed = [step or steps.get(loss) for loss, step in zip_longest(best, loop.get("best_steps", []))]
        return all(step is not None and self.at(step) is not None for step in needed)

    def set_aside_damaged(self, newer_than: int) -> list[int]:
        """Rename committed checkpoints that do not verify; a checkpoint of the same or a later step deletes them.

        Args:
            newer_than: step of the checkpoint that the run resumes from; -1 without one.

        Returns:
            The steps of the damaged checkpoints, in ascending order.

        Raises:
            StorageError: the folder cannot be written.
        """
        newer = {step: folder for step, folder in sorted(self._folders().items()) if step > newer_than}
        # a folder without a commit is no damage: the process died while it wrote it
        damaged = {step: folder for step, folder in newer.items() if (folder / COMMIT).exists() and not verify(folder)}
        for step, folder in damaged.items():
            with storage.storage_errors(self.root, f"the damaged checkpoint of step {step}"):
                aside = folder.with_name(DAMAGED + folder.name)
                shutil.rmtree(aside, ignore_errors=True)
                folder.rename(aside)
        return list(damaged)

    def best(self) -> Checkpoint | None:
        """Return the valid checkpoint with the lowest validation loss, the earliest in a tie; None without one.

        Raises:
            ConflictError: its format is unknown to this version.
        """
        found = [one for folder in self._folders().values() if (one := committed(folder))]
        ranked = sorted((one.validation_loss, one.step) for one in found if one.validation_loss is not None)
        return next((checkpoint for _, step in ranked if (checkpoint := self.at(step))), None)

    def at(self, step: int) -> Checkpoint | None:
        """Return the checkpoint of `step` if it verifies, or None.

        Raises:
            ConflictError: its format is unknown to this version.
        """
        folder = self.root / folder_name(step)
        return Checkpoint(folder, step) if verify(folder) else None

    def _copies(self, tensors: Mapping[str, Tensors]) -> dict[str, dict[str, torch.Tensor]] | None:
        """Return copies of the tensors to write from; None where the caller must wait for the disk instead."""
        if self._staging is None:
            return None
        need = sum(total_bytes(held.values()) for held in tensors.values())
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
        """Write, verify and prune in small steps."""
        started = time.perf_counter()
        folder, doing = self.root / folder_name(step), f"the checkpoint of step {step}"
        if self._staging is not None:
            self._staging.wait()  # in the writer thread, so training does not wait for the copy from the GPU
        with storage.storage_errors(self.root, doing, partial=folder):
            # a process that died while writing the same step may have left files of another size
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            # checked first: a disk that fills up halfway would also take the space of logs and error files
            storage.require_free(self.root, sum(total_bytes(held.values()) for held in tensors.values()), doing)
            files = {}
            for name, held in tensors.items():
                files[name] = yield from write_tensors(folder / name, held)
            files[STATE] = yield from write_file(folder / STATE, [text.encode()])
            # Last, since it makes the folder valid: a kill before this line leaves a folder that is ignored.
            write_commit(folder, Commit(step, validation_loss, files))
            yield
            # Older checkpoints are deleted only after this one was read back: a disk that corrupts data must not cost
            # both.
            if not (yield from verifying(folder)):
                raise OSError(f"{folder} does not read back as it was written")
        self.prune(step)
        return Committed(step, sum(file.bytes for file in files.values()), time.perf_counter() - started)

    def _folders(self) -> dict[int, Path]:
        """Return step -> folder of all checkpoint folders, valid or not."""
        if not self.root.is_dir():
            return {}
        found = ((FOLDER.fullmatch(path.name), path) for path in self.root.iterdir())
        return {int(match[1]): path for match, path in found if match and path.is_dir() and not path.is_symlink()}

    def prune(self, saved: int) -> None:
        """Delete checkpoints that no rule keeps.

        A folder newer than the step just saved did not verify, or the run would have resumed from it: it must not count
        as kept.

        Args:
            saved: step of the newest checkpoint, which verifies.
        """
        for aside in self.root.glob(f"{DAMAGED}step-*"):
            if aside.name <= DAMAGED + folder_name(saved):
                shutil.rmtree(aside, ignore_errors=True)
        folders = self._folders()
        found = [committed(folder) for step, folder in folders.items() if step <= saved]
        kept = self.retention.steps_to_keep([one for one in found if one])
        for step in folders.keys() - kept:
            # the commit goes first: an interrupted deletion must not leave a folder that looks valid
            (folders[step] / COMMIT).unlink(missing_ok=True)
            shutil.rmtree(folders[step], ignore_errors=True)


MINUTE = 60.0


class Cadence:
    """When a checkpoint is due.

    Args:
        config: intervals in steps and minutes, and the number of best checkpoints to keep.
        clock: monotonic time in seconds.
    """

    def __init__(self, config: CheckpointConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._multiples = [every for every in (config.every, config.keep_every) if every]
        self._seconds = math.inf if config.every_minutes is None else config.every_minutes * MINUTE
        self.keep_best = config.keep_best
        self._clock = clock
        self._started = clock()

    def restart(self) -> None:
        """Count the minutes from now."""
        self._started = self._clock()

    def by_clock(self) -> bool:
        """Return whether the interval in minutes has passed, by this process's own clock."""
        return self._clock() - self._started >= self._seconds

    def at_step(self, step: int) -> bool:
        """Return whether a checkpoint is due at this step, regardless of the clock."""
        return any(step % every == 0 for every in self._multiples)

    def is_best(self, loss: float, best: Sequence[float]) -> bool:
        """Return whether the loss of a validation is among the `keep_best` lowest.

        Args:
            loss: loss of the validation, in nats.
            best: lowest losses of earlier validations, in ascending order, at most `keep_best`.
        """
        count = self.keep_best
        # Strictly lower: of equal losses the earlier checkpoint is kept, as in `Retention`. NaN compares as false with
        # everything and would otherwise displace a good checkpoint.
        return math.isfinite(loss) and count > 0 and (len(best) < count or loss < best[count - 1])


@dataclass(frozen=True)
class Retention:
    """Rules of retention; a checkpoint is kept if any of them keeps it.

    Args:
        last: number of the newest ones.
        best: number of those with the lowest validation loss.
        every: keep each step that is a multiple of this.
    """

    last: int
    best: int = 0
    every: int | None = None

    def steps_to_keep(self, found: Sequence[Commit]) -> set[int]:
        """Return the steps of the checkpoints to keep.

        Args:
            found: commits of all valid checkpoints, in any order.

        Returns:
            Steps that any rule keeps; of equal validation losses the earlier step wins.
        """
        newest = sorted(one.step for one in found)[-self.last :]
        ranked = sorted((one.validation_loss, one.step) for one in found if one.validation_loss is not None)
        multiples = [one.step for one in found if self.every and one.step % self.every == 0]
        return {*newest, *(step for _, step in ranked[: self.best]), *multiples}
