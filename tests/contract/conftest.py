"""Slow tests of the contract, and the example backend."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs" / "example-backend"
ELSEWHERE = ("test_preempted_run_restarts_automatically[local]",)  # tests/pains/test_eviction.py
COVERED = ("polite", "debug")  # share their code with `local`, whose long tests always run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow the long tests that another backend or another test covers."""
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        long = item.get_closest_marker("live") or "wrong_input" in item.name
        if long and params.get("name") == "azure":  # each command loads Azure's SDK, which takes seconds
            item.add_marker(pytest.mark.slow)
        if (long and params.get("name") in COVERED) or item.name in ELSEWHERE:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Install the example backend into a folder, for this process and its children."""
    target = tmp_path_factory.mktemp("site-packages")
    source = tmp_path_factory.mktemp("example") / "source"
    subprocess.run(["cp", "-r", str(EXAMPLE), str(source)], check=True)  # the build leaves files next to it
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(source)], check=True)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(target), *([before] if before else [])])
    sys.path.insert(0, str(target))
    yield target
    sys.path.remove(str(target))
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
