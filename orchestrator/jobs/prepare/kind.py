"""Preparation of a corpus as a kind of job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from orchestrator.jobs.kind import JobKind

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan
    from orchestrator.jobs.prepare.plan import PreparePlan
    from orchestrator.jobs.prepare.spec import PrepareSpec
    from orchestrator.runs.status import RunStatus
    from orchestrator.specs.paths import PathKeys
    from orchestrator.specs.resolved import Resolved
    from orchestrator.specs.site import Rule, Site


class PrepareKind(JobKind):
    """Preparation of text as a token store."""

    name = "prepare"
    subject = "text"
    gpus = False
    makes_store = True
    keys: ClassVar = {**JobKind.keys, "--store": "store"}

    @property
    def spec(self) -> type[PrepareSpec]:
        """What a user writes."""
        from orchestrator.jobs.prepare.spec import PrepareSpec

        return PrepareSpec

    @property
    def recipes(self) -> Path:
        """Folder of its recipes."""
        from train_jobs.artifacts.layers import PREPARE_RECIPES

        return PREPARE_RECIPES

    @property
    def paths(self) -> PathKeys:
        """Keys of its spec that name files and folders."""
        from orchestrator.specs.paths import PathKeys

        return PathKeys(files=("data.vocabulary",), unchecked=("store", "data.add_tokens"), sources=("data.text",))

    def plan(self, resolved: Resolved, home: Path, like: Plan | None) -> PreparePlan:
        """Read text and code, and return the plan."""
        from orchestrator.jobs.prepare.plan import plan_preparation

        return plan_preparation(resolved, home, like)

    def ignored(self, spec: PrepareSpec, world_size: int, site: Site) -> Iterable[Rule]:
        """Yield the rules about settings that have no effect beside others."""
        from orchestrator.specs.ignored import vocabulary_rule

        return [vocabulary_rule(spec.data)]

    def next_commands(self, status: RunStatus) -> dict[str, str]:
        """Return label -> command for what a completed run has made."""
        from train_jobs.config.names import in_shell

        if status.store is None:
            return {}
        store = in_shell(status.store)
        if store.startswith("azureml://"):
            return {"train": f"orchestrator submit pretrain -b azure --data {store}"}
        return {"show": f"orchestrator data show {store}", "train": f"orchestrator submit pretrain --data {store}"}


PREPARE = PrepareKind()
