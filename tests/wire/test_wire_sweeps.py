"""Sweep jobs: taken as the client sends them, which departs from Microsoft's schema in letters' case alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wire_entities import job, prepare

from orchestrator.testing import AzureDouble


@pytest.mark.parametrize("sampling", ["random", "sobol", "grid", "bayesian"])
def test_sweep_is_taken(azure: AzureDouble, ml: Any, code: Path, tmp_path: Path, sampling: str) -> None:
    from azure.ai.ml.sweep import BanditPolicy, Choice, RandomSamplingAlgorithm, Uniform

    prepare(ml, tmp_path)
    alone = {"command": "python job.py ${{inputs.lr}}", "inputs": {"lr": 0.1}, "outputs": {}}
    trial = job("trial", code, **alone)(lr=Choice([0.1, 0.2]) if sampling == "grid" else Uniform(0.0, 0.3))
    algorithm = RandomSamplingAlgorithm(rule="sobol", seed=1) if sampling == "sobol" else sampling
    sweep = trial.sweep(sampling_algorithm=algorithm, primary_metric="loss", goal="minimize")
    sweep.name, sweep.experiment_name = "search", "bert"
    sweep.set_limits(max_total_trials=4, max_concurrent_trials=2, timeout=3600)
    sweep.early_termination = BanditPolicy(slack_factor=0.1, evaluation_interval=2) if sampling == "random" else None
    ml.jobs.create_or_update(sweep)
    assert ml.jobs.get("search").type == "sweep"
    (put,) = azure.requests("PUT */jobs/search")
    assert put.query["api-version"] == "2024-01-01-preview"
    assert put.body["properties"]["objective"] == {"goal": "minimize", "primaryMetric": "loss"}
    assert azure.violations == []
