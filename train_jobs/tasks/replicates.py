"""One task, fine-tuned once with each seed: what is done already is left alone, the best model is that of all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from train_jobs.artifacts.files import sync, write_text
from train_jobs.artifacts.lineage import METRICS_FILE, Attempt, Lineage, seed_folder
from train_jobs.artifacts.start_model import InitialModel, initial_weights, read_initial_model
from train_jobs.assembly.resume import differences, resume
from train_jobs.config import ConflictError, ModelConfig
from train_jobs.config.finetune import FinetuneConfig
from train_jobs.corpus.tokenize.vocabulary import load_vocabulary
from train_jobs.engine.checkpoint.cadence import Cadence
from train_jobs.engine.checkpoint.checkpoints import CheckpointStore
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.reporting.metrics import MetricsLog, Progress
from train_jobs.engine.runtime import storage
from train_jobs.engine.runtime.devices import peak_flops
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.precision import autocast, resolve
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.engine.runtime.watchdog import Watchdog
from train_jobs.models.bert.pretraining_heads import initialise
from train_jobs.models.compiling import is_compiled, require_compiler
from train_jobs.models.huggingface import export
from train_jobs.models.labels import label_settings, load_for_finetuning
from train_jobs.optim.factory import build_optimizer
from train_jobs.optim.schedules import learning_rate
from train_jobs.records import finetuning_lineage
from train_jobs.records.pretraining_lineage import read_tags, this_attempt
from train_jobs.tasks.finetuning import Finetuning
from train_jobs.tasks.registry import TokenizedTask, read_task
from train_jobs.tasks.sentences.score_table import together

RESULT = "result.json"


class MetricsMirror(Protocol):
    """Copies metrics to a tracking service while a job trains."""

    def start(self) -> None:
        """Start copying."""
        ...

    def close(self, *, completed: bool) -> None:
        """Copy the rest and stop; end the run at the service if the job completed."""
        ...


MirrorFactory = Callable[[Path, FinetuneConfig], MetricsMirror]
"""Makes the mirror of a metrics file for a job of this configuration."""


@dataclass(frozen=True)
class Job:
    """What the runs of all seeds share."""

    config: FinetuneConfig
    initial: InitialModel
    kind: TokenizedTask
    lowercase: bool
    world: World
    precision: str
    stop: StopRequest

    @property
    def shape(self) -> ModelConfig:
        """That of the initial model, with the configuration's dropout."""
        return ModelConfig(**self.initial.shape, **self.config.model.model_dump(), pad_vocab_to_multiple_of=1)


def run_task(
    config: FinetuneConfig, output: Path, *, world: World, stop: StopRequest, mirror: MirrorFactory | None
) -> dict[str, Any]:
    """Trains a task with all of its seeds.

    Args:
        output: folder of the run, and of result.json.
        mirror: makes what copies its metrics to a tracking service; None: they are not copied.

    Returns:
        The final figures, as in result.json.

    Raises:
        UserError: input or environment that the user can mend.
        Preempted: SIGTERM came; a checkpoint is committed.
    """
    storage.require_writable(output)
    initial = read_initial_model(config.init_from)
    config.require_positions(initial.positions, initial.folder)
    lowercase = next((known for known in (config.data.lowercase, initial.lowercase) if known is not None), True)
    kind = read_task(config, load_vocabulary(initial.vocabulary, lowercase=lowercase))
    job = Job(config, initial, kind, lowercase, world, resolve(config.train.precision, world.device), stop)
    world.say(describe(job))
    if len(config.seeds) == 1:
        result = {"task": config.task, **run_seed(job, config.seeds[0], output, mirror=mirror)}
    else:
        result = run_seeds(job, output, mirror=mirror)
    result["config"] = settings(config)
    if world.is_main:
        storage.write_json(output / RESULT, result)
    world.barrier()
    return result


def run_seeds(job: Job, output: Path, *, mirror: MirrorFactory | None) -> dict[str, Any]:
    """One run for each seed, those that are done already left alone; what all of them come to."""
    found = []
    copying = mirror(output / METRICS_FILE, job.config) if mirror and job.world.is_main else None
    metrics = MetricsLog(output / METRICS_FILE if job.world.is_main else None)
    metrics.open(from_step=0)
    if copying:
        copying.start()
    try:
        for number, seed in enumerate(job.config.seeds, start=1):
            folder = output / seed_folder(seed)
            job.world.say(f"seed       {seed}, {number} of {len(job.config.seeds)}")
            one = finished(folder, job.config, job.world, seed=seed, rows=job.kind.sha256)
            if one is None:
                one = {**run_seed(job, seed, folder, mirror=None), "config": trajectory(job, seed)}
                if job.world.is_main:
                    storage.write_json(folder / RESULT, one)
            found.append({key: value for key, value in one.items() if key != "config"})
            metrics.report(number, {f"validation_{name}": value for name, value in one["metrics"].items()})
        result = together(job.config.task, found)
        best = output / seed_folder(result["best_seed"])
        if job.world.is_main:
            for name in ("model", "predictions"):
                if (best / name).is_dir():
                    replace_by_copy(best / name, output / name)
            finetuning_lineage.describe_best(output, result)
    finally:
        metrics.close()
        if copying:
            copying.close(completed=len(found) == len(job.config.seeds))
    return result


def replace_by_copy(source: Path, folder: Path) -> None:
    """Copies a folder; the copy appears whole, in place of whatever has its name.

    Raises:
        StorageError: the disk is full or read-only; nothing half-written stays.
    """
    partial, replaced = (folder.with_name(f".{folder.name}.{state}") for state in ("partial", "replaced"))
    with storage.storage_errors(folder, "the best seed's copy", partial=partial):
        for leftover in (partial, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        shutil.copytree(source, partial)
        for path in partial.rglob("*"):
            sync(path)
        if folder.exists():
            folder.rename(replaced)
        partial.rename(folder)
    shutil.rmtree(replaced, ignore_errors=True)


def run_seed(job: Job, seed: int, output: Path, *, mirror: MirrorFactory | None) -> dict[str, Any]:
    """Trains with one seed, exports the best checkpoint and predicts the test sets with it."""
    config, world = job.config, job.world
    model = job.kind.model(job.shape, job.initial.rows)
    initialise(model, seed)
    absent = load_for_finetuning(model, config.init_from, job.kind.labels)
    model.to(world.device)
    if is_compiled(config.train.compile, world.device):
        require_compiler(world.device, key="train.compile")
        model.bert.encoder.compile_layers()
    task = job.kind.training(model, seed=seed, world=world)
    steps = config.train.epochs * task.steps_per_epoch
    progress = Progress(steps)
    loop = Loop(
        task,
        world=world,
        config=config.train.for_engine(steps, seed),
        precision=job.precision,
        optimizer=build_optimizer(config.optimizer, model.named_parameters(), layer_decay=config.optimizer.layer_decay),
        sharded=config.optimizer.sharded,
        schedule=lambda step, used: learning_rate(
            config.schedule, config.optimizer.learning_rate, step=step, total_steps=steps, time_used=used
        ),
        max_grad_norm=config.optimizer.max_grad_norm,
        validate_every=config.evaluation.every or task.steps_per_epoch,
        cadence=Cadence(config.checkpoint),
        checkpoints=CheckpointStore.of(config.checkpoint, output, warn=progress.line),
        checkpoint_extra={
            "config": trajectory(job, seed),
            "threads": torch.get_num_threads(),
            "device": world.device_name,
        },
        metrics=MetricsLog(output / METRICS_FILE if world.is_main else None),
        progress=progress,
        stop=job.stop,
        peak_flops=peak_flops(world, job.precision),
        best_by=lambda found: -found["score"],
        patience=config.evaluation.patience,
    )
    if world.is_main:
        output.mkdir(parents=True, exist_ok=True)
    world.barrier()
    resume(loop, config)
    loop.find_micro_batch(config.micro_batches(world.size, on_cpu=world.device.type == "cpu"))
    if config.train.micro_batch_size == "auto":
        world.say(f"batch      micro batches of {loop.micro_batch_size} (auto)")
    if not loop.state.step and absent:
        world.say(f"head       new: {', '.join(absent)}")
    attempt = this_attempt(world, job.precision, loop.state.step)
    begun = begin(job, seed, attempt, model, absent, output) if world.is_main else None
    copying = mirror(output / METRICS_FILE, config) if mirror and world.is_main else None
    watchdog = Watchdog(config.watchdog, world, output)
    loop.metrics.open(from_step=loop.state.step)
    if copying:
        copying.start()
    result: dict[str, Any] = {}
    try:
        with watchdog:
            loop.run()
        loop.metrics.close()
        with watchdog, world.activity.doing("export", step=loop.state.step):
            result = {"seed": seed, "steps": loop.state.step, **finish(job, task, loop, output, begun)}
    finally:
        loop.metrics.close()
        if copying:
            copying.close(completed=bool(result))
    return result


def begin(
    job: Job, seed: int, attempt: Attempt, model: torch.nn.Module, absent: Sequence[str], output: Path
) -> Lineage:
    """The lineage of one training, as far as it is known when it starts."""
    return finetuning_lineage.begin(
        job.config,
        rows=job.kind.sha256,
        labels=job.kind.labels,
        seed=seed,
        attempt=attempt,
        model=model,
        absent=absent,
        output=output,
        tags=read_tags(os.environ),
    )


def finish(job: Job, task: Finetuning, loop: Loop, output: Path, begun: Lineage | None) -> dict[str, Any]:
    """Takes the best checkpoint, scores it once more, predicts with it and exports it with its lineage and its card."""
    best = loop.checkpoints.best() if job.world.is_main else None
    step = job.world.from_main(best.step if best else -1)
    checkpoint = loop.checkpoints.at(step)
    assert checkpoint is not None, f"the best checkpoint, of step {step}, is gone"
    task.model.load_state_dict(checkpoint.weights())
    task.model.eval()
    with torch.no_grad(), autocast(job.precision, job.world.device):
        found = task.conclude(loop.micro_batch_size)
    if begun is not None:
        with storage.storage_errors(output, "the export"):
            for name, text in found.files.items():
                path = output / "predictions" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, text)
            export(
                task.model,
                output / "model",
                config=job.shape,
                vocab_size=job.initial.rows,
                vocabulary=job.initial.vocabulary,
                lowercase=job.lowercase,
                more={**label_settings(task.model, job.kind.labels), **found.settings},
                describe=lambda folder: finetuning_lineage.describe(
                    begun, folder, steps=loop.state.step, best_step=step, metrics=found.metrics
                ),
            )
            finetuning_lineage.copy_of_model(output)
        figures = "  ".join(f"{name} {value:.4f}" for name, value in found.metrics.items())
        print(f"best at step {step}: {figures}", flush=True)
    return {"best_step": step, "metrics": found.metrics, **found.settings, "model": str(output / "model")}


def finished(output: Path, config: FinetuneConfig, world: World, **start: Any) -> dict[str, Any] | None:
    """The result of a run that came to its end before.

    Args:
        output: its folder.
        config: that of now.
        start: what else it must have begun with.

    Raises:
        ConflictError: it was of another configuration, or there must be none.
    """
    path = output / RESULT
    if not world.from_main(int(path.is_file())):
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    wanted = settings(config)
    changed = differences(found.get("config", {}), {**wanted, "start": {**wanted["start"], **start}})
    if config.resume == "never" or changed:
        raise ConflictError(
            "the output folder holds a finished run" + (" of another configuration" if changed else ""),
            facts={"where": output, **({"changed": "; ".join(changed)} if changed else {})},
            fix="another --output, or the configuration that the run began with and resume=auto",
        )
    return found


def settings(config: FinetuneConfig) -> dict[str, dict[str, Any]]:
    """What of a configuration decides what the weights become, but for the seed and the rows."""
    sections: dict[str, dict[str, Any]] = config.model_dump(
        mode="json", include={"model", "optimizer", "schedule", "train"}
    )
    del sections["train"]["log_every"]
    del sections["optimizer"]["sharded"]  # no weight depends on who keeps the moments
    weights = initial_weights(config.init_from)
    return {**sections, "start": {"task": config.task, "weights": weights, "max_length": config.max_length}}


def trajectory(job: Job, seed: int) -> dict[str, dict[str, Any]]:
    """What decides what the weights become."""
    sections = settings(job.config)
    return {**sections, "start": {**sections["start"], "seed": seed, "rows": job.kind.sha256}}


def describe(job: Job) -> str:
    """What is about to be trained, in a few lines, and what is to be known of its files and settings."""
    lines = [
        *job.kind.describe(),
        f"model      {job.initial.folder}",
        f"arithmetic {job.precision} on {job.world.device.type}, {torch.get_num_threads()} threads a process,"
        f" torch {torch.__version__}",
    ]
    ignored = [f"{key}: task {job.config.task} has no use for it" for key in job.config.ignored()]
    return "\n".join([*lines, *(f"warning: {note}" for note in [*ignored, *job.kind.notes])])
