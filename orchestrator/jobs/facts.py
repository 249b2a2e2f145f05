"""A plan as text for humans, at most 80 columns wide."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.support.formatting import Rows, bytes_text, counted, duration_text
from orchestrator.support.redact import HIDDEN, is_secret

if TYPE_CHECKING:  # plan.py calls this; only the names of types are needed here
    from orchestrator.estimates.pace import Span
    from orchestrator.jobs.base import Plan
    from orchestrator.jobs.finetune.plan import FinetunePlan, TaskRows
    from orchestrator.jobs.predict.plan import PredictPlan
    from orchestrator.jobs.pretrain.plan import PreparePlan, PretrainPlan
    from orchestrator.snapshot import GitFacts, Snapshot
    from train_jobs.config import CheckpointConfig

FEW = 5  # names of a list that may be long
SHOWN_APART = {
    "recipe",
    "name",
    "init_from",
    "phase_from",
    "model",
    "output",
}  # changed values that have a line of their own


def plan_rows(plan: Plan, what: Rows = (), how: Rows = ()) -> list[tuple[str, str]]:
    """Changed values with their origins, data, compute, code and environment: label and fact.

    Args:
        plan: of any kind.
        what: rows of its kind about what comes of it, before compute.
        how: rows about how it is done and what that takes, behind it.
    """
    return list(_rows(plan, what, how))


def _rows(plan: Plan, what: Rows, how: Rows) -> Iterator[tuple[str, str]]:
    yield "recipe", plan.spec.recipe + (f"  ({plan.changes['recipe'].origin})" if "recipe" in plan.changes else "")
    for key, change in plan.changes.items():
        if key not in SHOWN_APART:
            yield "", f"{key} = {_value(key, change.value)}  ({change.origin})"
    data, compute = plan.data, plan.compute
    yield "data", f"{data.name}: {data.files:,} files, {bytes_text(data.total_bytes)}, sha256 {data.sha256[:8]}"
    yield from what
    yield (
        "compute",
        (
            f"{compute.nodes} x {compute.processes_per_node} processes on {compute.device}"
            f"{f' ({compute.gpu})' if compute.gpu else ''}, "
            f"{compute.threads_per_process} threads each"
        ),
    )
    if compute.price_per_hour is not None:
        hourly = compute.nodes * compute.price_per_hour
        yield (
            "price",
            f"{compute.nodes} x ${compute.price_per_hour:,.2f} = ${hourly:,.2f} an hour "
            f"({compute.price_origin or 'compute.price_per_hour'})",
        )
    yield from how
    yield from _code_rows(plan.snapshot)
    yield "environment", ", ".join(f"{package} {version}" for package, version in plan.environment.items())


def model_rows(plan: PretrainPlan) -> Iterator[tuple[str, str]]:
    """What is trained, and from where on."""
    job, estimates = plan.job, plan.estimates
    if plan.parent:
        origins = [f"  ({plan.changes[key].origin})" for key in ("init_from", "phase_from") if key in plan.changes]
        what = f"weights {(plan.parent.weights or '')[:8]}"
        if plan.phase:
            what = f"step {plan.phase.step:,}, weights {plan.phase.weights[:8]} and moments {plan.phase.moments[:8]}"
        yield "from", "".join([f"{plan.parent.name}, {what}", *origins])
    yield (
        "model",
        (
            f"{job.model.num_hidden_layers} layers of width {job.model.hidden_size}, "
            f"{estimates.parameters:,} parameters, {estimates.flops_per_step:.3g} FLOPs a step (estimate)"
        ),
    )


def training_rows(plan: PretrainPlan) -> Iterator[tuple[str, str]]:
    """Batch, steps, memory, checkpoints."""
    job, estimates = plan.job, plan.estimates
    yield "batch", _batch(plan)
    yield "steps", f"{job.train.steps:,}, {job.train.steps * job.train.global_batch_size:,} sequences"
    if estimates.span is not None:
        yield "time", span_text(estimates.span)
    yield "schedule", job.schedule.text(job.optimizer.learning_rate)
    yield (
        "memory",
        (
            f"{_memory(estimates.process_bytes, plan)}: {bytes_text(estimates.state_bytes)} state"
            + (f" (moments sharded over {plan.world_size})" if job.optimizer.sharded and plan.world_size > 1 else "")
            + f", {bytes_text(estimates.activation_bytes)} activations"
            + (f" of {estimates.micro_batch_size} sequences" if plan.accumulation_steps is None else "")
            + (f", {bytes_text(estimates.library_bytes)} libraries" if estimates.library_bytes else "")
            + (
                f"; on rank 0's host {bytes_text(estimates.checkpoint_copy_bytes)} more, to write checkpoints from"
                if estimates.checkpoint_copy_bytes
                else ""
            )
            + " (estimate)"
        ),
    )
    yield "checkpoints", f"{_when_saved(job.checkpoint)}; kept: {_what_is_kept(job.checkpoint)}"
    yield (
        "disk",
        (
            f"{bytes_text(estimates.disk_bytes)} at most: {estimates.checkpoints_at_once} checkpoints of "
            f"{bytes_text(estimates.checkpoint_bytes)}, one of them being written, and the model's "
            f"{bytes_text(estimates.model_bytes)} (estimate)"
        ),
    )


def tuned_model_rows(plan: FinetunePlan) -> Iterator[tuple[str, str]]:
    """Task, rows, and the model that is fine-tuned."""
    tasks = len(plan.rows) > 1
    for task, rows in plan.rows.items():
        yield "rows" if task == next(iter(plan.rows)) else "", (f"{task}: " if tasks else "") + _row_counts(rows)
    if not plan.rows:
        yield "rows", "known to the job alone"
    origin = f"  ({plan.changes['init_from'].origin})" if "init_from" in plan.changes else ""
    yield "from", f"{plan.parent.name}, weights {(plan.parent.weights or '')[:8]}{origin}"
    yield (
        "model",
        f"{plan.estimates.parameters:,} parameters and a new head, sequences of {plan.job.max_length} at most",
    )


def _row_counts(rows: TaskRows) -> str:
    found = {"train": rows.train, "validation": rows.validation, "test": rows.test}
    shown = {split: count for split, count in found.items() if count != 0}
    return ", ".join(f"{split} {count:,}" if count is not None else f"{split} ?" for split, count in shown.items())


def finetuning_rows(plan: FinetunePlan) -> Iterator[tuple[str, str]]:
    """Batch, steps, time, memory, checkpoints."""
    job, estimates, train = plan.job, plan.estimates, plan.job.train
    if plan.accumulation_steps is None:
        batch = "micro x accumulation x world; micro is auto: the largest that fits is found before the first step"
    else:
        micro = -(-train.global_batch_size // (plan.accumulation_steps * plan.world_size))
        batch = f"{micro} x {plan.accumulation_steps} x {plan.world_size} (global = micro x accumulation x world)"
    yield "batch", f"{train.global_batch_size} = {batch}"
    yield "steps", _steps(plan)
    yield "schedule", job.schedule.text(job.optimizer.learning_rate)
    if estimates.seconds is not None:
        cost = f", ${estimates.cost:,.2f}" if estimates.cost is not None else ""
        tokens = f", {estimates.tokens_per_row:.0f} tokens a row at most" if estimates.tokens_per_row else ""
        yield "time", f"{duration_text(estimates.seconds)}{cost}{tokens} (rule of thumb)"
    libraries = f", {bytes_text(estimates.library_bytes)} libraries" if estimates.library_bytes else ""
    yield (
        "memory",
        (
            f"{_memory(estimates.process_bytes, plan)}: {bytes_text(estimates.state_bytes)} state, "
            f"{bytes_text(estimates.activation_bytes)} activations{libraries} (estimate)"
        ),
    )
    yield "checkpoints", f"{_when_saved(job.checkpoint)}; kept: {_what_is_kept(job.checkpoint)} by score"
    yield (
        "disk",
        (
            f"{bytes_text(estimates.disk_bytes)} at most: {estimates.checkpoints_at_once} checkpoints of "
            f"{bytes_text(estimates.checkpoint_bytes)}, and models of {bytes_text(estimates.model_bytes)} (estimate)"
        ),
    )


def _steps(plan: FinetunePlan) -> str:
    """Steps of one run, and of all where there are several."""
    job, epochs = plan.job, plan.job.train.epochs
    several = f"{plan.runs} runs" + (f", seeds {', '.join(map(str, job.seeds))}" if len(job.seeds) > 1 else "")
    if plan.all_steps is None:
        return f"{counted(epochs, 'epoch')}" + (f"; {several}" if plan.runs > 1 else "")
    if plan.runs == 1:
        return f"{plan.all_steps:,} = {counted(epochs, 'epoch')} x {plan.steps_per_epoch[job.task]:,}"
    return f"{plan.all_steps:,} over {several}"


def prediction_rows(plan: PredictPlan) -> Iterator[tuple[str, str]]:
    """Model, rows, time, memory, and where the predictions go."""
    estimates = plan.estimates
    yield "rows", f"{plan.rows:,}" if plan.rows is not None else "known to the job alone"
    origin = f"  ({plan.changes['model'].origin})" if "model" in plan.changes else ""
    yield "by", f"{plan.parent.name}, weights {(plan.parent.weights or '')[:8]}{origin}"
    yield "predictions", str(plan.delivery) if plan.delivery else f"{plan.job.output} in the outputs of the run"
    if estimates.seconds is not None:
        cost = f", ${estimates.cost:,.2f}" if estimates.cost is not None else ""
        tokens = f", {estimates.tokens_per_row:.0f} tokens a row at most" if estimates.tokens_per_row else ""
        yield "time", f"{duration_text(estimates.seconds)}{cost}{tokens} (rule of thumb)"
    yield "memory", f"{_memory(estimates.process_bytes, plan)} (estimate)"


def preparation_rows(plan: PreparePlan) -> Iterator[tuple[str, str]]:
    """Store, work, time, memory, disk."""
    job, estimates = plan.job, plan.estimates
    yield "store", str(job.store) if job.store else "below the home folder, named by its content: pretrain finds it"
    vocabulary = str(job.data.vocabulary or f"trained here, {job.data.vocab_size:,} pieces")
    yield "vocabulary", f"{vocabulary}, {'lower case' if job.data.lowercase else 'cased'}"
    yield (
        "work",
        f"{bytes_text(estimates.text_bytes)} of text in {counted(estimates.parts, 'part')} by"
        f" {counted(estimates.workers, 'worker')}:"
        f" {duration_text(estimates.seconds)} (estimate)",
    )
    yield "memory", f"{bytes_text(estimates.process_bytes)} on each node (estimate)"
    yield (
        "disk",
        f"{bytes_text(estimates.disk_bytes)} at most: the store's {bytes_text(estimates.store_bytes)}, and"
        f" {bytes_text(estimates.steps_bytes)} {'beside it' if job.keep_steps else 'while it is made'} (estimate)",
    )


def _memory(need: int, plan: Plan) -> str:
    """`3.1 GB a process of the 16 GB that it has`."""
    have = plan.compute.memory_bytes
    return f"{bytes_text(need)} a process" + (f" of the {bytes_text(have)} that it has" if have else "")


def span_text(span: Span) -> str:
    """`4 to 9 hours, $109 to $245 (rates that others published for A100s)`."""
    told = _ends(duration_text(span.seconds_least), duration_text(span.seconds_most))
    if span.cost_least is not None and span.cost_most is not None:
        told += ", " + _ends(f"${span.cost_least:,.2f}", f"${span.cost_most:,.2f}")
    return f"{told} ({span.basis})"


def _ends(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _batch(plan: PretrainPlan) -> str:
    train = plan.job.train
    if plan.accumulation_steps is None:
        return (
            f"{train.global_batch_size} = micro x accumulation x {plan.world_size} (world); micro is auto: the largest "
            f"that fits is found before the first step, {plan.estimates.micro_batch_size} at most"
        )
    return (
        f"{train.global_batch_size} = {train.micro_batch_size} x {plan.accumulation_steps} x "
        f"{plan.world_size} (global = micro x accumulation x world)"
    )


def _code_rows(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    yield "snapshot", f"{len(snapshot.files)} files, {bytes_text(snapshot.total_bytes)}, digest {snapshot.digest[:8]}"
    yield "largest", ", ".join(f"{file.path} {bytes_text(file.size)}" for file in snapshot.largest)
    if snapshot.folder:
        yield "ignoring", _few(snapshot.ignore_files) or "none: neither .amlignore nor .gitignore"
        yield "left out", _left_out(snapshot)
        yield "commit", _git_text(snapshot.folder_git)
    if snapshot.package_git:
        yield "" if snapshot.folder else "commit", f"train_jobs: {_git_text(snapshot.package_git)}"


def _left_out(snapshot: Snapshot) -> str:
    if not snapshot.left_out:
        return "nothing"
    more = "" if all(entry.counted for entry in snapshot.left_out) else "more than "
    total = sum(entry.files for entry in snapshot.left_out)
    named = [f"{out.path} {out.files:,}{'' if out.counted else '+'} ({out.why})" for out in snapshot.most_left_out]
    return f"{more}{total:,} files: {', '.join(named)}" + (", ..." if len(snapshot.left_out) > len(named) else "")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:FEW]) + (", ..." if len(names) > FEW else "")


def _git_text(git: GitFacts | None) -> str:
    if git is None:
        return "none, in no git repository"
    if git.problem:
        return f"unknown: {git.problem}"
    where = f" on {git.branch}" if git.branch else ""
    return f"{git.commit[:8] if git.commit else 'none yet'}{where}, " + (
        f"dirty: {git.uncommitted:,} files not committed" if git.dirty else "clean"
    )


def _when_saved(checkpoint: CheckpointConfig) -> str:
    parts = [f"{checkpoint.every:,} steps"] if checkpoint.every else []
    parts += [f"{checkpoint.every_minutes:g} minutes"] if checkpoint.every_minutes else []
    return "every " + " and every ".join(parts)


def _what_is_kept(checkpoint: CheckpointConfig) -> str:
    parts = [f"last {checkpoint.keep_last}"]
    parts += [f"best {checkpoint.keep_best}"] if checkpoint.keep_best else []
    parts += [f"multiples of {checkpoint.keep_every:,}"] if checkpoint.keep_every else []
    return ", ".join(parts)


def _value(key: str, value: object) -> str:
    if is_secret(key):
        return HIDDEN
    if isinstance(value, list) and len(value) > FEW:
        return f"{json.dumps(value[:FEW])[:-1]}, ... {len(value):,} in all]"
    return value if isinstance(value, str) else json.dumps(value)
