"""The real client of Azure ML, directed to the double by environment variables alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing import AzureDouble

logging.getLogger("azure.ai.ml").setLevel(logging.ERROR)  # each experimental class would log a warning


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[AzureDouble]:
    """Yield a workspace that accepts jobs and leaves them as they are."""
    with AzureDouble(tmp_path / "azure", run_jobs=False) as double:
        yield double
        assert double.refused == []


@pytest.fixture
def running_azure(tmp_path: Path) -> Iterator[AzureDouble]:
    """Yield a workspace that runs jobs."""
    with AzureDouble(tmp_path / "azure") as double:
        yield double
        assert (double.refused, double.violations) == ([], [])


@pytest.fixture
def client() -> Callable[[AzureDouble], Any]:
    """Return a function that makes an MLClient, signed in by a secret."""

    def make(double: AzureDouble, workspace: str | None = None) -> Any:
        from azure.ai.ml import MLClient
        from azure.identity import EnvironmentCredential

        place = double.place
        named = (place.subscription, place.resource_group, workspace or place.workspace)
        return MLClient(EnvironmentCredential(), *named, enable_telemetry=False, show_progress=False)

    return make


@pytest.fixture
def ml(azure: AzureDouble, client: Callable[[AzureDouble], Any]) -> Any:
    """Return the client of `azure`."""
    return client(azure)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Write a job's code, which prints its rank and copies its input to its output."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "job.py").write_text(
        "import os, pathlib, shutil, sys\n"
        "rank, world = os.environ['RANK'], os.environ['WORLD_SIZE']\n"
        "print(f'{rank} of {world} on node', os.environ['NODE_RANK'], flush=True)\n"
        "shutil.copy(pathlib.Path(sys.argv[1], 'text.txt'), pathlib.Path(sys.argv[2], f'copy-{rank}.txt'))\n"
    )
    return folder
