"""The figures of a plan that fine-tunes, or that predicts: formulas for memory and work, rules of thumb for time."""

from __future__ import annotations

from orchestrator.estimates.memory import (
    LIBRARIES,
    activation_width,
    checkpoint_bytes,
    encoder_activation_bytes,
    state_bytes,
    with_moments,
)
from orchestrator.estimates.rows import cost_of, seconds_of
from orchestrator.estimates.training import TrainingEstimates, checkpoints_at_once, model_bytes
from orchestrator.specs.compute import ResolvedCompute
from train_jobs.config import FinetuneConfig, ModelConfig
from train_jobs.config.arithmetic import encoder_parameters, flops_per_token


class FinetuneEstimates(TrainingEstimates):
    """What a fine-tuning will need; parameters are without the head, which is small, and time is a rule of thumb."""

    tokens_per_row: float | None
    """Tokens of a row, at most; None: nobody here can read the rows."""
    seconds: float | None
    """How long all runs take, evaluations included; None: the rows or the device are not known here."""
    cost: float | None
    """USD of that time; None without a price."""


def estimate_finetuning(
    job: FinetuneConfig,
    model: ModelConfig,
    vocab_size: int,
    *,
    compute: ResolvedCompute,
    steps: int | None,
    runs: int,
    tokens: float | None,
    trained_rows: float | None,
    evaluated_rows: float | None,
) -> FinetuneEstimates:
    """The figures of `job`.

    Args:
        job: what is trained.
        model: the shape.
        vocab_size: rows of the embedding table.
        compute: machines.
        steps: optimizer steps of the longest run; None: not known.
        runs: seeds times tasks.
        tokens: of a row; None: not known.
        trained_rows, evaluated_rows: over all epochs and runs.
    """
    parameters = encoder_parameters(model, vocab_size)
    width = activation_width(job.train.precision, compute.device)
    keeping = with_moments(
        parameters,
        largest=vocab_size * model.hidden_size,
        sharded_over=compute.world_size if job.optimizer.sharded else 1,
    )
    seconds = None
    if tokens is not None and trained_rows is not None and evaluated_rows is not None:
        each = tokens * flops_per_token(model, vocab_size, sequence_length=tokens, max_predictions=0)
        seconds = seconds_of(each * (trained_rows + evaluated_rows / 3), compute)  # no backward pass to evaluate
    checkpoints = checkpoints_at_once(job.checkpoint, steps=steps if steps is not None else 2**31)
    return FinetuneEstimates(
        parameters=parameters,
        tokens_per_row=tokens,
        seconds=seconds,
        cost=cost_of(seconds, compute),
        state_bytes=state_bytes(parameters, activation_bytes=width, with_moments=keeping),
        activation_bytes=encoder_activation_bytes(
            model,
            sequences=job.micro_batches(compute.world_size, on_cpu=compute.device == "cpu")[0],
            length=job.max_length,
            activation_bytes=width,
            on_cpu=compute.device == "cpu",
        ),
        library_bytes=LIBRARIES if compute.device == "cpu" else 0,
        checkpoint_bytes=checkpoint_bytes(parameters),
        checkpoints_at_once=checkpoints + (runs - 1) * (checkpoints - 1),
        model_bytes=model_bytes(parameters) * (runs + (runs > 1)),
    )
