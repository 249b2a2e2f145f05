"""The creation of an MLflow store, next to other processes that create it too."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from train_jobs.artifacts.tracking.mlflow_store import Condition, examine, prepare

CREATES = """
import os, sys, time
from mlflow.store.tracking.dbmodels.initial_models import Base
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy import create_engine

place, folder = sys.argv[1:]
engine = create_engine(f"sqlite:///{place}")
Base.metadata.create_all(engine)
print("begun", flush=True)
for _ in range(10):
    time.sleep(0.1)
    os.utime(place)
SqlAlchemyStore(f"sqlite:///{place}", folder)
"""
"""The steps in which MLflow creates a store, with a pause after the first."""


def test_store_that_another_process_creates_is_awaited(tmp_path: Path) -> None:
    """MLflow's page, started before the first run ends, creates the store in place: it must stay."""
    place = tmp_path / "mlflow.db"
    words = [sys.executable, "-c", CREATES, str(place), str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as created:
        assert created.stdout is not None
        assert created.stdout.readline() == "begun\n"
        assert prepare(place) is None
        assert examine(place, deep=True).condition == Condition.READY
        assert created.wait(300) == 0
    assert {path.name for path in tmp_path.glob("*.db*")} == {"mlflow.db"}, "nothing was moved away"


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_new_store_waits_for_the_disk_a_few_times(tmp_path: Path) -> None:
    """MLflow's own creation waits 924 times: a minute on a slow disk, during which the copy looks as if it hung."""
    place, counts = tmp_path / "mlflow.db", tmp_path / "calls"
    code = f"from pathlib import Path; from {prepare.__module__} import prepare; prepare(Path({str(place)!r}))"
    traced = ["strace", "-f", "-o", str(counts), "-e", "trace=fsync,fdatasync,unlink"]
    subprocess.run([*traced, sys.executable, "-c", code], check=True, capture_output=True, timeout=300)
    assert examine(place, deep=True).condition == Condition.READY
    calls = [line for line in counts.read_text().splitlines() if str(tmp_path) in line or "sync(" in line]
    assert 1 <= len(calls) < 20
