"""Writing to disks that work, are full or are read-only, and to paths that are blocked by a file."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_disk import Disk
from safetensors.torch import save_file

from train_jobs.artifacts.commit import finish
from train_jobs.config import StorageError
from train_jobs.engine.checkpoint.serialization import write_tensors
from train_jobs.engine.runtime import storage


def test_json_write_is_atomic_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    storage.write_json(path, {"a": 1})
    with path.open() as before:
        storage.write_json(path, {"a": [2, "\N{SNOWMAN}"]})
        assert json.load(before) == {"a": 1}, "who reads the old file goes on reading the old file"
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": [2, "\N{SNOWMAN}"]}
    assert [found.name for found in tmp_path.iterdir()] == ["result.json"]


def test_failed_json_write_keeps_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    storage.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        storage.write_json(path, {"long": "x" * 100_000, "then": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [found.name for found in tmp_path.iterdir()] == ["result.json"]


def test_json_write_on_full_disk_keeps_old_file(disk: Disk) -> None:
    path = disk.folder / "result.json"
    storage.write_json(path, {"a": 1})
    disk.resize(2 * 4096)
    with (
        pytest.raises(StorageError, match="cannot write result: the disk is full"),
        storage.storage_errors(path, "result"),
    ):
        storage.write_json(path, {"long": "x" * 100_000})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [found.name for found in disk.folder.iterdir()] == ["result.json"]


def test_writable_folder_is_created_and_left_empty(tmp_path: Path) -> None:
    for _ in range(2):
        storage.require_writable(tmp_path / "a" / "b")
        assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("name", [".", "new"])
def test_read_only_disk_is_refused(disk: Disk, name: str) -> None:
    disk.make_read_only()
    with pytest.raises(StorageError, match="cannot write the output folder: read-only file system") as caught:
        storage.require_writable(disk.folder / name)
    assert caught.value.facts["where"] == disk.folder / name


@pytest.mark.parametrize("name", ["file", "file/output", "file/deep/output"])
def test_file_in_place_of_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match="cannot write the output folder") as caught:
        storage.require_writable(tmp_path / name)
    assert str(tmp_path / "file") in str(caught.value)
    assert "chmod" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "not a folder"


def test_free_space_is_measured_on_target_disk(disk: Disk) -> None:
    disk.resize(2 * storage.MIB)
    folder = disk.folder / "not" / "yet" / "there"
    storage.require_free(folder, storage.MIB, "the export")
    with pytest.raises(StorageError, match="cannot write the export: not enough disk space") as caught:
        storage.require_free(folder, 3 * storage.MIB, "the export")
    assert caught.value.facts == {"need": "3.0 MiB", "free": "2.0 MiB", "where": folder}


@pytest.mark.parametrize(
    ("problem", "begins"),
    [
        (OSError(errno.ENOSPC, "x"), "cannot write the export: the disk is full"),
        (OSError(errno.EDQUOT, "x"), "cannot write the export: the disk is full"),
        (OSError(errno.EROFS, "x"), "cannot write"),
        (PermissionError(errno.EACCES, "x"), "cannot write"),
    ],
)
def test_storage_problems_are_distinguished(tmp_path: Path, problem: Exception, begins: str) -> None:
    found = storage.explain(problem, tmp_path / "missing", "the export")
    assert found is not None
    assert found.message.startswith(begins)
    assert found.fix


def refused(path: Path) -> PermissionError:
    """Return the error that the system raises; root would never get it."""
    return PermissionError(errno.EACCES, "Permission denied", str(path))


def test_unwritable_file_elsewhere_is_named(tmp_path: Path) -> None:
    text, folder = tmp_path / "my text.txt", tmp_path / "out"
    found = storage.explain(refused(text), folder, "the run's output")
    assert found is not None
    assert str(found) == f"error[storage]: cannot access {text}: permission denied\n  fix  chmod u+rwX '{text}'"
    for ours in (folder, folder / "a" / "b", tmp_path, folder.with_name(".out.7.tmp")):
        found = storage.explain(refused(ours), folder, "the run's output")
        assert found is not None
        assert found.fix == f"chmod u+w {folder}"


def write_safetensors(path: Path) -> None:
    save_file({"weight": torch.zeros(100_000)}, path)


def write_checkpoint(path: Path) -> None:
    finish(write_tensors(path, {"weight": torch.zeros(100_000)}))


def write_text(path: Path) -> None:
    path.write_text("x" * 400_000)


@pytest.mark.parametrize("write", [write_safetensors, write_checkpoint, write_text])
@pytest.mark.parametrize("state", ["full", "read-only"])
def test_storage_error_of_every_writer_is_explained(disk: Disk, write: Callable[[Path], None], state: str) -> None:
    """Each writer raises a different exception."""
    if state == "full":
        disk.resize(16 * 4096)
    else:
        disk.make_read_only()
    reasons = {"full": "the disk is full", "read-only": "read-only file system"}
    begins = f"cannot write the export: {reasons[state]}"
    with pytest.raises(StorageError) as caught, storage.storage_errors(disk.folder, "the export"):
        write(disk.folder / "file")
    assert caught.value.message == begins


def test_explained_error_is_not_wrapped_again(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match="cannot write the inner: the disk is full"),
        storage.storage_errors(tmp_path, "the outer"),
        storage.storage_errors(tmp_path, "the inner"),
    ):
        raise OSError(errno.ENOSPC, "x")


@pytest.mark.parametrize("problem", [ValueError("x"), FileNotFoundError(errno.ENOENT, "x"), KeyboardInterrupt()])
def test_other_problems_unchanged_and_no_partial_file(tmp_path: Path, problem: BaseException) -> None:
    partial = tmp_path / "partial"
    partial.mkdir()
    (partial / "half").write_bytes(b"half")
    with pytest.raises(type(problem)) as caught, storage.storage_errors(tmp_path, "it", partial=partial):
        raise problem
    assert caught.value is problem
    assert not partial.exists()


def test_successful_write_is_kept(tmp_path: Path) -> None:
    with storage.storage_errors(tmp_path, "it", partial=tmp_path / "whole"):
        (tmp_path / "whole").mkdir()
    assert (tmp_path / "whole").is_dir()
