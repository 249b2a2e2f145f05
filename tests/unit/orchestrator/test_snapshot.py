"""The packaged code: its files, its digest, and the match of written and hashed content."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import train_jobs
from orchestrator.snapshot import take_snapshot
from orchestrator.support.errors import ConflictError, StorageError


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Create a small package that also contains files other than code."""
    root = tmp_path / "site" / "train_jobs"
    for name, content in {
        "__init__.py": b"",
        "loop.py": b"steps = 1\n",
        "presets/tiny.yaml": b"a: 1\n",
        "__pycache__/loop.cpython-311.pyc": b"\0",
        "old.pyc": b"\0",
        ".secret": b"token",
        ".hidden/file.py": b"x",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def test_files_are_sorted_hashed_and_only_code(package: Path) -> None:
    snapshot = take_snapshot(package)
    assert [(file.path, file.size) for file in snapshot.files] == [
        ("train_jobs/__init__.py", 0),
        ("train_jobs/loop.py", 10),
        ("train_jobs/presets/tiny.yaml", 5),
    ]
    assert snapshot.files[1].sha256 == hashlib.sha256(b"steps = 1\n").hexdigest()
    assert snapshot.total_bytes == 15


def test_digest_covers_content_and_not_location(package: Path, tmp_path: Path) -> None:
    before = take_snapshot(package).digest
    copy = shutil.copytree(package, tmp_path / "elsewhere" / "copied")
    (copy / "__pycache__" / "more.pyc").write_bytes(b"1")
    assert take_snapshot(copy).digest == before
    (copy / "loop.py").write_bytes(b"steps = 2\n")
    assert take_snapshot(copy).digest != before


def test_renamed_file_changes_the_digest(package: Path) -> None:
    before = take_snapshot(package).digest
    (package / "loop.py").rename(package / "pool.py")
    assert take_snapshot(package).digest != before


def test_written_files_equal_the_snapshot(package: Path, tmp_path: Path) -> None:
    snapshot = take_snapshot(package)
    snapshot.write(tmp_path / "run")
    assert take_snapshot(tmp_path / "run" / "train_jobs").digest == snapshot.digest
    assert not list((tmp_path / "run").rglob(".*"))


@pytest.mark.parametrize("change", ["edit", "remove"])
def test_code_changed_meanwhile_is_refused(package: Path, tmp_path: Path, change: str) -> None:
    snapshot = take_snapshot(package)
    if change == "edit":
        (package / "loop.py").write_bytes(b"steps = 9\n")
    else:
        (package / "__init__.py").unlink()  # a deleted file is not the same as an empty one
    with pytest.raises(ConflictError, match="changed while the run was being made"):
        snapshot.write(tmp_path / "run")


def test_unwritable_folder_is_named(package: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file is in the way")
    with pytest.raises(StorageError, match="cannot write the code to"):
        take_snapshot(package).write(tmp_path / "run")


def test_summary_shows_the_largest_files_first(package: Path) -> None:
    summary = take_snapshot(package).summary()
    assert (summary["files"], summary["total_bytes"]) == (3, 15)
    assert [entry["size"] for entry in summary["largest"]] == [10, 5, 0]


def test_installed_package_runs_from_its_snapshot(tmp_path: Path) -> None:
    # a copy, because the original may be edited meanwhile
    source = shutil.copytree(Path(train_jobs.__file__).parent, tmp_path / "train_jobs")
    take_snapshot(source).write(tmp_path / "run")
    program = (
        "from train_jobs.artifacts.layers import *; from train_jobs.config import PretrainConfig; import train_jobs;"
        "build(PretrainConfig, merge(read_preset('tiny'))); print(train_jobs.__file__)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path / "run", capture_output=True, text=True, check=True
    )
    assert Path(answer.stdout.strip()).is_relative_to(tmp_path / "run")


def test_default_package_is_the_installed_one() -> None:
    paths = {file.path for file in take_snapshot().files}
    assert {"train_jobs/config/pretrain.py", "train_jobs/recipes/pretrain/tiny.yaml"} <= paths
