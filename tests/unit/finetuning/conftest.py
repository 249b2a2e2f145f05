"""A BERT for all jobs; and nothing of theirs is left in this process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from finetune_jobs import write_model


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with drawn weights."""
    return write_model(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Several wait for one another longer than such small models compute, where others work too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def _signals() -> Iterator[None]:
    """A job in this process listens for SIGTERM: not for longer than these tests."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
