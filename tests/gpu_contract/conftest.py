"""Runs the scenes once per session, in a process that has the fake device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_device import SCENES, build

from tests.conftest import write_corpus
from train_jobs.config import PretrainConfig
from train_jobs.corpus.preparation import prepare_store

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what each scene did with the device; skip if the device cannot be compiled."""
    folder = tmp_path_factory.mktemp("gpu_contract")
    try:
        library = build(folder)
    except OSError as problem:
        pytest.skip(f"no fake GPU: {problem}")
    text = {"text": [str(write_corpus(folder / "corpus.txt"))], "vocab_size": 256, "validation_fraction": 0.2}
    data = PretrainConfig.model_validate({"data": {"sequence_length": 32, **text}}).data
    prepare_store(data, folder / "store", progress=lambda _: None)
    output = folder / "played.json"
    done = subprocess.run(
        [sys.executable, str(HERE / "play.py"), str(library), str(folder / "store"), str(output), *SCENES],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(output.read_text())
    return found
