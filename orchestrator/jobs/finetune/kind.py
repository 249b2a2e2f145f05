"""Fine-tuning as a kind of job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.jobs.kind import JobKind, columns_by_role
from orchestrator.support.plugins import lazy

if TYPE_CHECKING:
    from orchestrator.runs.status import RunStatus


class FinetuneKind(JobKind):
    """Fine-tuning of a model on a task."""

    name = "finetune"
    subject = "tasks"
    scored = True
    trains = True
    spec = lazy("orchestrator.jobs.finetune.spec:FinetuneSpec")
    paths = lazy("orchestrator.jobs.finetune.spec:PATHS")
    layers = lazy("orchestrator.jobs.finetune.spec:expand_short_forms")
    merge = lazy("train_jobs.artifacts.start_model:merge_for_finetuning")
    check_shares = lazy("orchestrator.jobs.finetune.spec:check_batch")
    ignored = lazy("orchestrator.jobs.finetune.spec:ignored")
    plan = lazy("orchestrator.jobs.finetune.plan:plan_finetuning")
    report = lazy("orchestrator.reports.pages.tuning_report:TuningReport")
    recipes = lazy("train_jobs.artifacts.layers:FINETUNE_RECIPES")

    def data_flag(self, words: list[str]) -> dict[str, tuple[Any, str]]:
        """Return key -> value and flag of the folder, or the single table, given by --data.

        Raises:
            UsageError: there are several.
        """
        from orchestrator.support.errors import UsageError
        from train_jobs.config.errors import in_shell

        if len(words) > 1:
            raise UsageError(
                "--data takes one table, or one folder with the files of the task", fix=f"--data {in_shell(words[0])}"
            )
        return {"data": (words[0] if words else None, "--data")}

    def column_flag(self, words: list[str], texts: Any) -> dict[str, tuple[Any, str]]:
        """Return key -> value and flag for ROLE=NAME arguments of --column."""
        return columns_by_role(words, {role: f"data.{role}" for role in ("text", "pair", "label")})

    def title(self, plan: Mapping[str, Any]) -> str:
        """Return what runs with the same title have in common: their task."""
        return f"fine-tuning of {plan['job']['task']}"

    def next_commands(self, status: RunStatus) -> dict[str, str]:
        """Return label -> command for what a completed run has made."""
        which = f"{status.name}/TASK" if status.counts == "tasks" else status.name
        predict = f"orchestrator submit predict --model {which} --input FILE --output predictions.jsonl"
        return {"report": f"orchestrator report {status.name}", "predict": predict}


FINETUNE = FinetuneKind()
