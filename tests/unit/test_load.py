"""The homes that `benchmarks.load` measures with are what the commands show."""

from __future__ import annotations

import json

from benchmarks import load
from tests.conftest import Console


def test_sweep_of_the_benchmark_is_shown(console: Console) -> None:
    console.home.mkdir()
    folder = load.make_trials(console.home, 3)
    shown = json.loads(console("sweep", "show", folder.name, "-o", "json").out)
    assert [row["state"] for row in shown["rows"]] == ["completed"] * 3


def test_runs_of_the_benchmark_are_listed(console: Console) -> None:
    console.home.mkdir()
    load.make_runs(console.home, 2)
    listed = json.loads(console("list", "-o", "json").out)
    assert [run["state"] for run in listed] == ["completed"] * 2
