"""Pretraining as a kind of job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from orchestrator.jobs.kind import JobKind
from orchestrator.support.plugins import lazy

if TYPE_CHECKING:
    from orchestrator.jobs.pretrain.spec import PretrainSpec
    from orchestrator.runs.status import RunStatus
    from orchestrator.specs.compute import ResolvedCompute


class PretrainKind(JobKind):
    """Pretraining on text or on a token store."""

    name = "pretrain"
    subject = "text"
    trains = True
    spec = lazy("orchestrator.jobs.pretrain.spec:PretrainSpec")
    paths = lazy("orchestrator.jobs.pretrain.spec:PATHS")
    ignored = lazy("orchestrator.jobs.pretrain.spec:ignored")
    warnings = lazy("orchestrator.jobs.pretrain.spec:warnings")
    plan = lazy("orchestrator.jobs.pretrain.plan:plan_pretraining")
    report = lazy("orchestrator.reports.pages.pretraining_report:PretrainingReport")
    recipes = lazy("train_jobs.artifacts.layers:PRETRAIN_RECIPES")
    merge = lazy("train_jobs.artifacts.start_phase:merge_with_start")
    user_code_names = lazy("train_jobs.config.fields:user_code_names")

    def check_shares(self, spec: PretrainSpec, compute: ResolvedCompute) -> None:
        """Check that the global batch divides into processes and micro batches."""
        spec.train.on_device(on_cpu=compute.device == "cpu").accumulation_steps(compute.world_size)

    def title(self, plan: Mapping[str, object]) -> str:
        """Return what runs with the same title have in common."""
        return "pretraining"

    def next_commands(self, status: RunStatus) -> dict[str, str]:
        """Return label -> command for what a completed run has made."""
        return {"report": f"orchestrator report {status.name}"}


PRETRAIN = PretrainKind()
