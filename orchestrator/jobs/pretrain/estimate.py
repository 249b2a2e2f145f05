"""The figures of a pretraining plan."""

from __future__ import annotations

from typing import Literal

from orchestrator.estimates.memory import (
    LIBRARIES,
    TrainingEstimates,
    activation_memory,
    activation_width,
    checkpoint_bytes,
    checkpoints_at_once,
    model_bytes,
    state_bytes,
    with_moments,
)
from orchestrator.estimates.pace import Span, span_of
from orchestrator.specs.compute import ResolvedCompute
from train_jobs.config import PretrainConfig
from train_jobs.config.arithmetic import flops_per_token, parameter_count


class Estimates(TrainingEstimates):
    """Resources that a pretraining needs; parameters include both heads."""

    flops_per_step: float
    """Floating-point operations of one optimizer step over all processes, every sequence taken as full."""
    micro_batch_size: int
    """Sequences of a micro batch: those configured, or the most that `auto` can find."""
    checkpoint_copy_bytes: int
    """Host memory of rank 0 for the copy that a checkpoint is written from; none if training waits instead."""
    span: Span | None = None
    """Its duration and cost; None: the machines are unknown."""


def estimate(
    job: PretrainConfig,
    *,
    vocab_size: int,
    device: Literal["cpu", "gpu"],
    world_size: int = 1,
    compute: ResolvedCompute | None = None,
) -> Estimates:
    """Return the estimates of a pretraining.

    Args:
        job: what is trained.
        vocab_size: pieces of the vocabulary; the limit, if it is trained on the text.
        device: decides what precision `auto` is taken for: 16 bit on a GPU, fp32 (the larger) on a CPU.
        world_size: processes of the job.
        compute: the machines; None: without time and cost.
    """
    parameters = parameter_count(job.model, vocab_size)
    per_token = flops_per_token(
        job.model,
        vocab_size,
        sequence_length=job.data.sequence_length,
        max_predictions=job.max_predictions,
    )
    width = activation_width(job.train.precision, device)
    keeping = with_moments(
        parameters,
        largest=job.model.padded_vocab_size(vocab_size) * job.model.hidden_size,
        sharded_over=world_size if job.optimizer.sharded else 1,
    )
    on_cpu = device == "cpu"
    given = job.train.on_device(on_cpu=on_cpu).micro_batch_size
    micro_batch_size = given if isinstance(given, int) else job.micro_batches(world_size, on_cpu=on_cpu)[0]
    one_checkpoint = checkpoint_bytes(parameters)
    flops_per_step = per_token * job.data.sequence_length * job.train.global_batch_size
    return Estimates(
        parameters=parameters,
        flops_per_step=flops_per_step,
        span=span_of(job, flops_per_step, compute) if compute is not None else None,
        state_bytes=state_bytes(parameters, activation_bytes=width, with_moments=keeping),
        activation_bytes=activation_memory(
            job, vocab_size, micro_batch_size=micro_batch_size, activation_bytes=width, on_cpu=on_cpu
        ),
        micro_batch_size=micro_batch_size,
        library_bytes=LIBRARIES if on_cpu else 0,
        checkpoint_bytes=one_checkpoint,
        checkpoint_copy_bytes=one_checkpoint if job.checkpoint.asynchronous else 0,
        checkpoints_at_once=checkpoints_at_once(job.checkpoint, steps=job.train.steps),
        model_bytes=model_bytes(parameters),
    )
