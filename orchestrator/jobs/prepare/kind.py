"""Preparation of a corpus as a kind of job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from orchestrator.jobs.kind import JobKind
from orchestrator.support.plugins import lazy

if TYPE_CHECKING:
    from orchestrator.jobs.prepare.spec import PrepareSpec
    from orchestrator.runs.status import RunStatus
    from orchestrator.specs.compute import ResolvedCompute
    from orchestrator.specs.site import Rule, Site


class PrepareKind(JobKind):
    """Preparation of text as a token store."""

    name = "prepare"
    subject = "text"
    gpus = False
    makes_store = True
    keys: ClassVar = {**JobKind.keys, "--store": "store"}
    spec = lazy("orchestrator.jobs.prepare.spec:PrepareSpec")
    paths = lazy("orchestrator.jobs.prepare.spec:PATHS")
    merge = lazy("train_jobs.artifacts.start_model:merge_with_words")
    plan = lazy("orchestrator.jobs.prepare.plan:plan_preparation")
    recipes = lazy("train_jobs.artifacts.layers:PREPARE_RECIPES")

    def ignored(self, spec: PrepareSpec, compute: ResolvedCompute, site: Site) -> Iterable[Rule]:
        """Return the rules about settings that have no effect because of others."""
        from orchestrator.specs.resolved import vocabulary_rule

        return [vocabulary_rule(spec.data)]

    def next_commands(self, status: RunStatus) -> dict[str, str]:
        """Return label -> command for what a completed run has made."""
        from train_jobs.config.errors import in_shell
        from train_jobs.config.urls import is_url

        if status.store is None:
            return {}
        store = in_shell(status.store)
        if store.startswith("azureml://"):
            return {"train": f"orchestrator submit pretrain -b azure --data {store}"}
        if is_url(status.store):
            return {"show": f"orchestrator data show {store}"}
        return {"show": f"orchestrator data show {store}", "train": f"orchestrator submit pretrain --data {store}"}


PREPARE = PrepareKind()
