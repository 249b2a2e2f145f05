"""The plan of a fine-tuning: its rows, its steps and the model that it starts from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from orchestrator.estimates.memory import disk_warnings, training_warnings
from orchestrator.estimates.pace import tokens_per_row
from orchestrator.jobs.base import Plan, SharedFacts, TrainingPlan, files_fingerprint, remote_data
from orchestrator.jobs.facts import plan_rows, start_text, stretch_rows, training_rows
from orchestrator.jobs.finetune.estimate import FinetuneEstimates, TuningWork, estimate_finetuning
from orchestrator.jobs.finetune.spec import DATA_PATHS, FinetuneSpec
from orchestrator.jobs.inputs import DATA, START, At, JobInput, Needs, model_input
from orchestrator.jobs.row_counts import count_rows
from orchestrator.runs.status import Counts
from orchestrator.specs.resolved import Resolved
from orchestrator.support.formatting import counted
from orchestrator.support.home import FINGERPRINT_CACHE
from train_jobs.artifacts.fingerprints import DataFingerprint, source_fingerprint
from train_jobs.artifacts.lineage import Link
from train_jobs.artifacts.model_trust import SETTING, require_trusted
from train_jobs.artifacts.start_model import KEY as INIT_FROM
from train_jobs.artifacts.start_model import STRETCH, initial_lineage, initial_weights, read_tuned_model
from train_jobs.artifacts.task_files import SPLITS, TaskFile, task_files
from train_jobs.config import FinetuneConfig
from train_jobs.config.fields import Config
from train_jobs.config.finetune import ColumnsConfig, ExamplesConfig
from train_jobs.config.prepare import SourceConfig
from train_jobs.config.pretrain import OBSERVERS
from train_jobs.config.tasks import GLUE, GLUE_TASKS, OWN, data_folder
from train_jobs.readers.sentence_data import DividedRows, divided_rows
from train_jobs.readers.table_check import (
    QUICK_BYTES,
    CheckedTable,
    check_tables,
    checked_text,
    length_warnings,
    table_warnings,
)

MOST_DIVIDED_BYTES = 64 << 20  # of tables whose texts are read to count the rows of their divisions


class TaskRows(Config):
    """Rows of a task by split; None: this machine cannot count them."""

    train: int | None
    """To learn from: lines of a table, questions of SQuAD, sentences of NER."""
    validation: int | None
    """To choose checkpoints by; of MNLI both sets."""
    test: int | None
    """To predict."""


class FinetunePlan(TrainingPlan):
    """A fine-tuning."""

    spec: FinetuneSpec
    """What the user wants."""
    job: FinetuneConfig
    """What the job itself will read."""
    parent: Link
    """The model that training starts from, as the last link of its lineage."""
    rows: dict[str, TaskRows]
    """Task -> its rows; empty if this machine cannot read them."""
    steps_per_epoch: dict[str, int]
    """Task -> optimizer steps of an epoch, for the tasks whose rows are known. A SQuAD question or a sentence of NER
    that is too long for one sequence counts several times, which adds steps."""
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
        """Optimizer steps of a single run, or the number of runs or GLUE tasks; None: unknown."""
        if self.job.task == GLUE:
            return len(self.tasks)
        return self.runs if self.runs > 1 else self.all_steps

    @property
    def all_steps(self) -> int | None:
        """Optimizer steps of all runs; None: unknown."""
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

    def facts(self) -> list[tuple[str, str]]:
        """Return the plan for humans: label and fact; an empty label continues the row above."""
        how = training_rows(self, _steps(self), self.estimates.time_rows(), kept_by=" by score")
        return plan_rows(self, _model_rows(self), how)


def task_config(job: FinetuneConfig, task: str) -> FinetuneConfig:
    """Return the configuration of one task of a job."""
    return job.of_task(task) if job.task == GLUE else job


def tasks_of(job: FinetuneConfig) -> tuple[str, ...]:
    """Return the tasks of a job, including those without data."""
    return GLUE_TASKS if job.task == GLUE else (job.task,)


def plan_finetuning(resolved: Resolved, home: Path, reuse: Plan | None) -> FinetunePlan:
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
    on_cpu = resolved.compute.device == "cpu"
    job, cache = spec.job_config().on_device(on_cpu=on_cpu), home / FINGERPRINT_CACHE
    for folder in (job.init_from, *(own.init_from for own in job.per_task.values() if own.init_from)):
        require_trusted(folder, job.trust)
    initial = read_tuned_model(job)
    for task in job.per_task:
        read_tuned_model(job.of_task(task), section=f"per_task.{task}.")
    parent = initial_lineage(job.init_from, cache).head
    remote = resolved.site.remote_data(spec)
    files = [] if remote else task_files(job)
    data = remote_data(remote) if remote else _fingerprint(job, files, cache)
    seen = {} if remote else _checked_tables(job, files, spec.check, reuse)
    divided = None if remote else _divided(job, files)
    rows = {} if remote else _rows(job, files, divided)
    shared = SharedFacts.of(resolved, home, [job.init_from, *_data_paths(job)], reuse)
    per_epoch = {
        task: -(-found.train // task_config(job, task).train.global_batch_size)
        for task, found in rows.items()
        if found.train is not None
    }
    estimates = estimate_finetuning(job, initial, shared.compute, _work(job, files, rows, per_epoch))
    sequences = job.micro_batches(shared.compute.world_size, on_cpu=on_cpu)[0]
    warnings = [
        *_missing_task_warnings(job, rows),
        *table_warnings(job.data, seen),
        *(divided.notes if divided else ()),
        *length_warnings(seen, job.max_length, initial.usable_positions),
        *disk_warnings(estimates.disk_bytes, home, "checkpoints"),
        *training_warnings(job, estimates, shared.compute, sequences),
    ]
    return FinetunePlan(
        **shared.fields(_shaping(job, data, parent, cache), data, warnings),
        needs=finetuning_needs(job, files, data, remote, parent.weights),
        job=job,
        checked=checked_text(seen) if seen else None,
        accumulation_steps=_accumulation(job, shared.compute.world_size),
        micro_batch_reason=spec.train.for_engine(1, 0).micro_batch_reason(on_cpu=on_cpu),
        parent=parent,
        rows=rows,
        steps_per_epoch=per_epoch,
        estimates=estimates,
    )


def _checked_tables(
    job: FinetuneConfig, files: list[TaskFile], check: str, reuse: Plan | None
) -> dict[str, CheckedTable]:
    """Read the user's own tables for problems; trials of a sweep share the check of the first one."""
    if job.task != OWN or reuse is not None:
        return {}
    tables = {file.split: file.path for file in files}
    return check_tables(job.data, tables, most_bytes=None if check == "all" else QUICK_BYTES)


def _accumulation(job: FinetuneConfig, world_size: int) -> int | None:
    """Return the micro batches of a process in a step. A share smaller than a micro batch is a single one."""
    if job.train.micro_batch_size == "auto":
        return None
    (micro,) = job.micro_batches(world_size, on_cpu=True)
    return -(-job.train.global_batch_size // (world_size * micro))


def _data_paths(job: FinetuneConfig) -> list[Path]:
    """Files and folders that the configuration names."""
    sections = [job.data, *(own.data for own in job.per_task.values())]
    return [path for section in sections for key in DATA_PATHS if (path := getattr(section, key)) is not None]


def _fingerprint(job: FinetuneConfig, files: list[TaskFile], cache: Path) -> DataFingerprint:
    """Return a fingerprint of the files of the task by content, independent of their place."""
    key = data_folder(job.task)
    folder = getattr(job.data, key) if key else None
    if job.data.dataset is not None and not files:
        return source_fingerprint(SourceConfig(dataset=job.data.dataset), cache)
    name = ", ".join(str(path) for path in ([folder] if folder else [file.path for file in files]))
    return files_fingerprint(name, {f"{file.task}/{file.portable}": file.path for file in files}, cache)


def _is_divided(job: FinetuneConfig) -> bool:
    """Return whether rows of the user's own tables become the dev set or a test."""
    data = job.data
    return job.task == OWN and data.dataset is None and (data.validation is None or data.test_fraction is not None)


def _divided(job: FinetuneConfig, files: list[TaskFile]) -> DividedRows | None:
    """Divide own tables as the job does; None if it divides none, or if they are large."""
    size = sum(file.path.stat().st_size for file in files if file.split != "test")
    return divided_rows(job.data) if _is_divided(job) and size <= MOST_DIVIDED_BYTES else None


def _rows(job: FinetuneConfig, files: list[TaskFile], divided: DividedRows | None) -> dict[str, TaskRows]:
    """Return the number of rows of each task."""
    if _is_divided(job):
        return {OWN: _divided_rows(job.data, files, divided)}
    tasks = dict.fromkeys(file.task for file in files if file.split == "train")
    return {task: TaskRows(**{split: _sum(job, task, split, files) for split in SPLITS}) for task in tasks}


def _divided_rows(data: ExamplesConfig, files: list[TaskFile], divided: DividedRows | None) -> TaskRows:
    """Return the rows of own tables of which some become the dev set or a test; of large tables by their shares."""
    predicted = sum(count_rows(file, data) or 0 for file in files if file.split == "test")
    if divided is not None:
        sizes = divided.sizes
        return TaskRows(train=sizes["train"], validation=sizes["dev"], test=sizes.get("held_back", predicted))
    counts = {file.split: count_rows(file, data) for file in files if file.split != "test"}
    train, dev = counts["train"], counts.get("validation")
    if train is not None and "validation" not in counts:
        dev = round(train * data.validation_fraction)
        train -= dev
    held = 0
    if data.test_fraction is not None and train is not None and dev is not None:
        if data.test_fraction_from == "train":
            held = round(train * data.test_fraction)
            train -= held
        else:
            held = round(dev * data.test_fraction)
            dev -= held
    return TaskRows(train=train, validation=dev, test=held or predicted)


def _sum(job: FinetuneConfig, task: str, split: str, files: Iterable[TaskFile]) -> int | None:
    data = task_config(job, task).data
    counts = [count_rows(file, data) for file in files if (file.task, file.split) == (task, split)]
    return None if None in counts else sum(count for count in counts if count is not None)


def _missing_task_warnings(job: FinetuneConfig, rows: dict[str, TaskRows]) -> list[str]:
    """Return a warning if some tasks of GLUE have no data."""
    missing = [task for task in tasks_of(job) if rows and task not in rows]
    return [f"{job.data.glue} has no training data for {', '.join(missing)}: skipped"] if missing else []


def _shaping(job: FinetuneConfig, data: DataFingerprint, parent: Link, cache: Path) -> dict[str, Any]:
    """Return the settings that shape the result, with hashes in place of files and models."""
    config = job.model_dump(mode="json", exclude={*OBSERVERS})
    config["data"] = _without_paths(config["data"]) | {"sha256": data.sha256}
    config["init_from"] = parent.weights
    if job.stretch_positions is None:
        del config[STRETCH]
    for task, own in config["per_task"].items():
        if "data" in own:
            own["data"] = _without_paths(own["data"])
        if (model := job.per_task[task].init_from) is not None:
            own["init_from"] = initial_weights(model, cache)
    return config


def _without_paths(data: dict[str, Any]) -> dict[str, Any]:
    # The default of a newer key is left out: it must not change the hashes of runs that existed before.
    newer = ("test_fraction_from", ColumnsConfig.model_fields["test_fraction_from"].default)
    unused = ("validation_fraction",) if data.get("validation") or data.get("dataset") or not data.get("train") else ()
    return {
        key: value
        for key, value in data.items()
        if key not in DATA_PATHS and key not in unused and (key, value) != newer
    }


def _work(
    job: FinetuneConfig, files: list[TaskFile], rows: dict[str, TaskRows], per_epoch: dict[str, int]
) -> TuningWork:
    """Return rows over all epochs and seeds, and how long they are."""
    configs = {task: task_config(job, task) for task in rows or tasks_of(job)}
    runs = sum(len(own.seeds) for own in configs.values())
    steps = max((configs[task].train.epochs * count for task, count in per_epoch.items()), default=None)
    if not rows or any(found.train is None for found in rows.values()):
        return TuningWork(runs, steps, None)
    times = {task: len(own.seeds) * own.train.epochs for task, own in configs.items()}
    size = sum(file.path.stat().st_size for file in files if file.task in rows and file.split == "train")
    return TuningWork(
        runs,
        steps,
        tokens_per_row(size, sum(found.train or 0 for found in rows.values()), job.max_length),
        trained_rows=sum(times[task] * (found.train or 0) for task, found in rows.items()),
        evaluated_rows=sum(times[task] * (found.validation or 0) for task, found in rows.items()),
    )


def _model_rows(plan: FinetunePlan) -> Iterator[tuple[str, str]]:
    """Yield the rows of each task, and the model that is fine-tuned."""
    for task, rows in plan.rows.items():
        yield (
            "rows" if task == next(iter(plan.rows)) else "",
            (f"{task}: " if len(plan.rows) > 1 else "") + _split_counts(rows),
        )
    if not plan.rows:
        yield "rows", "known to the job alone"
    if plan.job.task == OWN:
        yield "score", _own_score(plan.job)
    yield "selection", _selection(plan.job)
    yield "from", start_text(plan, "init_from")
    yield from stretch_rows(plan.job)
    parameters = f"{plan.estimates.parameters:,} parameters"
    yield "model", f"{parameters} and a new head, sequences of {plan.job.max_length} at most"


def _selection(job: FinetuneConfig) -> str:
    """Return what the dev set chooses, and whether other rows are scored."""
    if job.task == OWN and job.data.validation is None and job.data.dataset is None:
        share = f"about {job.data.validation_fraction:.0%} of the training rows are the dev set"
        test = f", and {job.data.test_fraction:.0%} of them test" if job.data.test_fraction is not None else ""
        return f"{share}{test}; it chooses checkpoint and seed, so its scores are optimistic"
    if job.data.test_fraction is not None:
        source = "the training rows" if job.data.test_fraction_from == "train" else "its rows"
        return f"dev chooses checkpoint and seed; about {job.data.test_fraction:.0%} of {source} are held back as test"
    test = "a labelled test set is scored once" if job.data.test is not None else "no held-back rows are scored"
    return f"dev chooses checkpoint and seed, so its scores are optimistic; {test}"


def _own_score(job: FinetuneConfig) -> str:
    """Return what the score of own tables is."""
    if job.data.regression:
        return "mean of Pearson and Spearman correlation"
    if job.data.positive_label is not None:
        return f"mean of accuracy and F1 of {job.data.positive_label}"
    return "accuracy; of two labels its mean with macro F1 (F1 of one label: data.positive_label)"


def _split_counts(rows: TaskRows) -> str:
    found = {"train": rows.train, "validation": rows.validation, "test": rows.test}
    shown = {split: count for split, count in found.items() if count != 0}
    return ", ".join(f"{split} {count:,}" if count is not None else f"{split} ?" for split, count in shown.items())


def _steps(plan: FinetunePlan) -> str:
    """Return the steps of one run, or of all runs if there are several."""
    job, epochs = plan.job, plan.job.train.epochs
    several = f"{plan.runs} runs" + (f", seeds {', '.join(map(str, job.seeds))}" if len(job.seeds) > 1 else "")
    if plan.all_steps is None:
        return f"{counted(epochs, 'epoch')}" + (f"; {several}" if plan.runs > 1 else "")
    if plan.runs == 1:
        return f"{plan.all_steps:,} = {counted(epochs, 'epoch')} x {plan.steps_per_epoch[job.task]:,}"
    return f"{plan.all_steps:,} over {several}"


def finetuning_needs(
    job: FinetuneConfig, files: list[TaskFile], data: DataFingerprint, remote: str | None, weights: str | None
) -> Needs:
    """Return the needs of a fine-tuning.

    Args:
        job: what is trained.
        files: those of its task.
        data: them by content.
        remote: name of the folder with them at the site.
        weights: SHA-256 of the model that is tuned.
    """
    inputs, placed = list[JobInput](), dict[str, Any]()
    if remote is not None:
        inputs.append(JobInput(DATA, "tables", remote=remote))
        placed[f"data.{data_folder(job.task)}"] = At(DATA)
    else:
        if job.data.dataset is None:  # else the job fetches it
            tables = {file.portable: file.path for file in files}
            inputs.append(JobInput(DATA, "tables", data.sha256, list_files=lambda: tables))
        for key in DATA_PATHS:
            path: Path | None = getattr(job.data, key)
            if path is not None:
                placed[f"data.{key}"] = At(DATA, key if path.is_dir() else f"{key}/{path.name}")
    inputs.append(model_input(Path(job.init_from), weights or ""))
    placed[INIT_FROM] = At(START)
    local = (INIT_FROM, SETTING, *(f"data.{key}" for key in DATA_PATHS))
    return Needs(tuple(inputs), placed, local, tuple(_undeliverable_paths(job)))


def _undeliverable_paths(job: FinetuneConfig) -> list[str]:
    """Return a line for each path that cannot be delivered: overrides of single GLUE tasks, a dataset in a folder."""
    found = {f"per_task.{task}.{INIT_FROM}": own.init_from for task, own in job.per_task.items()}
    for task, own in job.per_task.items():
        found |= {f"per_task.{task}.data.{key}": getattr(own.data, key) for key in DATA_PATHS}
    if (dataset := job.data.dataset) is not None and Path(dataset).is_dir():
        found["data.dataset"] = Path(dataset)
    return [f"{key}: {path} is on this machine" for key, path in found.items() if path is not None]
