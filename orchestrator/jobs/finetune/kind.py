"""Fine-tuning as a kind of job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.jobs.kind import JobKind

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan
    from orchestrator.jobs.finetune.plan import FinetunePlan
    from orchestrator.jobs.finetune.spec import FinetuneSpec
    from orchestrator.runs.status import RunStatus
    from orchestrator.specs.paths import PathKeys
    from orchestrator.specs.resolved import Resolved
    from orchestrator.specs.site import Rule, Site
    from train_jobs.artifacts.layers import Layer


class FinetuneKind(JobKind):
    """Fine-tuning of a model on a task."""

    name = "finetune"
    subject = "tasks"
    scored = True
    trains = True

    @property
    def spec(self) -> type[FinetuneSpec]:
        """What a user writes."""
        from orchestrator.jobs.finetune.spec import FinetuneSpec

        return FinetuneSpec

    @property
    def recipes(self) -> Path:
        """Folder of its recipes."""
        from train_jobs.artifacts.layers import FINETUNE_RECIPES

        return FINETUNE_RECIPES

    @property
    def paths(self) -> PathKeys:
        """Keys of its spec that name files and folders."""
        from orchestrator.jobs.finetune.spec import PATHS

        return PATHS

    def layers(self, written: Sequence[Layer], here: Path, site: Site) -> list[Layer]:
        """Return the layers with short forms written out, and the recipe of the task below them."""
        from orchestrator.jobs.finetune.spec import written_out

        return written_out(written, here, site)

    def plan(self, resolved: Resolved, home: Path, like: Plan | None) -> FinetunePlan:
        """Read model, rows and code, and return the plan."""
        from orchestrator.jobs.finetune.plan import plan_finetuning

        return plan_finetuning(resolved, home, like)

    def check_shares(self, spec: FinetuneSpec, world_size: int) -> None:
        """Check that the global batch divides into processes and micro batches."""
        from orchestrator.jobs.finetune.spec import check_batch

        check_batch(spec.train, world_size)

    def ignored(self, spec: FinetuneSpec, world_size: int, site: Site) -> Iterable[Rule]:
        """Yield the rules about settings that have no effect beside others."""
        from orchestrator.specs.ignored import engine_rules

        rules = engine_rules(spec.optimizer, spec.schedule, world_size)
        return [*rules, *((key, True, f"task is {spec.task}") for key in spec.ignored())]

    def data_flag(self, words: list[str]) -> dict[str, tuple[Any, str]]:
        """Return key -> value and flag of the folder given by --data.

        Raises:
            UsageError: there are several.
        """
        from orchestrator.support.errors import UsageError

        if len(words) > 1:
            raise UsageError("--data names one folder, that of the task's files", fix=f"--data {words[0]}")
        return {"data": (words[0] if words else None, "--data")}

    def title(self, plan: Mapping[str, Any]) -> str:
        """Return what runs with the same title have in common: their task."""
        return f"fine-tuning of {plan['job']['task']}"

    def next_commands(self, status: RunStatus) -> dict[str, str]:
        """Return label -> command for what a completed run has made."""
        which = f"{status.name}/TASK" if status.counts == "tasks" else status.name
        predict = f"orchestrator submit predict --model {which} --input FILE --output predictions.jsonl"
        return {"report": f"orchestrator report {status.name}", "predict": predict}


FINETUNE = FinetuneKind()
