"""Estimates compared with other formulas and with the model itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from orchestrator.estimates.memory import checkpoint_bytes, layer_activation_bytes, state_bytes
from orchestrator.estimates.pace import Span, span_of
from orchestrator.jobs.pretrain.estimate import estimate
from orchestrator.specs.compute import ResolvedCompute
from train_jobs.config import (
    CheckpointConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    TrainConfig,
)
from train_jobs.config.arithmetic import encoder_parameters, flops_per_token, parameter_count
from train_jobs.engine.checkpoint.checkpoints import CheckpointStore
from train_jobs.models.bert.pretraining_heads import BertForPreTraining
from train_jobs.optim.factory import build_optimizer

BASE = ModelConfig(pad_vocab_to_multiple_of=1)
LARGE = ModelConfig(
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    pad_vocab_to_multiple_of=1,
)
SMALL = ModelConfig(
    hidden_size=128,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=512,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.0,
)


def test_parameters_match_published_sizes() -> None:
    assert parameter_count(BASE, 30_522) == 110_106_428
    assert parameter_count(LARGE, 30_522) == 336_226_108
    assert encoder_parameters(BASE, 30_522) == 109_482_240


@pytest.mark.parametrize("vocab_size", [1000, 1001])
@pytest.mark.parametrize("shape", [SMALL, SMALL.model_copy(update={"intermediate_size": 96, "type_vocab_size": 3})])
def test_parameters_match_the_model(shape: ModelConfig, vocab_size: int) -> None:
    with torch.device("meta"):
        model = BertForPreTraining(shape, shape.padded_vocab_size(vocab_size))
    assert parameter_count(shape, vocab_size) == sum(parameter.numel() for parameter in model.parameters())


def test_flops_of_bert_large_and_base() -> None:
    """Golden figures: 240.5 and 69.8 GFLOP for a sequence of 128 with 15% predicted, computed by hand."""
    for model, rows, golden in ((LARGE, 30_528, 240.5e9), (BASE, 30_528, 69.8e9)):
        each = flops_per_token(model, rows, sequence_length=128, max_predictions=19.2)
        assert each * 128 == pytest.approx(golden, rel=1e-3)


def test_step_is_the_global_batch() -> None:
    job = PretrainConfig(train=TrainConfig(global_batch_size=64))
    each = flops_per_token(job.model, 30_522, sequence_length=128, max_predictions=20)
    assert estimate(job, vocab_size=30_522, device="gpu").flops_per_step == pytest.approx(each * 128 * 64)


def test_memory_counts_every_copy_of_state_and_checkpoint() -> None:
    assert state_bytes(1000, activation_bytes=4, with_moments=1000) == 16_000
    assert state_bytes(1000, activation_bytes=2, with_moments=1000) == 18_000
    assert state_bytes(1000, activation_bytes=2, with_moments=200) == 11_600
    assert checkpoint_bytes(1000) == 12_000


@pytest.mark.parametrize(
    ("settings", "steps", "at_once"),
    [
        ({"keep_last": 3, "keep_best": 0}, 1000, 4),
        ({"keep_last": 3, "keep_best": 2}, 1000, 6),
        ({"keep_last": 3, "keep_best": 0, "keep_every": 100}, 1000, 14),
        ({"keep_last": 3, "keep_best": 0, "keep_every": 100}, 1099, 14),
        ({"keep_last": 3, "keep_best": 0, "keep_every": 2000}, 1000, 4),
        ({"keep_last": 3, "keep_best": 2}, 5, 5),
    ],
)
def test_disk_covers_kept_pending_and_exported(settings: dict[str, int], steps: int, at_once: int) -> None:
    job = PretrainConfig(checkpoint=CheckpointConfig(**settings), train=TrainConfig(steps=steps))
    figures = estimate(job, vocab_size=30_522, device="cpu")
    assert figures.checkpoints_at_once == at_once
    assert figures.disk_bytes == at_once * 12 * figures.parameters + 4 * figures.parameters


@pytest.mark.parametrize("asynchronous", [False, True])
def test_writer_copy_uses_memory_of_one_checkpoint(asynchronous: bool) -> None:
    job = PretrainConfig(checkpoint=CheckpointConfig(asynchronous=asynchronous))
    figures = estimate(job, vocab_size=30_522, device="cpu")
    assert figures.checkpoint_copy_bytes == (12 * figures.parameters if asynchronous else 0)


def test_checkpoint_size_equals_files_written(tmp_path: Path) -> None:
    model = BertForPreTraining(SMALL, SMALL.padded_vocab_size(1000))
    optimizer = build_optimizer(OptimizerConfig(name="lamb"), model.named_parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(1, weights=model.state_dict(), optimizer=optimizer.state_dict(), state={})
    real = sum(path.stat().st_size for path in tmp_path.rglob("*.*"))
    assert estimate(PretrainConfig(model=SMALL), vocab_size=1000, device="cpu").checkpoint_bytes == pytest.approx(
        real, rel=0.02
    )


def test_layer_activations_are_34_bytes_per_unit_of_width() -> None:
    assert layer_activation_bytes(LARGE, activation_bytes=2) == 34 * 1024


@pytest.mark.parametrize(
    ("precision", "device", "width"),
    [("auto", "gpu", 2), ("auto", "cpu", 4), ("fp16", "cpu", 2), ("fp32", "gpu", 4)],
)
def test_precision_decides_the_state(precision: str, device: str, width: int) -> None:
    job = PretrainConfig(train=TrainConfig(precision=precision))
    figures = estimate(job, vocab_size=30_522, device=device)
    assert figures.state_bytes == state_bytes(
        figures.parameters, activation_bytes=width, with_moments=figures.parameters
    )
    libraries = 600_000_000 if device == "cpu" else 0  # a GPU has a separate memory
    assert figures.process_bytes == figures.state_bytes + figures.activation_bytes + libraries


@pytest.mark.parametrize(
    ("sharded", "world_size", "with_moments"),
    [
        (False, 4, 110_111_042),
        (True, 1, 110_111_042),
        (True, 4, 27_527_761),  # an even share
        (True, 64, 23_445_504),  # the complete embedding table, which a single process has
    ],
)
def test_sharded_moments_are_those_of_the_fullest_process(sharded: bool, world_size: int, with_moments: int) -> None:
    job = PretrainConfig(optimizer=OptimizerConfig(sharded=sharded))
    figures = estimate(job, vocab_size=30_522, device="gpu", world_size=world_size)
    whole = state_bytes(figures.parameters, activation_bytes=2, with_moments=0)
    assert figures.state_bytes == whole + 8 * with_moments


@pytest.mark.parametrize(("device", "size"), [("cpu", 32), ("gpu", 128)])
def test_auto_micro_batch_estimated_at_largest(device: Literal["cpu", "gpu"], size: int) -> None:
    jobs = [PretrainConfig(train=TrainConfig(global_batch_size=256, micro_batch_size=m)) for m in ("auto", size)]
    auto, given = (estimate(job, vocab_size=30_522, device=device, world_size=2) for job in jobs)
    assert auto == given
    assert auto.micro_batch_size == size


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", None), ("bf16", torch.bfloat16)])
def test_activations_match_those_of_the_model(precision: str, dtype: torch.dtype | None) -> None:
    """Within a fifth of the storages that autograd saves; weights and their casts are counted elsewhere."""
    vocab_size, sequences, length, predictions = 1000, 4, 128, 20
    job = PretrainConfig(
        model=SMALL,
        data=DataConfig(sequence_length=length),
        train=TrainConfig(micro_batch_size=sequences, precision=precision),
    )
    model = BertForPreTraining(SMALL, vocab_size)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    shapes = {tuple(parameter.shape) for parameter in model.parameters() if parameter.dim() == 2}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        cast = tuple(tensor.shape) in shapes or tuple(tensor.t().shape) in shapes if tensor.dim() == 2 else False
        if tensor.untyped_storage().data_ptr() not in weights and not cast:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    tokens = torch.randint(vocab_size, (sequences, length))
    positions = torch.randint(length, (sequences, predictions))
    labels = torch.randint(vocab_size, (sequences * predictions,))
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=dtype, enabled=dtype is not None),
    ):
        logits, _ = model(tokens, torch.zeros_like(tokens), None, positions)
        torch.nn.functional.cross_entropy(logits.float().view(-1, vocab_size), labels)
    real = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    estimated = estimate(job, vocab_size=vocab_size, device="cpu").activation_bytes
    assert estimated == pytest.approx(real, rel=0.2)


TFLOPS = 1e12


def machines(gpu: str | None = "A100", **changes: Any) -> ResolvedCompute:
    """Return the compute section of two machines with 8 GPUs, with changes."""
    values: dict[str, Any] = {
        "nodes": 2,
        "processes_per_node": 8,
        "device": "gpu",
        "threads_per_process": 12,
        "gpu": gpu,
        "price_per_hour": 30.0,
        "price_origin": "a price",
        "master_port": 0,
    }
    return ResolvedCompute.model_validate({**values, **changes})


def span(compute: ResolvedCompute, **sections: Any) -> Span | None:
    job = PretrainConfig.model_validate({"train": {"steps": 100, **sections.pop("train", {})}, **sections})
    return span_of(job, 1e16, compute)


def test_time_and_cost_range_over_published_rates() -> None:
    found = span(machines())
    assert found is not None
    assert found.seconds_least == pytest.approx(100 * 1e16 / (16 * 139 * TFLOPS))
    assert found.seconds_most == pytest.approx(100 * 1e16 / (16 * 59 * TFLOPS))
    assert found.cost_least == pytest.approx(found.seconds_least / 3600 * 2 * 30.0)
    assert found.cost_most == pytest.approx(found.seconds_most / 3600 * 2 * 30.0)
    assert "published for the A100" in found.basis


def test_limit_of_hours_bounds_time_and_fp32_lengthens_it() -> None:
    short = span(machines(), schedule={"hours": 0.1})
    assert short is not None
    assert (short.seconds_least, short.seconds_most) == (360.0, 360.0)
    half, whole = span(machines(), train={"precision": "fp32"}), span(machines())
    assert half is not None
    assert whole is not None
    assert half.seconds_least == pytest.approx(2 * whole.seconds_least)


def test_unknown_machine_no_time_without_price_no_cost() -> None:
    assert span(machines("NVIDIA GeForce GTX 1080")) is None
    assert span(machines(None)) is None
    cheap = span(machines(price_per_hour=None, price_origin=None))
    assert cheap is not None
    assert (cheap.cost_least, cheap.cost_most) == (None, None)


@pytest.mark.parametrize(
    ("gpu", "least", "most"),
    [
        ("NVIDIA A100-SXM4-80GB", 59, 139),
        ("NVIDIA H100 80GB HBM3", 188, 415),
        ("NVIDIA L4", 0.19 * 121, 0.45 * 121),
        ("NVIDIA GeForce RTX 4090", 0.19 * 165.2, 0.45 * 165.2),
    ],
)
def test_gpu_is_found_by_its_product_name(gpu: str, least: float, most: float) -> None:
    found = span(machines(gpu))
    assert found is not None
    assert found.seconds_most == pytest.approx(100 * 1e16 / (16 * least * TFLOPS))
    assert found.seconds_least == pytest.approx(100 * 1e16 / (16 * most * TFLOPS))


def test_cpu_time_falls_with_threads_and_width() -> None:
    def seconds(width: int, threads: int) -> float:
        cpu = machines(None, device="cpu", nodes=1, processes_per_node=1, threads_per_process=threads)
        found = span(cpu, model={"hidden_size": width, "num_attention_heads": 2})
        assert found is not None
        return found.seconds_least

    assert seconds(128, 4) == pytest.approx(seconds(128, 1) / 4)
    assert seconds(768, 1) < seconds(128, 1) / 3
