"""The figures of a plan that fine-tunes: formulas for memory and work, rules of thumb for time."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.estimates.memory import (
    LIBRARIES,
    TrainingEstimates,
    activation_width,
    checkpoint_bytes,
    checkpoints_at_once,
    encoder_activation_bytes,
    model_bytes,
    state_bytes,
    with_moments,
)
from orchestrator.estimates.pace import LAUNCH_OF_LAYER, cost_of, seconds_of
from orchestrator.jobs.row_counts import RowEstimates
from orchestrator.specs.compute import ResolvedCompute
from train_jobs.artifacts.start_model import InitialModel
from train_jobs.config import FinetuneConfig, ModelConfig
from train_jobs.config.arithmetic import encoder_parameters, flops_per_token


class TuningWork(NamedTuple):
    """The amount of work of all runs of a fine-tuning."""

    runs: int
    """Seeds times tasks."""
    steps: int | None
    """Optimizer steps of the longest run; None: not known."""
    tokens: float | None
    """Tokens of a row; None: the rows are not known."""
    trained_rows: int = 0
    """Rows to learn from, over all epochs and runs."""
    evaluated_rows: int = 0
    """Rows to evaluate on, over all epochs and runs."""


class FinetuneEstimates(TrainingEstimates, RowEstimates):
    """Resources that a fine-tuning needs. Parameters exclude the small head; time is a rule of thumb."""


def estimate_finetuning(
    job: FinetuneConfig, initial: InitialModel, compute: ResolvedCompute, work: TuningWork
) -> FinetuneEstimates:
    """Return the figures of a fine-tuning.

    Args:
        job: what is trained.
        initial: the model that it starts from.
        compute: machines.
        work: of all runs.
    """
    model = ModelConfig(**initial.shape, **job.model.model_dump(), pad_vocab_to_multiple_of=1)
    parameters = encoder_parameters(model, initial.rows)
    width, on_cpu = activation_width(job.train.precision, compute.device), compute.device == "cpu"
    keeping = with_moments(
        parameters,
        largest=initial.rows * model.hidden_size,
        sharded_over=compute.world_size if job.optimizer.sharded else 1,
    )
    micro_batch = job.micro_batches(compute.world_size, on_cpu=on_cpu)[0]
    seconds = None
    if (tokens := work.tokens) is not None:
        each = tokens * flops_per_token(model, initial.rows, sequence_length=tokens, max_predictions=0)
        rows = work.trained_rows + work.evaluated_rows / 3  # evaluation: no backward
        launches = rows / micro_batch * model.num_hidden_layers * LAUNCH_OF_LAYER
        seconds = seconds_of(each * rows, compute, launches=launches)
    checkpoints = checkpoints_at_once(job.checkpoint, steps=work.steps if work.steps is not None else 2**31)
    return FinetuneEstimates(
        parameters=parameters,
        tokens_per_row=tokens,
        seconds=seconds,
        cost=cost_of(seconds, compute),
        state_bytes=state_bytes(parameters, activation_bytes=width, with_moments=keeping),
        activation_bytes=encoder_activation_bytes(
            model,
            sequences=micro_batch,
            length=job.max_length,
            activation_bytes=width,
            on_cpu=on_cpu,
        ),
        library_bytes=LIBRARIES if on_cpu else 0,
        checkpoint_bytes=checkpoint_bytes(parameters),
        checkpoints_at_once=checkpoints + (work.runs - 1) * (checkpoints - 1),
        model_bytes=model_bytes(parameters) * (work.runs + (work.runs > 1)),
    )
