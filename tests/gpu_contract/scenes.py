"""Scenes on the fake device: real tasks, loop and optimizers; `play.py` runs them in a process of their own.

Each scene makes a few optimizer steps and writes what the program did with the device, as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from fake_device import Record, autocast, recorded
from torch.testing._internal.distributed.fake_pg import FakeStore

from train_jobs.assembly import parts
from train_jobs.config import (
    CheckpointConfig,
    FinetuneConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    ProfileConfig,
    TrainConfig,
)
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.checkpoint.checkpoints import Cadence, CheckpointStore
from train_jobs.engine.loop import gradients
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.loop.policy import LoopPolicy, LoopServices
from train_jobs.engine.reporting.metrics import MetricsLog, ProgressLine
from train_jobs.engine.reporting.profiler import StepProfiler
from train_jobs.engine.runtime import distributed
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.models.bert import encoder
from train_jobs.models.bert.task_heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from train_jobs.optim.factory import build_optimizer
from train_jobs.tasks.entities.tagging import Tagging
from train_jobs.tasks.finetuning import Finetuning
from train_jobs.tasks.pretraining import BertPretraining
from train_jobs.tasks.sentences.classification import Classification
from train_jobs.tasks.sequences import EncodedRows, TaggedRows
from train_jobs.tasks.squad.questions import QuestionAnswering

DEVICE = torch.device("cuda", 0)
MICRO, MICROS, STEPS = 4, 3, 2
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
WIDE = {**SHAPE, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 4}


class Event:
    """Event of a stream; the fake device has neither."""

    def record(self) -> None:
        """Do nothing."""

    def elapsed_time(self, later: Event) -> float:
        """Return no time."""
        return 0.0


@contextlib.contextmanager
def device(record: Record, *, packed: bool) -> Iterator[None]:
    """Replace what needs a driver: the trial of the packed kernel, autocast's check, events."""
    replaced = [
        (encoder, "has_packed_kernel", lambda *_: packed),
        (gradients, "autocast", lambda precision, _: autocast(precision)),
        (distributed, "_event", Event),
        (torch.cuda, "get_device_capability", lambda *_: (8, 0)),
        # Models are made on the device: fake tensors cannot move there inside of a module.
        (torch.nn.Module, "to", lambda module, *_: module),
        (parts, "initialise", lambda *_: None),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


@contextlib.contextmanager
def fused_attention() -> Iterator[None]:
    """Compute attention of padded sequences by the kernel that GPUs have for a mask; without a GPU torch takes none."""
    before = torch.nn.functional.scaled_dot_product_attention

    def attend(query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float) -> Any:
        bias = None
        if attn_mask is not None:
            bias = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -torch.inf)
            bias = bias.expand(*query.shape[:3], key.shape[2])
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        return kernel(query, key, value, bias, compute_log_sumexp=True, dropout_p=dropout_p)[0]

    torch.nn.functional.scaled_dot_product_attention = attend
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = before


def world_of(size: int, record: Record) -> World:
    """Return the first of `size` processes, whose stages the record sees."""
    world = World(rank=0, local_rank=0, size=size, device=DEVICE, local_size=size)
    world.activity.observer = record.doing
    return world


def loop_of(
    task: Any, world: World, *, optimizer: str, precision: str, sharded: bool, overlap: bool, folder: Path
) -> Loop:
    """Return the real loop over a task."""
    config = TrainConfig(
        steps=100,
        global_batch_size=MICRO * MICROS * world.size,
        micro_batch_size=MICRO,
        overlap_all_reduce=overlap,
        seed=5,
    )
    saving = CheckpointConfig()
    return Loop(
        task,
        build_optimizer(OptimizerConfig(name=optimizer), task.model.named_parameters()),
        world,
        LoopPolicy(
            config=config,
            precision=precision,
            schedule=lambda step, used: 1e-3,
            max_grad_norm=1.0,
            validate_every=1000,
            sharded=sharded,
        ),
        LoopServices(
            checkpoints=CheckpointStore.from_config(saving, folder),
            cadence=Cadence(saving),
            metrics=MetricsLog(None),
            progress=ProgressLine(config.steps, io.StringIO()),
            stop=StopRequest(),
            profiler=StepProfiler(ProfileConfig(), world, None),
        ),
    )


def pretraining(store: Path, world: World, *, packed: bool, graphs: bool = False, **model: Any) -> BertPretraining:
    """Return the pretraining task on a store, compiled and with CUDA graphs or neither."""
    config = PretrainConfig.model_validate(
        {
            "model": {**SHAPE, **model},
            "data": {"sequence_length": 32, "vocab_size": 256, "short_sequence_probability": 0.5, "text": ["x"]},
            "train": {
                "steps": 100,
                "global_batch_size": MICRO * MICROS * world.size,
                "micro_batch_size": MICRO,
                "compile": graphs,
                "cuda_graphs": graphs,
                "unpad": packed,
            },
        }
    )
    with DEVICE:
        return BertPretraining(config, TokenStore.open(store), world)


def finetuning(kind: str, world: World, *, packed: bool) -> Finetuning:
    """Return a fine-tuning task over made-up rows; only what training uses is there."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(6, 24, 64)
    ids = [rng.integers(5, 200, length) for length in lengths]
    shape = ModelConfig(**SHAPE)
    rows: EncodedRows
    kind_of_head: Any
    if kind == "glue":
        rows, kind_of_head = EncodedRows(ids, lengths, rng.integers(0, 3, 64)), BertForSequenceClassification
        task: Finetuning = Classification.__new__(Classification)
    elif kind == "squad":
        rows, kind_of_head = EncodedRows(ids, lengths, rng.integers(0, 5, (64, 2))), BertForQuestionAnswering
        task = QuestionAnswering.__new__(QuestionAnswering)
    else:
        rows, kind_of_head = TaggedRows(ids, lengths, rng.integers(0, 3, lengths.sum())), BertForTokenClassification
        task = Tagging.__new__(Tagging)

    class Config:
        max_length = 24
        train = FinetuneConfig.model_validate(
            {
                "task": "MRPC",
                "init_from": "x",
                "data": {"glue": "x"},
                "train": {"global_batch_size": MICRO * MICROS, "micro_batch_size": MICRO, "unpad": packed},
            }
        ).train

    class Task:
        config, labels = Config, ("a", "b", "c")

    Task.rows = rows  # type: ignore[attr-defined]
    with DEVICE:
        head = kind_of_head(shape, 256, *([] if kind == "squad" else [3]))
    Finetuning.__init__(task, head, Task, seed=1, world=world)  # type: ignore[arg-type]
    if kind == "glue":
        task._task = type("Classes", (), {"regression": False})  # type: ignore[attr-defined]
    return task


def play(name: str, store: Path, folder: Path) -> dict[str, Any]:
    """Run a scene named KIND-OPTIMIZER-PRECISION-LAYOUT[-RANKS[-overlap]] and return what each step did."""
    kind, optimizer, precision, layout, *ranks = name.split("-")
    size, packed = int(ranks[0]) if ranks else 1, layout != "padded"
    overlap = "overlap" in ranks
    with recorded() as record, device(record, packed=layout == "packed"):
        world = world_of(size, record)
        task: Any = (
            pretraining(store, world, packed=packed) if kind == "pretrain" else finetuning(kind, world, packed=packed)
        )
        loop = loop_of(
            task,
            world,
            optimizer=optimizer,
            precision=precision,
            sharded=size > 1,
            overlap=overlap,
            folder=folder / "checkpoints",
        )
        if overlap:  # several buckets of the small model
            loop.gradients.overlap_reduction(world, bucket_bytes=2**16)
        later = loop._later_bytes(), len(loop.gradients.flat)
        loop._step()  # creates the optimizer's state
        steps = []
        for _ in range(STEPS):
            record.clear()
            loop._step()
            steps.append(record.summary())
        record.clear()
        with record.doing("report"):
            loop._report()
        return {"steps": steps, "report": record.summary(), "later": later}


def saved_bytes(store: Path, layout: str) -> float:
    """Return the bytes that a token of a full sequence keeps for the backward pass, in a wide model in bf16."""
    found = []
    with recorded() as record, device(record, packed=layout == "packed"), fused_attention():
        task = pretraining(store, world_of(1, record), packed=layout != "padded", **WIDE)
        weights = {parameter.untyped_storage()._cdata for parameter in task.model.parameters()}
        for sequences in (32, 64):
            kept: dict[int, int] = {}

            def keep(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
                storage = tensor.untyped_storage()
                if storage._cdata not in weights:
                    kept[storage._cdata] = storage.nbytes()
                return tensor

            task.model.train()
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast("bf16"):
                loss = task.loss(task.largest_batch(sequences), torch.ones(2))
                found.append(sum(kept.values()))
            del loss
    return (found[1] - found[0]) / (32 * 32)


def searched_arrays(store: Path) -> dict[str, list[str]]:
    """Return the arrays of the micro batches that the search for the largest one measures, by kind and layout."""
    found = {}
    with recorded() as record, device(record, packed=True):
        world = world_of(1, record)
        for unpad in (True, False):
            for kind in ("pretrain", "glue"):
                task: Any = (
                    pretraining(store, world, packed=unpad)
                    if kind == "pretrain"
                    else finetuning(kind, world, packed=unpad)
                )
                found[f"{kind}-{'packed' if unpad else 'padded'}"] = sorted(task.arrays(task.largest_batch(4)))
    return found


def graphs(store: Path, folder: Path) -> dict[str, Any]:
    """Return what `train.cuda_graphs` asks of torch: functions with graphs, and beginnings in a step."""
    functions, begun = [], []

    def compile_nothing(function: Any, options: dict[str, bool] | None) -> Any:
        functions.append([function.__name__, options])
        return function

    before = torch.compile, torch.compiler.cudagraph_mark_step_begin
    torch.compile, torch.compiler.cudagraph_mark_step_begin = compile_nothing, lambda: begun.append(1)  # type: ignore[assignment]
    try:
        with recorded() as record, device(record, packed=True):
            world = world_of(1, record)
            task = pretraining(store, world, packed=True, graphs=True)
            options = {"optimizer": "lamb", "precision": "bf16", "sharded": False, "overlap": False}
            loop_of(task, world, folder=folder / "graphs", **options)._step()  # type: ignore[arg-type]
            tasks = task, pretraining(store, world, packed=True)
            shapes = [list(one.arrays(one.largest_batch(128))["packing_starts"].shape) for one in tasks]
    finally:
        torch.compile, torch.compiler.cudagraph_mark_step_begin = before
    return {"functions": functions, "begun": len(begun), "starts": shapes}


def main(names: list[str], store: Path, output: Path) -> None:
    """Run all scenes."""
    found: dict[str, Any] = {"searched_arrays": searched_arrays(store)}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            grouped = "-2" in name
            if grouped:
                dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
            found[name] = play(name, store, Path(folder))
            if grouped:
                dist.destroy_process_group()
        found["saved_bytes"] = {layout: saved_bytes(store, layout) for layout in ("packed", "padded", "fallback")}
        found["graphs"] = graphs(store, Path(folder))
    output.write_text(json.dumps(found))
