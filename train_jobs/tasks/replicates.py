"""Fine-tuning of one task with several seeds; the best model is the result, and finished seeds are not repeated."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from train_jobs.artifacts.commit import folder_name
from train_jobs.artifacts.files import file_sha256, read_object, sync, write_text
from train_jobs.artifacts.lineage import LINEAGE_FILE, METRICS_FILE, Lineage, read_lineage, seed_folder
from train_jobs.artifacts.model_trust import require_trusted
from train_jobs.artifacts.start_model import STRETCH, InitialModel, initial_weights, read_tuned_model
from train_jobs.artifacts.text_rule import TextRule
from train_jobs.assembly.starting_point import SCORED, differences, resume, without_default_micro_batch
from train_jobs.config import ConflictError, FinetuneConfig, ModelConfig, StorageError
from train_jobs.config.tasks import SENTENCES, SPANS, WORDS, TaskKind, task_kind
from train_jobs.corpus.tokenize.vocabulary import load_input_tokenizer
from train_jobs.engine.checkpoint.checkpoints import WEIGHTS, Checkpoint
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.loop.policy import LoopPolicy, LoopServices
from train_jobs.engine.reporting.metrics import MetricsLog, MetricsMirror
from train_jobs.engine.runtime import storage
from train_jobs.engine.runtime.devices import autocast, describe_arithmetic, peak_flops, resolve_precision
from train_jobs.engine.runtime.diagnostics import Watchdog
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.evaluation.scored_rows import SCORED_ROWS, scored_rows_text
from train_jobs.models.bert.encoder import is_compiled, require_compiler
from train_jobs.models.bert.kernels import agree_on_kernels
from train_jobs.models.bert.positions import stretch_positions
from train_jobs.models.bert.pretraining_heads import initialise
from train_jobs.models.huggingface import TokenizerFiles, export, label_settings, load_for_finetuning, require_shapes
from train_jobs.optim.factory import build_optimizer, learning_rate
from train_jobs.records import finetuning_lineage
from train_jobs.records.pretraining_lineage import TrainingStart, read_tags, this_attempt
from train_jobs.tasks.entities.tagging import Words
from train_jobs.tasks.finetuning import Finetuning, TokenizedTask
from train_jobs.tasks.sentences.classification import Texts
from train_jobs.tasks.sentences.glue import summarise_seeds
from train_jobs.tasks.squad.questions import Questions

RESULT = "result.json"
READERS: Mapping[TaskKind, Callable[[FinetuneConfig, Tokenizer], TokenizedTask]] = {
    SENTENCES: Texts.read,
    SPANS: Questions.read,
    WORDS: Words.read,
}
"""Kind of task -> function that reads its rows."""


def read_task(config: FinetuneConfig, tokenizer: Tokenizer) -> TokenizedTask:
    """Read and encode the rows of training, dev and test sets.

    Args:
        config: the configuration.
        tokenizer: tokenizer of the initial model, which reads special pieces in a text as such.

    Raises:
        DataError: a file is missing, or has rows that cannot be used: each with its line.
    """
    return READERS[task_kind(config.task) or SENTENCES](config, tokenizer)


MirrorFactory = Callable[[Path, FinetuneConfig], MetricsMirror]
"""Function that creates the mirror of a job's metrics file."""


@dataclass(frozen=True)
class FinetuneJob:
    """Objects that the runs of all seeds share."""

    config: FinetuneConfig
    initial: InitialModel
    kind: TokenizedTask
    rule: TextRule
    world: World
    precision: str
    stop: StopRequest

    @property
    def shape(self) -> ModelConfig:
        """Shape of the initial model, with the configuration's dropout."""
        return ModelConfig(**self.initial.shape, **self.config.model.model_dump(), pad_vocab_to_multiple_of=1)


def run_task(
    config: FinetuneConfig, output: Path, *, world: World, stop: StopRequest, mirror: MirrorFactory | None
) -> dict[str, Any]:
    """Fine-tune a task with all of its seeds.

    Args:
        config: the configuration.
        output: output folder of the run, and of result.json.
        world: the processes.
        stop: the stop request that signals set.
        mirror: creates the mirror of the metrics. None: metrics are not mirrored.

    Returns:
        The content of result.json.

    Raises:
        UserError: input or environment that the user can fix.
        Preempted: SIGTERM ended training; a checkpoint is committed.
    """
    storage.require_writable(output)
    require_trusted(config.init_from, config.trust)
    initial = read_tuned_model(config)
    require_shapes(config.init_from, initial.sizes, allow_pickle=config.trust.allow_pickle)
    rule = initial.rule(config.data.lowercase)
    kind = read_task(config, load_input_tokenizer(initial.vocabulary, **rule._asdict()))
    job = FinetuneJob(config, initial, kind, rule, world, resolve_precision(config.train.precision, world.device), stop)
    world.log(describe(job))
    if len(config.seeds) == 1:
        result = {"task": config.task, **run_seed(job, config.seeds[0], output, mirror=mirror)}
    else:
        result = run_seeds(job, output, mirror=mirror)
    result["config"] = settings(config, kind.identity)
    if world.is_main:
        storage.write_json(output / RESULT, result)
    world.barrier()  # torchrun ends all ranks once one has exited, so none may leave while the main one still writes
    return result


def run_seeds(job: FinetuneJob, output: Path, *, mirror: MirrorFactory | None) -> dict[str, Any]:
    """Train with each seed that is not finished; return the summary of all, and copy the best model to `output`.

    Args:
        job: shared objects.
        output: output folder of the run; each seed has a subfolder.
        mirror: see `run_task`.

    Raises:
        ConflictError: a finished seed had another configuration.
        Preempted: SIGTERM, Ctrl-C or an eviction stopped the run.
    """
    found = []
    metrics = MetricsLog(output / METRICS_FILE if job.world.is_main else None)
    with metrics.mirrored(mirror_of(job, output, mirror), from_step=0):
        for number, seed in enumerate(job.config.seeds, start=1):
            folder = output / seed_folder(seed)
            job.world.log(f"seed       {seed}, {number} of {len(job.config.seeds)}")
            start = {"seed": seed, "rows": job.kind.rows.sha256}
            one = finished_result(folder, job.config, job.world, job.kind.identity, **start)
            if one is None:
                one = {**run_seed(job, seed, folder, mirror=None), "config": trajectory(job, seed)}
                # last: this file marks the seed as finished
                if job.world.is_main:
                    storage.write_json(folder / RESULT, one)
            found.append({key: value for key, value in one.items() if key != "config"})
            metrics.report(number, {f"validation_{name}": value for name, value in one["metrics"].items()})
        result = summarise_seeds(job.config.task, found)
        best = output / seed_folder(result["best_seed"])
        if job.world.is_main:
            for name in ("model", "predictions"):
                if (best / name).is_dir():
                    replace_by_copy(best / name, output / name)
            if (best / SCORED_ROWS).is_file():  # seeds that an older version finished have none
                # synced, unlike a plain copy: result.json, which marks the run as finished, must not be on disk earlier
                with storage.storage_errors(output, SCORED_ROWS):
                    write_text(output / SCORED_ROWS, (best / SCORED_ROWS).read_text(encoding="utf-8"))
            finetuning_lineage.describe_best(output, result)
    return result


def mirror_of(job: FinetuneJob, output: Path, mirror: MirrorFactory | None) -> MetricsMirror | None:
    """Return the mirror of a run's metrics on the main process; None on others, or without a mirror."""
    return mirror(output / METRICS_FILE, job.config) if mirror and job.world.is_main else None


def replace_by_copy(source: Path, folder: Path) -> None:
    """Copy a folder atomically: the complete copy replaces an existing folder.

    Args:
        source: folder to copy.
        folder: path of the copy.

    Raises:
        StorageError: the disk is full or read-only; no partial copy is left.
    """
    partial, replaced = (folder.with_name(f".{folder.name}.{state}") for state in ("partial", "replaced"))
    with storage.storage_errors(folder, "the best seed's copy", partial=partial):
        for leftover in (partial, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        shutil.copytree(source, partial)
        # before the rename, which may reach the disk earlier than the content, see `models.huggingface.export`
        for path in partial.rglob("*"):
            sync(path)
        if folder.exists():
            folder.rename(replaced)
        partial.rename(folder)
    shutil.rmtree(replaced, ignore_errors=True)


def run_seed(job: FinetuneJob, seed: int, output: Path, *, mirror: MirrorFactory | None) -> dict[str, Any]:
    """Train with one seed, export the best checkpoint, and predict the test sets with it.

    Args:
        job: shared objects.
        seed: seed of the head's weights, the order of rows and dropout.
        output: output folder of this seed.
        mirror: see `run_task`.

    Returns:
        seed, steps, best_step, metrics and the path of the model.
    """
    config, world = job.config, job.world
    model = job.kind.model(job.shape, job.initial.rows)
    # All weights first, then those of the checkpoint: what the checkpoint lacks, such as a new head, comes from the
    # seed.
    initialise(model, seed)
    absent = load_for_finetuning(model, config.init_from, job.kind.labels, allow_pickle=config.trust.allow_pickle)
    if config.stretch_positions is not None:
        table = model.bert.embeddings.position_embeddings.weight
        stretch_positions(table, job.initial.usable_positions, config.stretch_positions)
    model.to(world.device)
    if is_compiled(config.train.compile, world.device):
        require_compiler(world.device, key="train.compile")
        model.bert.compile_parts()
    task = job.kind.training(model, seed=seed, world=world)
    loop = make_loop(job, task, seed, output)
    if world.is_main:
        output.mkdir(parents=True, exist_ok=True)
    world.barrier()  # `resume` reads the folder on every process
    resume(loop, config)
    loop.find_micro_batch(config.micro_batches(world.size, on_cpu=world.device.type == "cpu"))
    if loop.given_micro_batch is None:
        world.log(f"batch      micro batches of {loop.micro_batch_size} ({loop.micro_batch_origin})")
    if not loop.state.step and absent:
        world.log(f"head       new: {', '.join(absent)}")
    attempt = this_attempt(world, job.precision, loop.state.step)
    start = TrainingStart(attempt, model, absent, output, read_tags(os.environ))
    begun = (
        finetuning_lineage.begin(config, start, rows=job.kind.rows.sha256, labels=job.kind.labels, seed=seed)
        if world.is_main
        else None
    )
    watchdog = Watchdog(config.watchdog, world, output)
    with loop.services.metrics.mirrored(mirror_of(job, output, mirror), from_step=loop.state.step):
        with watchdog:
            loop.run()
        loop.services.metrics.close()
        with watchdog, world.activity.doing("export", step=loop.state.step):
            return {"seed": seed, "steps": loop.state.step, **finish(job, task, loop, output, begun)}


def make_loop(job: FinetuneJob, task: Finetuning, seed: int, output: Path) -> Loop:
    """Return the training loop of one seed, whose best checkpoint has the highest score.

    Args:
        job: shared objects.
        task: task of this seed.
        seed: seed of this run.
        output: output folder of this seed.
    """
    config, world = job.config, job.world
    steps = config.train.epochs * task.steps_per_epoch
    policy = LoopPolicy(
        config=config.train.for_engine(steps, seed),
        precision=job.precision,
        schedule=lambda step, used: learning_rate(
            config.schedule, config.optimizer.learning_rate, step=step, total_steps=steps, time_used=used
        ),
        max_grad_norm=config.optimizer.max_grad_norm,
        validate_every=config.evaluation.every or task.steps_per_epoch,
        best_by=lambda found: -found["score"],  # the loop minimises
        patience=config.evaluation.patience,
        sharded=config.optimizer.sharded,
        peak_flops=peak_flops(world, job.precision),
        checkpoint_extra={
            "config": trajectory(job, seed),
            "threads": torch.get_num_threads(),
            "device": world.device_name,
        },
    )
    services = LoopServices.from_config(
        config.checkpoint, output, world, steps=steps, stop=job.stop, best_is_result=True
    )
    parameters = task.model.named_parameters()
    optimizer = build_optimizer(config.optimizer, parameters, layer_decay=config.optimizer.layer_decay)
    return Loop(task, optimizer, world, policy, services)


def finish(job: FinetuneJob, task: Finetuning, loop: Loop, output: Path, begun: Lineage | None) -> dict[str, Any]:
    """Evaluate the best checkpoint again, predict with it, and export it with its lineage and its card.

    Args:
        job: shared objects.
        task: task of this seed.
        loop: the loop after training.
        output: output folder of this seed.
        begun: lineage from the start of the run; None on all processes but the main one.

    Raises:
        StorageError: the best checkpoint is damaged, or the export cannot be written.
    """
    checkpoint = best_checkpoint(loop)
    step = checkpoint.step
    task.model.load_state_dict(checkpoint.weights())
    task.model.eval()
    with torch.no_grad(), autocast(job.precision, job.world.device):
        found = task.evaluate_final(loop.micro_batch_size)
    if begun is not None:
        with storage.storage_errors(output, "the export"):
            for name, text in found.files.items():
                path = output / "predictions" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, text)
            write_text(output / SCORED_ROWS, scored_rows_text(found.rows))
            export(
                task.model,
                output / "model",
                config=job.shape,
                vocab_size=job.initial.rows,
                tokenizer=TokenizerFiles(
                    job.initial.vocabulary,
                    **job.rule._asdict(),
                    trained_positions=job.initial.trained_positions,
                    stretched_positions=job.config.stretch_positions or job.initial.stretched_positions,
                ),
                config_entries={**label_settings(task.model, job.kind.labels), **found.settings},
                describe=lambda folder: finetuning_lineage.describe(
                    begun, folder, steps=loop.state.step, best_step=step, metrics=found.metrics
                ),
            )
            finetuning_lineage.copy_model_lineage(output)
        figures = "  ".join(f"{name} {value:.4f}" for name, value in found.metrics.items())
        print(f"best at step {step}: {figures}", flush=True)
    return {
        "best_step": step,
        "metrics": found.metrics,
        **found.details,
        **found.settings,
        "model": str(output / "model"),
    }


def best_checkpoint(loop: Loop) -> Checkpoint:
    """Return the checkpoint of the best score; call it on every process after training.

    Raises:
        StorageError: it is damaged or missing.
    """
    store = loop.services.checkpoints
    recorded = next(iter(loop.state.best_steps), 0)  # 0: none, or that of an earlier version
    mine = None
    # The main process chooses: on a mounted store other nodes may see files with a delay, and rank differently.
    if loop.world.is_main:
        # With the best checkpoint damaged, the best of the others would be another result.
        mine = store.at(recorded) if recorded else store.best()
    chosen = loop.world.from_main(mine.step if mine else -1)
    found = mine or (store.at(chosen) if chosen >= 0 else None)
    if found is not None:
        return found
    raise StorageError(
        "cannot export the best checkpoint: it is damaged or missing",
        facts={"where": store.root / folder_name(recorded) if recorded else store.root},
        fix="repeat the steps since the last valid checkpoint: orchestrator resume RUN; or repeat its torchrun command",
    )


def finished_result(
    output: Path, config: FinetuneConfig, world: World, identity: Mapping[str, str], **start: Any
) -> dict[str, Any] | None:
    """Return the result of a finished run; None if it is not finished, or its result or weights are damaged.

    A run of several seeds that was finished with other ones is not finished: its own finished seeds are found again.

    Args:
        output: folder of the run.
        config: current configuration.
        world: the processes; the main one decides.
        identity: current rows and classes; see `TokenizedTask.identity`.
        start: additional values that a single seed must have started with. Empty: a run of all seeds of `config`.

    Raises:
        ConflictError: the run had another configuration, or `resume: never` forbids a finished run.
    """
    path = output / RESULT
    readable = world.is_main and read_object(path) is not None
    if world.is_main and path.exists() and not readable:
        warn_of_repetition(f"{path} is damaged")
    if not world.from_main(int(readable)):
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    wanted = settings(config, identity)
    changed = differences(found.get("config", {}), {**wanted, "start": {**wanted["start"], **start}})
    seeds = [one.get("seed") for one in found.get("seeds", [found])]
    other_seeds = not start and seeds != config.seeds
    if other_seeds and len(seeds) == len(config.seeds) == 1:  # both in the same folder
        changed.append(f"seeds: {seeds[0]} -> {config.seeds[0]}")
    if config.resume == "never" or changed:
        raise ConflictError(
            "cannot start: the output folder contains a finished run"
            + (" with another configuration" if changed else ""),
            facts={"where": output, **({"changed": "; ".join(changed)} if changed else {})},
            fix="choose another --output, or use the configuration of that run with resume=auto",
        )
    if world.from_main(int(world.is_main and not other_seeds and has_intact_weights(output / "model"))):
        return found
    if world.is_main:
        if not other_seeds:
            warn_of_repetition(f"the weights in {output / 'model'} do not match their lineage")
        # The new export replaces the model first: a kill after it must not leave the new weights with old figures.
        with storage.storage_errors(output, RESULT):
            path.unlink()
    return None


def has_intact_weights(model: Path) -> bool:
    """Return whether the weights of an exported model have the SHA-256 in its lineage."""
    try:
        lineage = read_lineage(model / LINEAGE_FILE)
        return lineage is not None and lineage.head.weights == file_sha256(model / WEIGHTS)
    except (OSError, ConflictError):
        return False


def warn_of_repetition(reason: str) -> None:
    """Print why a finished run is repeated."""
    print(f"warning: {reason}, so this run is repeated from its last checkpoint", flush=True)


def settings(config: FinetuneConfig, identity: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the values that determine the final weights and their scores, except for the seed, as JSON.

    Args:
        config: the configuration.
        identity: rows and classes; see `TokenizedTask.identity`.
    """
    sections: dict[str, dict[str, Any]] = config.model_dump(
        mode="json", include={"model", "optimizer", "schedule", "train"}
    )
    # Changes of these are allowed when a run resumes: they have no effect on weights.
    del sections["train"]["log_every"]
    without_default_micro_batch(sections)
    del sections["optimizer"]["sharded"]  # no weight depends on the process that keeps the moments
    weights = initial_weights(config.init_from)
    stretched = {} if config.stretch_positions is None else {STRETCH: config.stretch_positions}
    start = {"task": config.task, "weights": weights, "max_length": config.max_length, **stretched}
    evaluation = config.evaluation.model_dump(mode="json")
    return {
        **sections,
        "start": start,
        SCORED: {**evaluation, "positive_label": config.data.positive_label, **identity},
    }


def trajectory(job: FinetuneJob, seed: int) -> dict[str, dict[str, Any]]:
    """Return all values that determine the final weights of one seed and their scores, as JSON."""
    sections = settings(job.config, job.kind.identity)
    return {**sections, "start": {**sections["start"], "seed": seed, "rows": job.kind.rows.sha256}}


def stretch_lines(trained: int, stretched: int | None) -> list[str]:
    """Return the line of the log about interpolated positions, if there are any.

    Args:
        trained: positions of the initial model.
        stretched: positions that they are interpolated to cover. None: no interpolation.
    """
    if stretched is None:
        return []
    return [f"positions  {trained} trained ones stretched to {stretched}; a continued pretraining measures the loss"]


def describe(job: FinetuneJob) -> str:
    """Return a summary of the training, and warnings about files and settings; call it on every process."""
    lines = [
        *job.kind.describe(),
        f"model      {job.initial.folder}",
        *stretch_lines(job.initial.usable_positions, job.config.stretch_positions),
        *describe_arithmetic(job.config.train.precision, job.world.device),
        *agree_on_kernels(
            job.world,
            job.precision,
            job.shape.hidden_size // job.shape.num_attention_heads,
            compile_wanted=job.config.train.compile == "auto",
        ),
    ]
    ignored = [f"{key} has no effect on task {job.config.task}" for key in job.config.ignored()]
    return "\n".join([*lines, *(f"warning: {note}" for note in [*ignored, *job.kind.notes])])
