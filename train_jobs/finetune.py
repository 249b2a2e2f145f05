"""Fine-tunes a BERT on a task: reads its rows, trains, keeps the best checkpoint, exports it. Reads top to bottom.

    python -m train_jobs.finetune --config finetune.yaml --output out                      # one process
    torchrun --nproc-per-node 8 -m train_jobs.finetune --config finetune.yaml --output out # one node with 8 GPUs

The same command again goes on from the newest checkpoint in the output folder:

    out/metrics.jsonl    what is reported            out/checkpoints/   what it resumes from
    out/model/           Hugging Face folder         out/predictions/   of the test sets
    out/result.json      final figures

With several seeds each has a folder of its own, out/seed-42, and the above tell of all together: out/model is the best
of them, out/metrics.jsonl has one line a seed.

Exit codes: 0 done, 75 stopped by SIGTERM with a checkpoint committed, 76 hung (the stacks say where), 2 wrong input,
1 anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from train_jobs.config import ModelConfig, SpecError, UserError
from train_jobs.config.files import write_text
from train_jobs.config.finetune import GLUE, FinetuneConfig
from train_jobs.config.initial import InitialModel, initial_weights, read_initial_model
from train_jobs.config.load import build, merge, read_assignments, read_file
from train_jobs.corpus.vocabulary import load_vocabulary
from train_jobs.engine import determinism, distributed, last_words, storage
from train_jobs.engine.boundary import explained
from train_jobs.engine.checkpoint import CheckpointStore
from train_jobs.engine.devices import peak_flops
from train_jobs.engine.distributed import World
from train_jobs.engine.loop import Loop, Preempted, StopRequest
from train_jobs.engine.metrics import MetricsLog, Progress
from train_jobs.engine.precision import autocast, resolve
from train_jobs.engine.retention import Cadence
from train_jobs.engine.stacks import stacks_on_request
from train_jobs.engine.watchdog import Watchdog
from train_jobs.mirror import MirrorThread
from train_jobs.model.heads import initialise
from train_jobs.model.huggingface import export
from train_jobs.model.labels import label_settings, load_for_finetuning
from train_jobs.optim.factory import build_optimizer
from train_jobs.optim.schedules import learning_rate
from train_jobs.resume import resume
from train_jobs.tasks.finetuning.base import Finetuning
from train_jobs.tasks.finetuning.kinds import Kind, read_kind

PREEMPTED = 75  # sysexits' EX_TEMPFAIL: the same command again goes on
RESULT = "result.json"


@dataclass(frozen=True)
class Job:
    """What the runs of all seeds share."""

    config: FinetuneConfig
    initial: InitialModel
    kind: Kind
    lowercase: bool
    world: World
    precision: str
    stop: StopRequest

    @property
    def shape(self) -> ModelConfig:
        """That of the initial model, with the configuration's dropout."""
        return ModelConfig(**self.initial.shape, **self.config.model.model_dump(), pad_vocab_to_multiple_of=1)


def finetune(config: FinetuneConfig, *, output: Path, device: str = "auto") -> dict[str, Any]:
    """The whole job on this process.

    Args:
        config: validated configuration.
        output: folder of the run; the main process writes to it, a checkpoint in it is resumed from.
        device: "auto", "cpu" or "gpu".

    Returns:
        The final figures, as in result.json.

    Raises:
        UserError: input or environment that the user can mend.
        Preempted: SIGTERM came; a checkpoint is committed.
    """
    stop = StopRequest()
    stop.listen()
    storage.require_writable(output)
    if config.task == GLUE:
        raise SpecError(f"task {config.task} is known, but there is no training for it yet")
    initial = read_initial_model(config.init_from)
    check_length(config, initial)
    lowercase = next((known for known in (config.data.lowercase, initial.lowercase) if known is not None), True)
    kind = read_kind(config, load_vocabulary(initial.vocabulary, lowercase=lowercase))
    if config.train.deterministic:
        determinism.demand()
    world = distributed.start(device, hang_seconds=config.watchdog.hang_seconds)
    precision = resolve(config.train.precision, world.device)
    job = Job(config, initial, kind, lowercase, world, precision, stop)
    world.say(describe(job))
    if len(config.seeds) == 1:
        result = {"task": config.task, **run_seed(job, config.seeds[0], output, mirrored=True)}
    else:
        result = run_seeds(job, output)
    if world.is_main:
        storage.write_json(output / RESULT, result)
        print(f"exported {output / 'model'}", flush=True)
    world.barrier()
    distributed.stop()
    return result


def run_seeds(job: Job, output: Path) -> dict[str, Any]:
    """One run for each seed, those that are done already left alone; what all of them come to."""
    found = []
    mirror, metrics = (
        MirrorThread(output / "metrics.jsonl"),
        MetricsLog(output / "metrics.jsonl" if job.world.is_main else None),
    )
    metrics.open(from_step=0)
    if job.world.is_main:
        mirror.start()
    try:
        for number, seed in enumerate(job.config.seeds, start=1):
            folder = output / f"seed-{seed}"
            job.world.say(f"seed       {seed}, {number} of {len(job.config.seeds)}")
            result_file = folder / RESULT
            done = job.world.from_main(int(result_file.is_file()))
            one = json.loads(result_file.read_text()) if done else run_seed(job, seed, folder, mirrored=False)
            if job.world.is_main and not done:
                storage.write_json(result_file, one)
            found.append(one)
            metrics.report(number, {f"validation_{name}": value for name, value in one["metrics"].items()})
        result = together(job.config.task, found)
        best = output / f"seed-{result['best_seed']}"
        if job.world.is_main:
            for name in ("model", "predictions"):
                if (best / name).is_dir():
                    shutil.copytree(best / name, output / name, dirs_exist_ok=True)
    finally:
        metrics.close()
        if job.world.is_main:
            mirror.close(completed=len(found) == len(job.config.seeds))
    return result


def together(task: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean, standard deviation (of a sample), median and maximum of each metric over the seeds."""
    figures = {
        name: {
            "mean": statistics.fmean(values),
            "sd": statistics.stdev(values) if len(values) > 1 else 0.0,
            "median": statistics.median(values),
            "max": max(values),
        }
        for name in runs[0]["metrics"]
        if (values := [run["metrics"][name] for run in runs])
    }
    best = max(runs, key=lambda run: run["metrics"]["score"])
    return {
        "task": task,
        "metrics": figures,
        "collapsed": sum(run["metrics"]["collapsed"] > 0 for run in runs),
        "best_seed": best["seed"],
        "seeds": runs,
    }


def run_seed(job: Job, seed: int, output: Path, *, mirrored: bool) -> dict[str, Any]:
    """Trains with one seed, exports the best checkpoint and predicts the test sets with it."""
    config, world = job.config, job.world
    model = job.kind.model(job.shape, job.initial.rows)
    initialise(model, seed)
    absent = load_for_finetuning(model, config.init_from, job.kind.labels)
    model.to(world.device)
    if world.device.type == "cuda" if config.train.compile == "auto" else config.train.compile:
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
        checkpoints=CheckpointStore(
            output / "checkpoints",
            keep_last=config.checkpoint.keep_last,
            keep_best=config.checkpoint.keep_best,
            keep_every=config.checkpoint.keep_every,
            asynchronous=config.checkpoint.asynchronous,
            warn=progress.line,
        ),
        checkpoint_extra={
            "config": trajectory(job, seed),
            "threads": torch.get_num_threads(),
            "device": world.device_name,
        },
        metrics=MetricsLog(output / "metrics.jsonl" if world.is_main else None),
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
    if not loop.state.step and absent:
        world.say(f"head       new: {', '.join(absent)}")
    mirror = MirrorThread(output / "metrics.jsonl")
    watchdog = Watchdog(config.watchdog, world, output)
    loop.metrics.open(from_step=loop.state.step)
    if world.is_main and mirrored:
        mirror.start()
    result: dict[str, Any] = {}
    try:
        with watchdog:
            loop.run()
        loop.metrics.close()
        with watchdog, world.activity.doing("export", step=loop.state.step):
            result = {"seed": seed, "steps": loop.state.step, **finish(job, task, loop, output)}
    finally:
        loop.metrics.close()
        if world.is_main and mirrored:
            mirror.close(completed=bool(result))
    return result


def finish(job: Job, task: Finetuning, loop: Loop, output: Path) -> dict[str, Any]:
    """Takes the best checkpoint, scores it once more, predicts with it and exports it."""
    best = loop.checkpoints.best() if job.world.is_main else None
    step = job.world.from_main(best.step if best else -1)
    checkpoint = loop.checkpoints.at(step)
    assert checkpoint is not None, f"the best checkpoint, of step {step}, is gone"
    task.model.load_state_dict(checkpoint.weights())
    task.model.eval()
    with torch.no_grad(), autocast(job.precision, job.world.device):
        found = task.conclude(loop.micro_batch_size)
    if job.world.is_main:
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
            )
        figures = "  ".join(f"{name} {value:.4f}" for name, value in found.metrics.items())
        print(f"best at step {step}: {figures}", flush=True)
    return {"best_step": step, "metrics": found.metrics, **found.settings, "model": str(output / "model")}


def trajectory(job: Job, seed: int) -> dict[str, dict[str, Any]]:
    """What decides what the weights become."""
    sections: dict[str, dict[str, Any]] = job.config.model_dump(
        mode="json", include={"model", "optimizer", "schedule", "train"}
    )
    del sections["train"]["log_every"]
    del sections["optimizer"]["sharded"]  # no weight depends on who keeps the moments
    return {
        **sections,
        "start": {
            "task": job.config.task,
            "seed": seed,
            "weights": initial_weights(job.config.init_from),
            "rows": job.kind.sha256,
        },
    }


def check_length(config: FinetuneConfig, initial: InitialModel) -> None:
    """Refuses sequences that the model has no positions for.

    Raises:
        SpecError: data.max_length is more than they are.
    """
    positions = int(initial.shape["max_position_embeddings"])
    if config.max_length > positions:
        raise SpecError(
            f"data.max_length {config.max_length} is more than the {positions} positions of {initial.folder}",
            fix=f"--set data.max_length={positions}",
        )


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


def read_config(source: str, sets: list[str]) -> FinetuneConfig:
    """Reads a file, with `a.b=c` assignments on top.

    Raises:
        SpecError: every wrong key and value.
    """
    return build(FinetuneConfig, merge([read_file(Path(source)), read_assignments(sets, "--set")]))


def main(argv: list[str] | None = None) -> int:
    """Parses, runs, and turns what went wrong into words and an exit code."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="train_jobs.finetune",
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, help="YAML or JSON file")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="A.B=C", help="change one value")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder of the run (default: ./output)")
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto")
    arguments = parser.parse_args(argv)
    rank = int(os.environ.get("RANK", "0"))
    try:
        last_words.forget(arguments.output, rank)
        config = read_config(arguments.config, arguments.sets)
        with stacks_on_request(arguments.output, rank):
            finetune(config, output=arguments.output, device=arguments.device)
    except Preempted:
        print("stopped by SIGTERM; a checkpoint is committed, the same command goes on from it", flush=True)
        return PREEMPTED
    except UserError as problem:
        return last_words.fail(problem, arguments.output, rank)
    except Exception as problem:
        return last_words.fail(explained(problem, arguments.output, rank), arguments.output, rank)
    return 0


if __name__ == "__main__":
    code = main()
    # The interpreter takes a second to go away, with handlers gone: a launcher that ends the peers of a rank that was
    # faster must not turn "saved" into "killed".
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(code)
