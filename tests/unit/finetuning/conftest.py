"""A small BERT shared by all jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from finetune_jobs import write_model


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a BERT with random weights."""
    return write_model(tmp_path_factory.mktemp("bert"))
