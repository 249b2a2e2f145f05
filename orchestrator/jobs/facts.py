"""The rows of a plan for humans: label and text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.specs.site import site_of
from orchestrator.support.formatting import Rows, bytes_text, counted, duration_text
from orchestrator.support.redact import HIDDEN, is_secret, redact
from orchestrator.support.secret_sources import ENVIRONMENT, SecretReference
from train_jobs.artifacts.start_model import read_initial_model
from train_jobs.artifacts.tracking.model_registry import registry_identity
from train_jobs.config import FinetuneConfig, PretrainConfig
from train_jobs.config.prepare import BLANK_LINE, FILE, LINE, SourceConfig

if TYPE_CHECKING:  # plan.py calls this; only the names of types are needed here
    from orchestrator.estimates.pace import Span
    from orchestrator.jobs.base import Plan, TrainingPlan
    from orchestrator.snapshot import GitFacts, Snapshot
    from train_jobs.artifacts.text_documents import TextCount
    from train_jobs.config import CheckpointConfig

LIGHT_BYTES = 400_000  # a run of the tiny recipe: 377 kB, 300 kB of them figures
FEW = 5  # names shown of a list that may be long
SHOWN_ELSEWHERE = {
    "recipe",
    "name",
    "init_from",
    "phase_from",
    "model",
    "output",
}  # changed values that have a line of their own


def plan_rows(plan: Plan, what: Rows = (), how: Rows = ()) -> list[tuple[str, str]]:
    """Return the rows of a plan: changed values with their origins, data, compute, code and environment.

    Args:
        plan: the plan.
        what: rows of its kind that describe the result; shown before compute.
        how: rows of its kind about procedure and resources; shown after compute.
    """
    return list(_rows(plan, what, how))


def _rows(plan: Plan, what: Rows, how: Rows) -> Iterator[tuple[str, str]]:
    yield "recipe", plan.spec.recipe + (f"  ({plan.changes['recipe'].origin})" if "recipe" in plan.changes else "")
    for key, change in plan.changes.items():
        if key not in SHOWN_ELSEWHERE:
            yield "", f"{key} = {_value(key, change.value)}  ({change.origin})"
    data, compute = plan.data, plan.compute
    yield (
        "data",
        f"{data.name}: {counted(data.files, 'file')}, {bytes_text(data.total_bytes)}, sha256 {data.sha256[:8]}",
    )
    if plan.checked is not None:
        yield "checked", plan.checked
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
    yield "mlflow", _tracking_text(plan)
    yield from secret_rows(plan.spec.environment.secrets)


def secret_rows(secrets: Mapping[str, str]) -> Rows:
    """Return the rows about secrets: where each is kept.

    Args:
        secrets: name -> reference.
    """
    return [
        ("" if number else "secrets", f"{name} from {_kept_text(text)}")
        for number, (name, text) in enumerate(secrets.items())
    ]


def _tracking_text(plan: Plan) -> str:
    """Return where the copy of the run is kept, and how many bytes of it are files."""
    tracking = plan.spec.tracking
    if site_of(plan.spec.backend).own_tracking:
        return f"experiment {tracking.experiment} of the workspace: metrics and parameters, no files"
    files = {
        "none": "no files",
        "light": f"about {bytes_text(LIGHT_BYTES)} of files",
        "all": f"about {bytes_text(LIGHT_BYTES)} of files, and the predictions",
    }
    place = redact(tracking.uri) if tracking.uri else "the home folder"
    return f"experiment {tracking.experiment} in {place}: {files[tracking.artifacts]} (tracking.artifacts)"


def _kept_text(text: str) -> str:
    """Return where a secret is kept, and what a start without the user needs."""
    reference = SecretReference.parse(text)
    if reference.source != ENVIRONMENT:
        return f"{reference.text}, read at each start"
    return f"{reference.text}: an unattended restart after a reboot lacks it, and resume needs {reference.place} set"


def stretch_rows(job: FinetuneConfig | PretrainConfig) -> Rows:
    """Return the row about interpolated positions, if the job has any."""
    if job.stretch_positions is None or job.init_from is None:
        return []
    trained = read_initial_model(job.init_from).usable_positions
    cost = "the job measures its loss" if isinstance(job, PretrainConfig) else "measured loss: docs/fine-tuning.md"
    return [("positions", f"{trained} trained ones interpolated to cover {job.stretch_positions}; {cost}")]


def training_rows(
    plan: TrainingPlan,
    steps: str,
    time: Rows,
    *,
    max_sequences: int | None = None,
    copy_bytes: int = 0,
    kept_by: str = "",
) -> Iterator[tuple[str, str]]:
    """Yield the rows of a job that trains: batch, steps, time, schedule, memory, checkpoints, disk.

    Args:
        plan: the plan.
        steps: text of the row of steps.
        time: row of the duration; empty if it is unknown.
        max_sequences: limit of a micro batch that the job finds before its first step; None: unknown.
        copy_bytes: host memory of rank 0 for the copy of the state from which a checkpoint is written.
        kept_by: criterion of the best checkpoints, if it is not the loss.
    """
    job, estimates, batch = plan.job, plan.estimates, plan.job.train.global_batch_size
    auto = plan.accumulation_steps is None
    reason = plan.micro_batch_reason
    if plan.accumulation_steps is None:
        at_most = f", {max_sequences} at most" if max_sequences else ""
        why = f", {reason}" if reason else ""
        found = f"micro is auto{why}: the largest that fits, found before the first step{at_most}"
        yield "batch", f"{batch} = micro x accumulation x {plan.world_size} (world); {found}"
    else:
        micro = -(-batch // (plan.accumulation_steps * plan.world_size))
        factors = f"{micro} x {plan.accumulation_steps} x {plan.world_size}"
        why = f"; micro is {reason}" if reason else ""
        yield "batch", f"{batch} = {factors} (global = micro x accumulation x world){why}"
    yield "steps", steps
    yield from time
    yield "schedule", job.schedule.text(job.optimizer.learning_rate)
    sharded = job.optimizer.sharded and plan.world_size > 1
    yield (
        "memory",
        f"{memory_text(estimates.process_bytes, plan)}: {bytes_text(estimates.state_bytes)} state"
        + (f" (moments sharded over {plan.world_size})" if sharded else "")
        + f", {bytes_text(estimates.activation_bytes)} activations"
        + (f" of {max_sequences} sequences" if auto and max_sequences else "")
        + (f", {bytes_text(estimates.library_bytes)} libraries" if estimates.library_bytes else "")
        + (f"; rank 0 also {bytes_text(copy_bytes)} of host memory for checkpoints" if copy_bytes else "")
        + " (estimate)",
    )
    yield "checkpoints", f"{_checkpoint_interval(job.checkpoint)}; kept: {_kept_checkpoints(job.checkpoint)}{kept_by}"
    yield (
        "disk",
        f"{bytes_text(estimates.disk_bytes)} at most: {estimates.checkpoints_at_once} checkpoints of "
        f"{bytes_text(estimates.checkpoint_bytes)}, one of them being written, and models of "
        f"{bytes_text(estimates.model_bytes)} (estimate)",
    )


SEPARATORS = {FILE: "one per file", BLANK_LINE: "between blank lines", LINE: "one per line"}


def document_rows(counts: Sequence[TextCount]) -> Iterator[tuple[str, str]]:
    """Yield the documents of each source with plain text, and how many another rule would give."""
    for label, count in zip(["documents", *[""] * FEW], counts[:FEW], strict=False):
        about = "" if count.exact else "about "
        rule = SEPARATORS.get(count.rule, f"from each match of {count.rule}")
        why = " (long files with many blank lines)" if count.chosen and count.rule == FILE else ""
        others = ", ".join(f"{other} {about}{number:,}" for other, number in count.others.items())
        found = f"{about}{counted(count.documents, 'document')} {rule}{why}"
        yield label, f"{count.name}: {counted(count.files, 'file')}, {found}; with document: {others}"


def document_warnings(counts: Sequence[TextCount], validation_fraction: float) -> list[str]:
    """Return warnings about books that were split at blank lines, and about too few documents to hold some out.

    Args:
        counts: documents of each source.
        validation_fraction: share of documents to hold out.
    """
    warnings = [
        f"{count.name} looks like a book, and its {count.documents:,} paragraphs become documents: set document of the"
        " source to a pattern, such as (?=CHAPTER ), or give several books"
        for count in counts
        if count.chosen and count.books and count.rule == BLANK_LINE
    ]
    documents = sum(count.documents for count in counts)
    if any(count.rule == FILE for count in counts) and documents * validation_fraction < 1:
        warnings.append(
            f"validation holds out whole documents, here 1 of {documents}: give more files, or set document of the"
            " source to a pattern, such as (?=CHAPTER )"
        )
    return warnings


def start_text(plan: Plan, *keys: str) -> str:
    """Return the start of a job as text, such as `pretrain-1a2b3c4d, weights 12345678  (--model)`.

    Of a model in an MLflow registry, the text has its version: `reviews, weights 12345678, models:/bert/3`.

    Args:
        plan: the plan.
        keys: keys whose origin is shown.
    """
    assert plan.parent is not None
    folders = [Path(str(plan.changes[key].value)) for key in keys if key in plan.changes]
    versions = [f", {'/'.join(found)}" for folder in folders if (found := registry_identity(folder)) is not None]
    return (
        f"{plan.parent.name}, weights {(plan.parent.weights or '')[:8]}{''.join(versions)}{origins_text(plan, *keys)}"
    )


def origins_text(plan: Plan, *keys: str) -> str:
    """Return the origins of the keys that the user set."""
    return "".join(f"  ({plan.changes[key].origin})" for key in keys if key in plan.changes)


def memory_text(need: int, plan: Plan) -> str:
    """Return the memory of a process as text, such as `3.1 GB of 16 GB per process`."""
    have = plan.compute.memory_bytes
    return f"{bytes_text(need)} of {bytes_text(have)} per process" if have else f"{bytes_text(need)} per process"


def span_text(span: Span) -> str:
    """Return time and cost as text, such as `4 to 9 hours, $109 to $245 (rates published for the A100)`."""
    text = _ends(duration_text(span.seconds_least), duration_text(span.seconds_most))
    if span.cost_least is not None and span.cost_most is not None:
        text += ", " + _ends(f"${span.cost_least:,.2f}", f"${span.cost_most:,.2f}")
    return f"{text} ({span.basis})"


def _ends(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _code_rows(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    yield "snapshot", f"{len(snapshot.files)} files, {bytes_text(snapshot.total_bytes)}, digest {snapshot.digest[:8]}"
    yield "largest", ", ".join(f"{file.path} {bytes_text(file.size)}" for file in snapshot.largest)
    if snapshot.folder:
        yield "ignoring", _first_names(snapshot.ignore_files) or "nothing: no .amlignore or .gitignore"
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


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:FEW]) + (", ..." if len(names) > FEW else "")


def _git_text(git: GitFacts | None) -> str:
    if git is None:
        return "none, not in a git repository"
    if git.problem:
        return f"unknown: {git.problem}"
    where = f" on {git.branch}" if git.branch else ""
    return f"{git.commit[:8] if git.commit else 'none yet'}{where}, " + (
        f"dirty: {git.uncommitted:,} files not committed" if git.dirty else "clean"
    )


def _checkpoint_interval(checkpoint: CheckpointConfig) -> str:
    parts = [f"{checkpoint.every:,} steps"] if checkpoint.every else []
    parts += [f"{checkpoint.every_minutes:g} minutes"] if checkpoint.every_minutes else []
    return "every " + " and every ".join(parts)


def _kept_checkpoints(checkpoint: CheckpointConfig) -> str:
    parts = [f"last {checkpoint.keep_last}"]
    parts += [f"best {checkpoint.keep_best}"] if checkpoint.keep_best else []
    parts += [f"multiples of {checkpoint.keep_every:,}"] if checkpoint.keep_every else []
    return ", ".join(parts)


def _without_defaults(source: object) -> object:
    """Return a source of text without the keys that have their default, in its short form where there is one."""
    if not isinstance(source, dict) or "path" not in source:
        return source
    defaults = SourceConfig.model_construct().model_dump()
    kept = {key: value for key, value in source.items() if value != defaults.get(key)}
    return {**kept, "path": kept["path"][0]} if len(kept.get("path", ())) == 1 else kept


def _value(key: str, value: object) -> str:
    if is_secret(key):
        return HIDDEN
    if isinstance(value, list):
        value = [_without_defaults(one) for one in value]
    if isinstance(value, list) and len(value) > FEW:
        return f"{json.dumps(value[:FEW])[:-1]}, ... {len(value):,} in total]"
    return value if isinstance(value, str) else json.dumps(value)
