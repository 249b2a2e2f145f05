"""Pretraining as a kind of job."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.jobs.kind import JobKind

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan
    from orchestrator.jobs.pretrain.plan import PretrainPlan
    from orchestrator.jobs.pretrain.spec import PretrainSpec
    from orchestrator.runs.status import RunStatus
    from orchestrator.specs.paths import PathKeys
    from orchestrator.specs.resolved import Resolved
    from orchestrator.specs.site import Rule, Site
    from train_jobs.artifacts.layers import Layer
    from train_jobs.artifacts.start_model import Merge


class PretrainKind(JobKind):
    """Pretraining on text or on a token store."""

    name = "pretrain"
    subject = "text"
    trains = True

    @property
    def spec(self) -> type[PretrainSpec]:
        """What a user writes."""
        from orchestrator.jobs.pretrain.spec import PretrainSpec

        return PretrainSpec

    @property
    def recipes(self) -> Path:
        """Folder of its recipes."""
        from train_jobs.artifacts.layers import PRETRAIN_RECIPES

        return PRETRAIN_RECIPES

    @property
    def paths(self) -> PathKeys:
        """Keys of its spec that name files and folders."""
        from orchestrator.specs.paths import PathKeys
        from train_jobs.artifacts import start_model, start_phase

        starts = (start_model.KEY, start_phase.KEY)
        return PathKeys(
            starts=starts,
            folders=(*starts, "data.store"),
            files=("data.vocabulary",),
            unchecked=("data.add_tokens",),
            sources=("data.text",),
        )

    def merge(self, presets: Sequence[Layer], written: Sequence[Layer]) -> Merge:
        """Merge presets with what the user wrote; an earlier phase or a model decides shape and vocabulary."""
        from train_jobs.artifacts.start_phase import merge_with_start

        return merge_with_start(presets, written)

    def plan(self, resolved: Resolved, home: Path, like: Plan | None) -> PretrainPlan:
        """Read text, code and what training starts from, and return the plan."""
        from orchestrator.jobs.pretrain.plan import plan_pretraining

        return plan_pretraining(resolved, home, like)

    def check_shares(self, spec: PretrainSpec, world_size: int) -> None:
        """Check that the global batch divides into processes and micro batches."""
        spec.train.accumulation_steps(world_size)

    def own_names(self, spec: PretrainSpec) -> Mapping[str, str]:
        """Return dotted key -> MODULE:NAME of the user's own classes that a spec names."""
        from train_jobs.config.own import own_names

        return own_names(spec)

    def ignored(self, spec: PretrainSpec, world_size: int, site: Site) -> Iterable[Rule]:
        """Yield the rules about settings that have no effect beside others."""
        from orchestrator.jobs.pretrain.spec import ignored

        return ignored(spec, world_size, site)

    def warnings(self, spec: PretrainSpec, changed: Container[str], site: Site) -> Iterable[str]:
        """Yield other warnings about a spec whose keys `changed` the user wrote."""
        from orchestrator.jobs.pretrain.spec import warnings

        return warnings(spec, changed, site)

    def title(self, plan: Mapping[str, object]) -> str:
        """Return what runs with the same title have in common."""
        return "pretraining"

    def next_commands(self, status: RunStatus) -> dict[str, str]:
        """Return label -> command for what a completed run has made."""
        return {"report": f"orchestrator report {status.name}"}


PRETRAIN = PretrainKind()
