"""Inputs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.jobs.pretrain.plan import PretrainPlan
from train_jobs.artifacts.store_manifest import store_folder

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan


def start_digest(plan: Plan) -> str | None:
    """Hash of what training starts from, with the steps of an earlier phase; None: weights are drawn."""
    if isinstance(plan, PretrainPlan) and plan.phase is not None:
        facts = f"{plan.phase.step}\0{plan.phase.weights}\0{plan.phase.moments}"
        return hashlib.sha256(facts.encode()).hexdigest()
    return plan.parent.weights if plan.parent is not None and plan.parent.weights else None


def trained_on(plan: Plan) -> Path | None:
    """The token store of this machine that is trained on; None: text is given."""
    return store_folder(plan.job.data, plan.job.data.store) if isinstance(plan, PretrainPlan) else None
