"""Pretrain BERT from raw text: vocabulary, token store, training, validation, export.

    python -m train_jobs.pretrain --config tiny --output out                          # one process
    torchrun --nproc-per-node 8 -m train_jobs.pretrain --config base --output out     # one node with 8 GPUs
    torchrun --nnodes 8 --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT \\
        --nproc-per-node 8 -m train_jobs.pretrain --config large --output out         # on each of 8 nodes

--config takes a YAML or JSON file or the name of a shipped recipe. The same command again resumes from the newest
checkpoint in the output folder:

    out/metrics.jsonl    metrics                    out/checkpoints/   to resume from
    out/system/          load of each machine
    out/model/           Hugging Face folder        out/result.json    final figures
    out/lineage.json     lineage of the model; out/model has it too, with a model card
    out/stacks/          stacks of ranks            out/profile/       profile of a few steps, if configured
    out/tensorboard/     curves, if configured

Exit codes: 0 done, 75 stopped by SIGTERM with a checkpoint committed, 130 the same by Ctrl-C (a second Ctrl-C stops
immediately), 76 hung (see the stacks), 2 invalid input, 8 this machine cannot run it, 1 any other error.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from train_jobs.artifacts.files import write_text
from train_jobs.artifacts.fingerprints import fingerprint
from train_jobs.artifacts.layers import (
    PRETRAIN_RECIPES,
    build,
    config_layers,
    continued_recipe,
    merge,
    preset_names,
    read_assignments,
)
from train_jobs.artifacts.lineage import LINEAGE_FILE, METRICS_FILE, Lineage
from train_jobs.artifacts.sequence_figures import SequenceFigures
from train_jobs.artifacts.source_mixture import held_out_warnings, mixture_text
from train_jobs.artifacts.start_model import resolve_hub_name
from train_jobs.artifacts.start_phase import merge_with_start
from train_jobs.artifacts.store_manifest import on_store, store_folder
from train_jobs.assembly.parts import Parts, export_settings, load_parts
from train_jobs.assembly.starting_point import (
    begin_phase,
    check_batch,
    check_start,
    has_checkpoint,
    load_initial_model,
    resume,
    trajectory,
)
from train_jobs.config import PretrainConfig, SpecError
from train_jobs.config.verdict import margin_text, verdict
from train_jobs.corpus.examples.text_use import sequence_figures
from train_jobs.corpus.executors.node import Node, text_mismatch_error
from train_jobs.corpus.preparation import equal_store, prepare_store
from train_jobs.corpus.steps.records import store_key
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.loop.policy import LoopPolicy, LoopServices
from train_jobs.engine.reporting.system_metrics import SystemMonitor
from train_jobs.engine.runtime import boundary, distributed, storage
from train_jobs.engine.runtime.devices import describe_arithmetic, peak_flops, require_determinism, resolve_precision
from train_jobs.engine.runtime.diagnostics import Watchdog
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.models.bert.encoder import is_compiled
from train_jobs.models.bert.kernels import agree_on_kernels
from train_jobs.models.huggingface import TokenizerFiles, export
from train_jobs.records import pretraining_lineage
from train_jobs.records.pretraining_lineage import HASHES, TrainingStart
from train_jobs.tasks.pretraining import BertPretraining
from train_jobs.tasks.stretching import measure_stretch
from train_jobs.tools.mirror import MirrorThread, TensorBoardThread, require_tensorboard


def pretrain(config: PretrainConfig, *, output: Path, cache: Path, device: str = "auto") -> dict[str, Any]:
    """Run the complete job in this process.

    Args:
        config: validated configuration.
        output: folder of the run; the main process writes to it and resumes from a checkpoint in it.
        cache: folder of token stores, shared by runs on the same text.
        device: "auto", "cpu" or "gpu".

    Returns:
        The final figures, as in result.json.

    Raises:
        UserError: input or environment that the user can fix.
        Preempted: SIGTERM stopped the job; a checkpoint is committed.
    """
    started = time.monotonic()
    stop = StopRequest()
    stop.listen()
    storage.require_writable(output)
    check_batch(
        config, output, world_size=int(os.environ.get("WORLD_SIZE", "1")), on_cpu=not distributed.uses_gpu(device)
    )
    check_start(config, resumes=has_checkpoint(output))
    parts = load_parts(config)  # checked, like the lines above, before the store, which can take hours to prepare
    tags = pretraining_lineage.read_tags(os.environ)
    if config.metrics.tensorboard:
        require_tensorboard()
    if config.train.deterministic:
        require_determinism()
    world = distributed.start(device, hang_seconds=config.watchdog.hang_seconds)
    with stop.interruptible("finished parts of the store are kept, the same command resumes"):
        store = find_store(config, cache, world)
    config = on_store(config, store.manifest)
    figures = sequence_figures(store, data=config.data, objective=config.objective, plan=parts.plan)
    config = config.with_batch_of(figures.tokens_per_sequence)
    loop = make_loop(config, store, parts, output, world, stop)
    resume(loop, config)
    absent: list[str] = []
    stretch = None
    if not loop.state.step:
        stretch = measure_stretch(config, store, world, loop.policy.precision)
        absent = load_initial_model(loop.task.model, config, world, cache / HASHES)
        begin_phase(loop, config, store)
    loop.find_micro_batch(config.micro_batches(world.size, on_cpu=world.device.type == "cpu"))
    world.log(describe(config, store, loop, figures))
    attempt = pretraining_lineage.this_attempt(world, loop.policy.precision, loop.state.step)
    begun = None
    if world.is_main:
        begun = pretraining_lineage.begin(
            config, store, TrainingStart(attempt, loop.task.model, absent, output, tags, figures, stretch), cache
        )
    result = train(loop, config, store, output, begun, started=started)
    world.barrier()
    distributed.stop()
    return result


def make_loop(
    config: PretrainConfig, store: TokenStore, parts: Parts, output: Path, world: World, stop: StopRequest
) -> Loop:
    """Return the training loop over a token store.

    Args:
        config: validated configuration.
        store: token store to train on.
        parts: model, objective, optimizer and schedule.
        output: folder of the run.
        world: processes of the job.
        stop: request to stop the job.
    """
    precision = resolve_precision(config.train.precision, world.device)
    policy = LoopPolicy(
        config=config.train,
        precision=precision,
        schedule=parts.schedule,
        max_grad_norm=config.optimizer.max_grad_norm,
        validate_every=config.validation.every,
        sharded=config.optimizer.sharded,
        peak_flops=peak_flops(world, precision),
        checkpoint_extra={
            "config": trajectory(config, store.manifest.content, store.manifest.rule),
            "vocabulary": store.manifest.vocab_sha256,
            "threads": torch.get_num_threads(),
            "device": world.device_name,
        },
    )
    services = LoopServices.from_config(
        config.checkpoint,
        output,
        world,
        steps=config.train.steps,
        stop=stop,
        profile=config.profile,
        hours=config.schedule.hours,
    )
    task = BertPretraining(config, store, world, parts)
    return Loop(task, parts.optimizer(task.model.named_parameters()), world, policy, services)


def train(
    loop: Loop, config: PretrainConfig, store: TokenStore, output: Path, begun: Lineage | None, *, started: float
) -> dict[str, Any]:
    """Train to the end and export the model, with a watchdog and with mirrors of the metrics.

    Args:
        loop: training loop, restored or at step 0.
        config: validated configuration.
        store: token store to train on.
        output: folder of the run.
        begun: lineage of the run on the main process; None on the others.
        started: start of the job on the monotonic clock, in seconds.

    Returns:
        The final figures on the main process; empty on the others.

    Raises:
        Preempted: SIGTERM stopped the job; a checkpoint is committed.
    """
    world, metrics = loop.world, loop.services.metrics
    watchdog = Watchdog(config.watchdog, world, output)
    mirror = MirrorThread(output / METRICS_FILE, config)
    tensorboard = TensorBoardThread(output / METRICS_FILE, output / "tensorboard", on=config.metrics.tensorboard)
    metrics.open(from_step=loop.state.step)
    if world.is_main:
        mirror.start()
        tensorboard.start()
    result: dict[str, Any] = {}
    try:
        with SystemMonitor.of(world, output), watchdog:
            loop.run()
        metrics.close()
        if begun:
            with watchdog, world.activity.doing("export", step=loop.state.step):
                result = finish(config, loop, store, output, begun, seconds=time.monotonic() - started)
    finally:
        metrics.close()
        if world.is_main:
            tensorboard.stop()
            mirror.close(completed=bool(result))
    return result


def find_store(config: PretrainConfig, cache: Path, world: World | None = None) -> TokenStore:
    """Open the token store of a run; prepare it if it is not in the cache. Call it on every process.

    One process of each node prepares the store. Nodes that share the cache share the work.

    Args:
        config: validated configuration, with a store or with text.
        cache: folder of token stores.
        world: processes of the job. None: this process alone.

    Raises:
        DataError: the store or the text cannot be used, or the nodes read different texts.
        StorageError: the cache cannot be written.
        PeerError: another node was lost.
    """
    if (named := store_folder(config.data, config.data.store)) is not None:
        return TokenStore.open(named)
    return _make_store(config, cache, world or distributed.single_process_world()).made_from_text()


def _make_store(config: PretrainConfig, cache: Path, world: World) -> TokenStore:
    """Return the token store of the text of a run, prepared unless it is in the cache; see `find_store`."""
    with storage.storage_errors(cache, "the folder of token stores"):
        node = Node.for_world(world, cache, os.environ)
    found = fingerprint(config.data.text, cache / HASHES)
    if node.size > 1:
        texts = world.gather_texts(found.sha256)
        if (other := next((rank for rank, text in enumerate(texts) if text != texts[0]), None)) is not None:
            raise text_mismatch_error(where=f"rank 0 and rank {other}")
    folder = cache / store_key(config.data, found)
    if not TokenStore.exists(folder) and (equal := equal_store(config.data, found, cache)) is not None:
        return equal
    if world.local_rank == 0:
        return prepare_store(
            config.data,
            folder,
            progress=lambda text: print(text, flush=True),
            found=found,
            hashes=cache / HASHES,
            node=node,
        )
    while not TokenStore.exists(folder):  # the launcher ends this process if the preparing one dies
        time.sleep(0.2)
    return TokenStore.open(folder)


def finish(
    config: PretrainConfig, loop: Loop, store: TokenStore, output: Path, begun: Lineage, *, seconds: float
) -> dict[str, Any]:
    """Export the model with its lineage and its card, and write result.json.

    Args:
        config: validated configuration.
        loop: training loop after the last step.
        store: token store of the run.
        output: folder of the run.
        begun: lineage of the run, without the facts of its end.
        seconds: duration of the job.

    Returns:
        The final figures, as in result.json.

    Raises:
        StorageError: the disk is full or read-only.
    """
    model_folder, model = output / "model", loop.task.model
    sequences = loop.state.step * config.train.global_batch_size
    trained = pretraining_lineage.trained_positions(begun, config)
    with storage.storage_errors(output, "the export"):
        export(
            model,
            model_folder,
            config=config.model,
            vocab_size=config.model.padded_vocab_size(store.manifest.vocab_size),
            tokenizer=TokenizerFiles(
                Path(str(store.vocabulary)),  # on a disk: a store by URL is refused
                **store.manifest.rule._asdict(),
                trained_positions=trained,
                stretched_positions=pretraining_lineage.stretched_positions(begun, trained),
            ),
            config_entries=export_settings(model, config.model),
            describe=lambda folder: pretraining_lineage.describe(
                begun, folder, steps=loop.state.step, sequences=sequences, metrics=loop.last_validation
            ),
        )
        write_text(output / LINEAGE_FILE, (model_folder / LINEAGE_FILE).read_text(encoding="utf-8"))
        result = {
            "steps": loop.state.step,
            "sequences": sequences,
            "micro_batch_size": loop.micro_batch_size,
            "text_use": begun.head.facts.get("text_use"),
            "seconds": round(seconds, 1),
            **{f"validation_{name}": value for name, value in loop.last_validation.items()},
            "model": str(model_folder),
        }
        storage.write_json(output / "result.json", result)
    _print_verdict(loop.last_validation)
    print(f"exported {model_folder}", flush=True)
    return result


def _print_verdict(found: dict[str, float]) -> None:
    """Print the loss of a validation and the unigram entropy, if it has both."""
    if (loss := found.get("mlm_loss")) is not None and (entropy := found.get("unigram_entropy")) is not None:
        error = found.get("unigram_margin_error")
        print(
            f"validation MLM loss {loss:.4f}, unigram entropy of the same tokens {entropy:.4f} nats"
            f" ({margin_text(loss, entropy, error)}: {verdict(loss, entropy, error).value})"
        )


def describe(config: PretrainConfig, store: TokenStore, loop: Loop, figures: SequenceFigures) -> str:
    """Return a summary of text, batch and arithmetic, with warnings; call it on every process."""
    manifest, train, world, size = store.manifest, config.train, loop.world, loop.micro_batch_size
    accumulation = -(-train.share(world.size) // size)
    origin = f" ({loop.micro_batch_origin})" if loop.micro_batch_origin else ""
    splits = ", ".join(
        f"{name} {counts.documents} documents {counts.tokens} tokens" for name, counts in manifest.splits.items()
    )
    mixture = mixture_text(manifest)
    lines = [
        f"text       {splits}, vocabulary {manifest.vocab_size}",
        f"sequences  {figures.text()}",
        *([f"sources    {mixture}"] if mixture else []),
        f"batch      {train.global_batch_size} sequences = {size} micro{origin} x {accumulation} accumulation"
        f" x {world.size} processes",
        *describe_arithmetic(train.precision, world.device, compiled=is_compiled(train.compile, world.device)),
        *agree_on_kernels(
            world,
            loop.policy.precision,
            config.model.hidden_size // config.model.num_attention_heads,
            compile_wanted=train.compile == "auto",
        ),
    ]
    if train.deterministic and world.device.type == "cuda" and (cost := loop.cost_of_determinism()) is not None:
        with_it, without = cost
        lines.append(f"           deterministic: a micro batch takes {with_it / without:.2f} times {without:.4f} s")
    if config.schedule.hours:
        lines.append("warning: schedule.hours: rates and steps depend on the clock; the run is not reproducible")
    lines += [f"warning: {warning}" for warning in (*held_out_warnings(manifest), *figures.warnings())]
    return "\n".join(lines)


def read_config(source: str, sets: list[str], *, resumes: bool = False) -> PretrainConfig:
    """Read a file or a shipped recipe; `a.b=c` assignments override it.

    Args:
        source: path of a YAML or JSON file, or name of a recipe.
        sets: assignments.
        resumes: whether the run has a checkpoint; the model or phase that it started from is then not checked.

    Raises:
        SpecError: keys or values are invalid, or contradict the initial model or the earlier phase; the error lists
            all of them.
    """
    layers, named = config_layers(source, PRETRAIN_RECIPES)
    assigned = read_assignments(sets, "--set")
    below, written = (layers, [assigned]) if named else ([], [*layers, assigned])
    if not resumes:
        written += resolve_hub_name(merge(written))
    found = merge_with_start(below, written)
    if found.problems and not resumes:
        raise SpecError("cannot start training from the given model or phase", problems=list(found.problems))
    started = any(found.merged.tree.get(key) is not None for key in ("init_from", "phase_from"))
    if named and not started and (earlier := continued_recipe(source)) is not None:
        raise SpecError(f"recipe {source} continues a run of recipe {earlier}", fix="--set phase_from=OUTPUT")
    return build(PretrainConfig, found.merged)


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the job and return an exit code."""
    parser = boundary.job_parser("pretrain", __doc__, recipes=preset_names())
    parser.add_argument("--cache", type=Path, help="folder of token stores (default: OUTPUT/token-stores)")
    arguments = parser.parse_args(argv)
    cache = arguments.cache or arguments.output / "token-stores"

    def job() -> None:
        config = read_config(arguments.config, arguments.sets, resumes=has_checkpoint(arguments.output))
        pretrain(config, output=arguments.output, cache=cache, device=arguments.device)

    return boundary.run(job, arguments.output)


if __name__ == "__main__":
    boundary.exit_process(main())
