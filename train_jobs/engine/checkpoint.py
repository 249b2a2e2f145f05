"""Checkpoints: folders that count only when their COMMIT.json verifies.

    checkpoints/step-00000500/
        model.safetensors   weights under their Hugging Face names
        optimizer.pt        moments, for torch.load(weights_only=True)
        state.json          step, data cursor, loss scale, configuration
        COMMIT.json         names, sizes and SHA-256 of the others; written last and read back

A mounted blob store copies and deletes where a disk renames, so no rename, no mtime and no link is trusted: the newest
folder that verifies under its own name is the checkpoint, and any other is the remains of a death.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from train_jobs.config.files import file_sha256, sync
from train_jobs.engine import storage

FORMAT = 1
COMMIT = "COMMIT.json"
_FOLDER = re.compile(r"step-(\d{8})")


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint."""

    folder: Path
    step: int

    def weights(self) -> dict[str, torch.Tensor]:
        """The model's state, on the CPU."""
        return load_file(self.folder / "model.safetensors")

    def optimizer(self) -> dict[str, Any]:
        """The optimizer's state, on the CPU."""
        state: dict[str, Any] = torch.load(self.folder / "optimizer.pt", map_location="cpu", weights_only=True)
        return state

    def state(self) -> dict[str, Any]:
        """Step, cursor, loss scale, configuration."""
        state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return state


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        root: the folder that holds them.
        keep_last: how many to keep.
    """

    def __init__(self, root: Path, *, keep_last: int) -> None:
        self.root = root
        self.keep_last = keep_last

    def save(
        self,
        step: int,
        *,
        weights: Mapping[str, torch.Tensor],
        optimizer: Mapping[str, Any],
        state: Mapping[str, Any],
    ) -> Checkpoint:
        """Writes and commits the checkpoint of `step`, then deletes those past `keep_last` and remains of later steps.

        Raises:
            StorageError: the disk is full or read-only; nothing half-written stays.
        """
        folder = self.root / _name(step)
        tensors = {name: tensor.detach().to("cpu").contiguous() for name, tensor in weights.items()}
        need = _bytes_of(tensors) + _bytes_of(optimizer)
        with storage.storage_errors(self.root, f"the checkpoint of step {step}", partial=folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            storage.require_free(self.root, need, f"the checkpoint of step {step}")
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
            with (folder / "optimizer.pt").open("wb") as stream:
                torch.save(dict(optimizer), stream)
            (folder / "state.json").write_text(json.dumps(dict(state), indent=1))
            commit(folder, step)
            if not verify(folder):
                raise OSError(f"{folder} does not read back as it was written")
        self._prune(step)
        return Checkpoint(folder, step)

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies, or None."""
        for step, folder in sorted(self._folders(), reverse=True):
            if verify(folder):
                return Checkpoint(folder, step)
        return None

    def at(self, step: int) -> Checkpoint | None:
        """The checkpoint of `step` if it verifies, or None."""
        folder = self.root / _name(step)
        return Checkpoint(folder, step) if verify(folder) else None

    def _folders(self) -> list[tuple[int, Path]]:
        if not self.root.is_dir():
            return []
        found = ((_FOLDER.fullmatch(path.name), path) for path in self.root.iterdir())
        return [(int(match[1]), path) for match, path in found if match and path.is_dir() and not path.is_symlink()]

    def _prune(self, saved: int) -> None:
        """Deletes what is older than the newest `keep_last` committed ones; remains of a death go with them.

        What is newer than the step just saved did not verify, or the run would have gone on from there: it must not
        count as kept.
        """
        kept = 0
        for step, folder in sorted(self._folders(), reverse=True):
            if kept >= self.keep_last or step > saved:
                # the commit goes first: a deletion cut short must not leave a folder that looks valid for longer
                (folder / COMMIT).unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)
            elif (folder / COMMIT).is_file():
                kept += 1


def commit(folder: Path, step: int) -> None:
    """Writes COMMIT.json over everything that the folder holds."""
    files = {}
    for path in sorted(p for p in folder.iterdir() if p.name != COMMIT):
        sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    text = json.dumps({"format": FORMAT, "step": step, "files": files}, indent=1)
    with (folder / COMMIT).open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    with contextlib.suppress(OSError):  # not every mounted store can sync a folder
        sync(folder)


def verify(folder: Path) -> bool:
    """True if COMMIT.json is whole and of this folder, and every file that it names has its size and its SHA-256."""
    try:
        document = json.loads((folder / COMMIT).read_text())
        if document["format"] != FORMAT or not document["files"] or folder.name != _name(document["step"]):
            return False
        for name, facts in document["files"].items():
            path = folder / name
            if path.stat().st_size != facts["bytes"] or file_sha256(path) != facts["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _bytes_of(tree: Any) -> int:
    if isinstance(tree, torch.Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, Mapping):
        return sum(_bytes_of(value) for value in tree.values())
    if isinstance(tree, list | tuple):
        return sum(_bytes_of(value) for value in tree)
    return 0
