"""Datasets of a run, as its copy in MLflow has them and as two runs are compared by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.jobs.registry import DEFAULT, run_kind
from train_jobs.artifacts.lineage import Lineage
from train_jobs.artifacts.tracking.run_datasets import ROWS, TEST, RunDataset, datasets_of


def run_datasets(plan: Mapping[str, Any], lineage: Lineage | None) -> list[RunDataset]:
    """Return the datasets of a run: by its lineage or, of a job that trains nothing, by its plan.

    Args:
        plan: its plan, as `Plan.as_dict` returned it.
        lineage: its lineage; None: it trains nothing, or has not begun to.
    """
    rows = plan.get("rows")
    if lineage is not None:
        counted = [one for one in rows.values() if isinstance(one, dict)] if isinstance(rows, dict) else []
        return datasets_of(lineage, counted[0] if len(counted) == 1 else None)
    data, kind = plan.get("data"), run_kind(plan["spec"].get("kind", DEFAULT))
    if not data or kind.trains:
        return []
    names = ", ".join(Path(name).name for name in data["name"].split(", "))
    profile = {"bytes": data["total_bytes"], "files": data["files"], **({ROWS: rows} if isinstance(rows, int) else {})}
    return [RunDataset(names, data["sha256"], TEST if kind.scored else kind.name, {"uri": names}, profile)]
