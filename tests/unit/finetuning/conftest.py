"""A BERT for all jobs; and nothing of theirs is left in this process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from finetune_jobs import write_model


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with drawn weights."""
    return write_model(tmp_path_factory.mktemp("bert"))


@pytest.fixture(autouse=True, scope="module")
def _signals() -> Iterator[None]:
    """A job in this process listens for SIGTERM: not for longer than these tests."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
