"""The model of the best seed, copied atomically; and the requirements of compiling."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from train_jobs.config import SpecError
from train_jobs.models.bert.encoder import is_compiled, require_compiler
from train_jobs.tasks.replicates import replace_by_copy


def filled(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_copy_replaces_existing_folder(tmp_path: Path) -> None:
    best = filled(tmp_path / "best", config="new", weights="new")
    model = filled(tmp_path / "model", config="old", weights="old", extra="old")
    filled(tmp_path / ".model.partial", half="left by a kill")
    replace_by_copy(best, model)
    assert content(model) == content(best)
    replace_by_copy(best, tmp_path / "first")
    assert content(tmp_path / "first") == content(best)
    assert {path.name for path in tmp_path.iterdir()} == {"best", "model", "first"}


def test_interrupted_copy_keeps_existing_folder(tmp_path: Path) -> None:
    best = filled(tmp_path / "best", config="new", weights="new")
    os.mkfifo(best / "no_file")  # cannot be copied
    model = filled(tmp_path / "model", config="old", weights="old")
    with pytest.raises(shutil.Error):
        replace_by_copy(best, model)
    assert content(model) == {"config": "old", "weights": "old"}
    assert {path.name for path in tmp_path.iterdir()} == {"best", "model"}


def test_compiling_needs_the_compiler_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [is_compiled(wanted, device) for wanted in ("auto", True, False) for device in (cpu, gpu)] == [
        *(False, True),
        *(True, True),
        *(False, False),
    ]
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(SpecError, match=r"cannot compile for a GPU: train\.compile needs a C compiler"):
        require_compiler(gpu, key="train.compile")
    with pytest.raises(SpecError, match=r"cannot compile for a CPU: train\.compile needs a C\+\+ compiler"):
        require_compiler(cpu, key="train.compile")
