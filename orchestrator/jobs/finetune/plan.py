"""The plan of a fine-tuning: which rows, how many steps, from which model on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from orchestrator.estimates.rows import tokens_per_row
from orchestrator.estimates.shortages import disk_warnings, training_warnings
from orchestrator.jobs.base import Plan
from orchestrator.jobs.facts import _memory, _what_is_kept, _when_saved, plan_rows
from orchestrator.jobs.finetune.estimate import FinetuneEstimates, estimate_finetuning
from orchestrator.jobs.finetune.inputs import finetuning_needs
from orchestrator.jobs.finetune.spec import DATA_PATHS, FinetuneSpec
from orchestrator.jobs.ground import SharedFacts, files_fingerprint, remote_data
from orchestrator.jobs.row_counts import count_rows
from orchestrator.runs.status import Counts
from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.resolved import Resolved
from orchestrator.support.formatting import bytes_text, counted, duration_text
from orchestrator.support.home import FINGERPRINT_CACHE
from train_jobs.artifacts.fingerprints import DataFingerprint, source_fingerprint
from train_jobs.artifacts.lineage import Link
from train_jobs.artifacts.start_model import InitialModel, initial_lineage, initial_weights, read_initial_model
from train_jobs.artifacts.task_files import SPLITS, TaskFile, task_files
from train_jobs.config import CheckpointConfig, FinetuneConfig, ModelConfig
from train_jobs.config.base import Config
from train_jobs.config.pretrain import OBSERVERS
from train_jobs.config.tasks import GLUE, GLUE_TASKS, data_folder
from train_jobs.config.text import SourceConfig


class TaskRows(Config):
    """Rows of a task by what they are for; None where only the job can tell."""

    train: int | None
    """To learn from: lines of a table, questions of SQuAD, sentences of NER."""
    validation: int | None
    """To choose checkpoints by; of MNLI both sets."""
    test: int | None
    """To predict."""


class FinetunePlan(Plan):
    """A fine-tuning."""

    spec: FinetuneSpec
    """What the user wants."""
    job: FinetuneConfig
    """What the job itself will read."""
    parent: Link
    """The model that training starts from, as the last link of its lineage."""
    accumulation_steps: int | None
    """Micro batches that each process sums up before an optimizer step; None: the micro batch is yet to be found."""
    rows: dict[str, TaskRows]
    """Task -> its rows; empty if nobody here can read them."""
    steps_per_epoch: dict[str, int]
    """Task -> optimizer steps of an epoch; without those that cannot be told here. A SQuAD question, or a sentence of
    NER, that is too long for one sequence is several, and the steps are more."""
    estimates: FinetuneEstimates
    """What it will need."""

    @property
    def tasks(self) -> dict[str, FinetuneConfig]:
        """Task -> what holds for it."""
        return {task: task_config(self.job, task) for task in self.rows or tasks_of(self.job)}

    @property
    def runs(self) -> int:
        """Trainings: one for each task and seed."""
        return sum(len(own.seeds) for own in self.tasks.values())

    @property
    def steps(self) -> int | None:
        """Optimizer steps of a single run, runs of several seeds, tasks of GLUE; None: nobody can tell."""
        if self.job.task == GLUE:
            return len(self.tasks)
        return self.runs if self.runs > 1 else self.all_steps

    @property
    def all_steps(self) -> int | None:
        """Optimizer steps of all runs; None: nobody can tell."""
        if not self.tasks.keys() <= self.steps_per_epoch.keys():
            return None
        each = self.steps_per_epoch
        return sum(len(own.seeds) * own.train.epochs * each[task] for task, own in self.tasks.items())

    @property
    def counts(self) -> Counts:
        """Steps of one run, runs, or tasks."""
        if self.job.task == GLUE:
            return "tasks"
        return "runs" if self.runs > 1 else "steps"

    @property
    def saves(self) -> CheckpointConfig:
        """When checkpoints are saved."""
        return self.job.checkpoint

    @property
    def weights_bytes(self) -> int:
        """Most that checkpoints and models take of the disk."""
        return self.estimates.disk_bytes

    def facts(self) -> list[tuple[str, str]]:
        """The plan for humans: label and fact; a label that is empty goes on with the one before."""
        return plan_rows(self, tuned_model_rows(self), finetuning_rows(self))


def task_config(job: FinetuneConfig, task: str) -> FinetuneConfig:
    """What holds for one task of a job."""
    return job.of_task(task) if job.task == GLUE else job


def tasks_of(job: FinetuneConfig) -> tuple[str, ...]:
    """The tasks of a job, whether there is data of all of them or not."""
    return GLUE_TASKS if job.task == GLUE else (job.task,)


def plan_finetuning(resolved: Resolved, home: Path, like: Plan | None) -> FinetunePlan:
    """Read model, rows and code, and return the plan.

    Args:
        resolved, home, like: see `resolve.make_plan`.

    Raises:
        DataError: a file of the task is missing.
        SpecError: the model cannot be trained, or has too few positions.
        ConflictError: the lineage of the model does not verify.
    """
    spec = resolved.spec
    assert isinstance(spec, FinetuneSpec)
    job, cache = spec.job_config(), home / FINGERPRINT_CACHE
    initial = read_initial_model(job.init_from)
    for model in (initial, *(read_initial_model(own.init_from) for own in job.per_task.values() if own.init_from)):
        job.require_positions(model.positions, model.folder)
    parent = initial_lineage(job.init_from, cache).head
    remote = resolved.site.remote_data(spec)
    files = [] if remote else task_files(job)
    data = remote_data(remote) if remote else _fingerprint(job, files, cache)
    rows = {} if remote else _rows(job, files)
    shared = SharedFacts.of(resolved, home, [job.init_from, *_data_paths(job)], like)
    per_epoch = {
        task: -(-found.train // task_config(job, task).train.global_batch_size)
        for task, found in rows.items()
        if found.train is not None
    }
    estimates = _estimates(job, initial, files, rows, per_epoch, shared.compute)
    sequences = job.micro_batches(shared.compute.world_size, on_cpu=shared.compute.device == "cpu")[0]
    warnings = [
        *_left_out(job, rows),
        *disk_warnings(estimates.disk_bytes, home, "checkpoints"),
        *training_warnings(job, estimates, shared.compute, sequences),
    ]
    return FinetunePlan(
        **shared.fields(_shaping(job, data, parent, cache), data, warnings),
        needs=finetuning_needs(job, files, data, remote, parent.weights),
        job=job,
        accumulation_steps=_accumulation(job, shared.compute.world_size),
        parent=parent,
        rows=rows,
        steps_per_epoch=per_epoch,
        estimates=estimates,
    )


def _accumulation(job: FinetuneConfig, world_size: int) -> int | None:
    """Micro batches of a process in a step; a process whose share is less than one takes all of it at once."""
    if job.train.micro_batch_size == "auto":
        return None
    (micro,) = job.micro_batches(world_size, on_cpu=True)
    return -(-job.train.global_batch_size // (world_size * micro))


def _data_paths(job: FinetuneConfig) -> list[Path]:
    """Files and folders that the configuration names."""
    sections = [job.data, *(own.data for own in job.per_task.values())]
    return [path for section in sections for key in DATA_PATHS if (path := getattr(section, key)) is not None]


def _fingerprint(job: FinetuneConfig, files: list[TaskFile], cache: Path) -> DataFingerprint:
    """The files of the task by content, wherever they lie."""
    key = data_folder(job.task)
    folder = getattr(job.data, key) if key else None
    if job.data.dataset is not None and not files:
        return source_fingerprint(SourceConfig(dataset=job.data.dataset), cache)
    name = ", ".join(str(path) for path in ([folder] if folder else [file.path for file in files]))
    return files_fingerprint(name, {f"{file.task}/{file.portable}": file.path for file in files}, cache)


def _rows(job: FinetuneConfig, files: list[TaskFile]) -> dict[str, TaskRows]:
    """The rows of each task."""
    tasks = dict.fromkeys(file.task for file in files if file.split == "train")
    return {task: TaskRows(**{split: _sum(job, task, split, files) for split in SPLITS}) for task in tasks}


def _sum(job: FinetuneConfig, task: str, split: str, files: Iterable[TaskFile]) -> int | None:
    data = task_config(job, task).data
    counts = [count_rows(file, data) for file in files if (file.task, file.split) == (task, split)]
    return None if None in counts else sum(count for count in counts if count is not None)


def _left_out(job: FinetuneConfig, rows: dict[str, TaskRows]) -> list[str]:
    """A warning where some tasks of GLUE have no data."""
    missing = [task for task in tasks_of(job) if rows and task not in rows]
    return [f"{job.data.glue} has no training data of {', '.join(missing)}: left out"] if missing else []


def _shaping(job: FinetuneConfig, data: DataFingerprint, parent: Link, cache: Path) -> dict[str, Any]:
    """What of a fine-tuning shapes the result: files and models by content."""
    config = job.model_dump(mode="json", exclude={*OBSERVERS})
    config["data"] = _without_paths(config["data"]) | {"sha256": data.sha256}
    config["init_from"] = parent.weights
    for task, own in config["per_task"].items():
        if "data" in own:
            own["data"] = _without_paths(own["data"])
        if (model := job.per_task[task].init_from) is not None:
            own["init_from"] = initial_weights(model, cache)
    return config


def _without_paths(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in DATA_PATHS}


def _estimates(
    job: FinetuneConfig,
    initial: InitialModel,
    files: list[TaskFile],
    rows: dict[str, TaskRows],
    per_epoch: dict[str, int],
    compute: ResolvedCompute,
) -> FinetuneEstimates:
    """Rows over all epochs and seeds, and how long they are."""
    trained = evaluated = size = counted = runs = 0
    tasks = tuple(rows) or tasks_of(job)
    known = all(task in rows and rows[task].train is not None for task in tasks)
    for task in tasks:
        own = task_config(job, task)
        runs += len(own.seeds)
        if known:
            found = rows[task]
            times = len(own.seeds) * own.train.epochs
            trained += times * (found.train or 0)
            evaluated += times * (found.validation or 0)
            counted += found.train or 0
            size += sum(file.path.stat().st_size for file in files if (file.task, file.split) == (task, "train"))
    steps = max((task_config(job, task).train.epochs * count for task, count in per_epoch.items()), default=None)
    return estimate_finetuning(
        job,
        ModelConfig(**initial.shape, **job.model.model_dump(), pad_vocab_to_multiple_of=1),
        initial.rows,
        compute=compute,
        steps=steps,
        runs=runs,
        tokens=tokens_per_row(size, counted, job.max_length) if known else None,
        trained_rows=trained if known else None,
        evaluated_rows=evaluated if known else None,
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
