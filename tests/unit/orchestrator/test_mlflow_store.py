"""The creation of an MLflow store, next to other processes that create it too."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from train_jobs.artifacts.tracking.mlflow_store import Condition, examine, prepare

CREATES = (
    "import sys; from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore; SqlAlchemyStore(*sys.argv[1:])"
)


def test_store_that_another_process_creates_is_awaited(tmp_path: Path) -> None:
    """MLflow's page, started before the first run ends, creates the store in place: it must stay."""
    place = tmp_path / "mlflow.db"
    created = subprocess.Popen([sys.executable, "-c", CREATES, f"sqlite:///{place}", str(tmp_path)])
    until = time.monotonic() + 300
    while examine(place).condition == Condition.MISSING and time.monotonic() < until:
        time.sleep(0.001)
    assert examine(place).condition in {Condition.BROKEN, Condition.OLD}, "it is not complete yet"
    assert prepare(place) is None
    assert created.wait(300) == 0
    assert examine(place, deep=True).condition == Condition.READY
    assert {path.name for path in tmp_path.glob("*.db*")} == {"mlflow.db"}, "nothing was set aside"


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
