"""Finished evaluations with given scores, without running a job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.client import Orchestrator
from orchestrator.jobs.resolve import make_plan, resolve_spec
from orchestrator.run import Run
from orchestrator.specs.resolved import Flag
from tests.run_folders import make_run


def make_evaluation(home: Path, result: Mapping[str, Any], scored_rows: str) -> Run:
    """Return a finished evaluation of the model `bert` on the table `a.tsv`, both in the working folder."""
    flags = {"model": Flag("bert", "--model"), "input": Flag(["a.tsv"], "--data")}
    plan = make_plan(resolve_spec("evaluate", flags=flags, environ={"CUDA_VISIBLE_DEVICES": ""}), home=home)
    run = make_run(home, "scored", plan=json.loads(json.dumps(plan.as_dict())))
    (run.outputs / "result.json").write_text(json.dumps(result))
    (run.outputs / "scored_rows.json").write_text(scored_rows)
    return Orchestrator(home=home, environ={}).attach("scored")
