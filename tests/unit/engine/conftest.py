"""Fixtures shared by the engine tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_bert import config_with
from engine_disk import Disk
from engine_scenes import play

from tests.conftest import tmpfs, write_corpus
from train_jobs.corpus.preparation import prepare_store
from train_jobs.corpus.store.token_store import TokenStore


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Yield a disk of 4 MiB; skip the test if the user may not mount one."""
    with tmpfs(tmp_path / "disk", "4m") as folder:
        yield Disk(folder)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """Return the token store of the small pretraining job."""
    folder = tmp_path_factory.mktemp("pretrain")
    data = config_with(data={"text": [str(write_corpus(folder / "corpus.txt"))]}).data
    return prepare_store(data, folder / "store", progress=lambda _: None)


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all multi-process scenes and return their folder; see `engine_scenes.main`."""
    return play(tmp_path_factory.mktemp("scenes"))
