"""Pretrains BERT from raw text: vocabulary, token store, training, validation, export. Reads top to bottom.

    python -m train_jobs.pretrain --config tiny --output out                          # one process
    torchrun --nproc-per-node 8 -m train_jobs.pretrain --config base --output out     # one node with 8 GPUs
    torchrun --nnodes 8 --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT \\
        --nproc-per-node 8 -m train_jobs.pretrain --config large --output out         # on each of 8 nodes

--config takes a YAML or JSON file or the name of a shipped recipe. The same command again goes on from the newest
checkpoint in the output folder:

    out/metrics.jsonl    what is reported           out/checkpoints/   what it resumes from
    out/model/           Hugging Face folder        out/result.json    final figures
    out/lineage.json     where the model comes from; out/model has it too, and a model card made from it
    out/stacks/          where ranks stood          out/profile/       where time went, if asked for
    out/tensorboard/     curves, if asked for

Exit codes: 0 done, 75 stopped by SIGTERM with a checkpoint committed, 130 so by Ctrl-C (a second one ends at once), 76
hung (the stacks say where), 2 wrong input, 1 anything else.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch

from train_jobs.artifacts.files import write_text
from train_jobs.artifacts.fingerprints import fingerprint
from train_jobs.artifacts.layers import PRETRAIN_RECIPES, build, config_layers, merge, preset_names, read_assignments
from train_jobs.artifacts.lineage import LINEAGE_FILE, METRICS_FILE, Lineage
from train_jobs.artifacts.start_model import found_on_hub
from train_jobs.artifacts.start_phase import merge_with_start
from train_jobs.artifacts.store_manifest import on_store, store_folder
from train_jobs.assembly.initial_weights import check_initial_model, load_initial_model
from train_jobs.assembly.next_phase import begin_phase, check_phase
from train_jobs.assembly.parts import exported_as, load_parts
from train_jobs.assembly.resume import check_batch, has_checkpoint, resume, trajectory
from train_jobs.config import PretrainConfig, SpecError
from train_jobs.corpus.executors.nodes import Node, other_text
from train_jobs.corpus.preparation import equal_store, prepare_store
from train_jobs.corpus.steps.keys import store_key
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.checkpoint.cadence import Cadence
from train_jobs.engine.checkpoint.checkpoints import CheckpointStore
from train_jobs.engine.loop.budget import TimeBudget
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.reporting.metrics import MetricsLog, Progress
from train_jobs.engine.reporting.profiler import StepProfiler
from train_jobs.engine.runtime import boundary, determinism, distributed, storage
from train_jobs.engine.runtime.devices import peak_flops
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.precision import resolve
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.engine.runtime.watchdog import Watchdog
from train_jobs.models.compiling import is_compiled
from train_jobs.models.huggingface import export
from train_jobs.records import pretraining_lineage
from train_jobs.records.pretraining_lineage import HASHES
from train_jobs.tasks.pretraining import BertPretraining
from train_jobs.tools.mirror import MirrorThread
from train_jobs.tools.tensorboard import TensorBoardThread, require_tensorboard


def pretrain(config: PretrainConfig, *, output: Path, cache: Path, device: str = "auto") -> dict[str, Any]:
    """The whole job on this process.

    Args:
        config: validated configuration.
        output: folder of the run; the main process writes to it, a checkpoint in it is resumed from.
        cache: folder of token stores, shared by runs on the same text.
        device: "auto", "cpu" or "gpu".

    Returns:
        The final figures, as in result.json.

    Raises:
        UserError: input or environment that the user can mend.
        Preempted: SIGTERM came; a checkpoint is committed.
    """
    started = time.monotonic()
    stop = StopRequest()
    stop.listen()
    storage.require_writable(output)
    check_batch(config, output, world_size=int(os.environ.get("WORLD_SIZE", "1")))
    check_initial_model(config, goes_on=has_checkpoint(output))
    check_phase(config, goes_on=has_checkpoint(output))
    parts = load_parts(config)
    tags = pretraining_lineage.read_tags(os.environ)
    if config.metrics.tensorboard:
        require_tensorboard()
    if config.train.deterministic:
        determinism.demand()
    world = distributed.start(device, hang_seconds=config.watchdog.hang_seconds)
    with stop.at_once("what is prepared is kept, the same command goes on from there"):
        store = find_store(config, cache, world)
    config = on_store(config, store.manifest)
    precision = resolve(config.train.precision, world.device)
    task = BertPretraining(config, store, world, parts)
    progress = Progress(config.train.steps)
    loop = Loop(
        task,
        world=world,
        config=config.train,
        precision=precision,
        optimizer=parts.optimizer(task.model.named_parameters()),
        sharded=config.optimizer.sharded,
        schedule=parts.schedule,
        max_grad_norm=config.optimizer.max_grad_norm,
        validate_every=config.validation.every,
        cadence=Cadence(config.checkpoint),
        checkpoints=CheckpointStore.of(config.checkpoint, output, warn=progress.line),
        checkpoint_extra={
            "config": trajectory(config, store.manifest.content),
            "vocabulary": store.manifest.vocab_sha256,
            "threads": torch.get_num_threads(),
            "device": world.device_name,
        },
        metrics=MetricsLog(output / METRICS_FILE if world.is_main else None),
        progress=progress,
        stop=stop,
        budget=TimeBudget(config.schedule.hours),
        peak_flops=peak_flops(world, precision),
        profiler=StepProfiler(config.profile, world, output / "profile" if world.is_main else None, say=progress.line),
    )
    resume(loop, config)
    absent = (
        [] if loop.state.step else load_initial_model(task.model, config, world, cache / pretraining_lineage.HASHES)
    )
    if config.phase_from is not None and not loop.state.step:
        begin_phase(loop, config, store)
    loop.find_micro_batch(config.micro_batches(world.size, on_cpu=world.device.type == "cpu"))
    world.say(describe(config, store, world, precision, micro_batch_size=loop.micro_batch_size))
    if config.train.deterministic and world.device.type == "cuda":
        with_it, without = loop.cost_of_determinism()
        world.say(f"           deterministic: a micro batch takes {with_it / without:.2f} times {without:.4f} s")
    if config.schedule.hours:
        world.say(
            "warning: schedule.hours: the clock decides rates and steps; no other run will be this one bit for bit"
        )
    attempt = pretraining_lineage.this_attempt(world, precision, loop.state.step)
    begun = (
        pretraining_lineage.begin(config, store, attempt, task.model, absent, output, cache, tags)
        if world.is_main
        else None
    )
    watchdog = Watchdog(config.watchdog, world, output)
    mirror = MirrorThread(output / METRICS_FILE, config)
    tensorboard = TensorBoardThread(output / METRICS_FILE, output / "tensorboard", on=config.metrics.tensorboard)
    loop.metrics.open(from_step=loop.state.step)
    if world.is_main:
        mirror.start()
        tensorboard.start()
    result: dict[str, Any] = {}
    try:
        with watchdog:
            loop.run()
        loop.metrics.close()
        if begun:
            with watchdog, world.activity.doing("export", step=loop.state.step):
                result = finish(config, task, loop, store, output, begun, seconds=time.monotonic() - started)
    finally:
        loop.metrics.close()
        if world.is_main:
            tensorboard.stop()
            mirror.close(completed=bool(result))
    world.barrier()
    distributed.stop()
    return result


def find_store(config: PretrainConfig, cache: Path, world: World | None = None) -> TokenStore:
    """The token store that is named, or that of the configured text: opened if it is in the cache, else made by one
    process of each node. Nodes that share the cache share that work.
    """
    if (named := store_folder(config.data, config.data.store)) is not None:
        return TokenStore.open(named)
    world = world or distributed.alone()
    with storage.storage_errors(cache, "making the folder of token stores"):
        node = Node.among(world, cache)
    found = fingerprint(config.data.text, cache / HASHES)
    if node.size > 1:
        texts = world.texts(found.sha256)
        if (other := next((rank for rank, text in enumerate(texts) if text != texts[0]), None)) is not None:
            raise other_text(0, other)
    if (equal := equal_store(config.data, found, cache)) is not None:
        return equal
    folder = cache / store_key(config.data, found)
    if world.local_rank == 0:
        return prepare_store(
            config.data,
            folder,
            progress=lambda text: print(text, flush=True),
            found=found,
            hashes=cache / HASHES,
            node=node,
        )
    while not TokenStore.exists(folder):  # the agent ends us if the process that makes it dies
        time.sleep(0.2)
    return TokenStore.open(folder)


def finish(
    config: PretrainConfig,
    task: BertPretraining,
    loop: Loop,
    store: TokenStore,
    output: Path,
    begun: Lineage,
    *,
    seconds: float,
) -> dict[str, Any]:
    """Exports the model with its lineage and its card, and writes result.json."""
    model_folder = output / "model"
    sequences = loop.state.step * config.train.global_batch_size
    with storage.storage_errors(output, "the export"):
        export(
            task.model,
            model_folder,
            config=config.model,
            vocab_size=config.model.padded_vocab_size(store.manifest.vocab_size),
            vocabulary=store.vocabulary,
            lowercase=config.data.lowercase,
            more=exported_as(task.model, config.model),
            describe=lambda folder: pretraining_lineage.describe(
                begun, folder, steps=loop.state.step, sequences=sequences, metrics=loop.last_validation
            ),
        )
        write_text(output / LINEAGE_FILE, (model_folder / LINEAGE_FILE).read_text(encoding="utf-8"))
        entropy = store.manifest.validation_unigram_entropy
        result = {
            "steps": loop.state.step,
            "sequences": sequences,
            "seconds": round(seconds, 1),
            **{f"validation_{name}": value for name, value in loop.last_validation.items()},
            "model": str(model_folder),
        }
        storage.write_json(output / "result.json", result)
    loss = loop.last_validation.get("mlm_loss")
    if loss is not None:
        verdict = "below: it learned from context" if loss < entropy else "not below: it only learned word frequencies"
        print(f"validation MLM loss {loss:.4f}, unigram entropy of the same text {entropy:.4f} nats ({verdict})")
    print(f"exported {model_folder}", flush=True)
    return result


def describe(config: PretrainConfig, store: TokenStore, world: World, precision: str, *, micro_batch_size: int) -> str:
    """What is about to be trained, in a few lines."""
    manifest, train = store.manifest, config.train
    accumulation = -(-train.share(world.size) // micro_batch_size)
    auto = " (auto)" if train.micro_batch_size == "auto" else ""
    compiled = ", compiled" if is_compiled(train.compile, world.device) else ""
    splits = ", ".join(
        f"{name} {counts.documents} documents {counts.tokens} tokens" for name, counts in manifest.splits.items()
    )
    return (
        f"text       {splits}, vocabulary {manifest.vocab_size}\n"
        f"batch      {train.global_batch_size} sequences = {micro_batch_size} micro{auto} x {accumulation} accumulation"
        f" x {world.size} processes\n"
        f"arithmetic {precision} on {world.device.type}{compiled},"
        f" {torch.get_num_threads()} threads a process,"
        f" torch {torch.__version__}"
    )


def read_config(source: str, sets: list[str], *, goes_on: bool = False) -> PretrainConfig:
    """Reads a file, or a shipped recipe by name, with `a.b=c` assignments on top.

    Args:
        goes_on: the run has a checkpoint: whatever became since of what it started from is no problem.

    Raises:
        SpecError: every wrong key and value, or whatever contradicts the initial model or the earlier phase.
    """
    layers, named = config_layers(source, PRETRAIN_RECIPES)
    assigned = read_assignments(sets, "--set")
    below, written = (layers, [assigned]) if named else ([], [*layers, assigned])
    if not goes_on:
        written += found_on_hub(merge(written))
    found = merge_with_start(below, written)
    if found.problems and not goes_on:
        raise SpecError("training cannot start from what it is to start from", problems=list(found.problems))
    return build(PretrainConfig, found.merged)


def main(argv: list[str] | None = None) -> int:
    """Parses, runs, and turns what went wrong into words and an exit code."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="train_jobs.pretrain",
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, help=f"YAML or JSON file, or one of: {', '.join(preset_names())}")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="A.B=C", help="change one value")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder of the run (default: ./output)")
    parser.add_argument("--cache", type=Path, help="folder of token stores (default: OUTPUT/token-stores)")
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto")
    arguments = parser.parse_args(argv)
    cache = arguments.cache or arguments.output / "token-stores"

    def job() -> None:
        config = read_config(arguments.config, arguments.sets, goes_on=has_checkpoint(arguments.output))
        pretrain(config, output=arguments.output, cache=cache, device=arguments.device)

    return boundary.run(job, arguments.output)


if __name__ == "__main__":
    boundary.leave(main())
