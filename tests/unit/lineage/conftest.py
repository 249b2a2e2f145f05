"""A token store, and lineages of runs without training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lineage_runs import METRICS, TAGS, attempt, config_of

from tests.conftest import write_corpus
from train_jobs.artifacts.lineage import Lineage, read_lineage
from train_jobs.corpus.preparation import prepare_store
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.records import pretraining_lineage
from train_jobs.records.pretraining_lineage import TrainingStart


@pytest.fixture(scope="session")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a text."""
    return write_corpus(tmp_path_factory.mktemp("private") / "notes.txt")


@pytest.fixture(scope="session")
def store(notes: Path) -> TokenStore:
    """Create the token store of the text."""
    return prepare_store(config_of(notes).data, notes.parent / "stores" / "key", progress=lambda _: None)


@pytest.fixture
def complete(notes: Path, store: TokenStore, tmp_path: Path) -> Callable[..., Lineage]:
    """Return a function that writes the lineage of a completed run, as it is stored in the folder of a model."""

    def make(
        tags: dict[str, str] = TAGS, metrics: dict[str, float] = METRICS, weights: bytes = b"trained", **sections: Any
    ) -> Lineage:
        config, output = config_of(notes, **sections), tmp_path / "out"
        (output / "model").mkdir(parents=True, exist_ok=True)
        (output / "model" / "model.safetensors").write_bytes(weights)
        model = torch.nn.Linear(3, 2)
        begun = pretraining_lineage.begin(
            config, store, TrainingStart(attempt(), model, [], output, tags), store.folder.parent
        )
        pretraining_lineage.describe(begun, output / "model", steps=5, sequences=40, metrics=metrics)
        found = read_lineage(output / "model" / "lineage.json")
        assert found is not None
        return found

    return make
