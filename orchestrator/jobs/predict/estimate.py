"""The figures of a plan that predicts: a formula for memory, a rule of thumb for time."""

from __future__ import annotations

from orchestrator.estimates.memory import FP32, LIBRARIES, activation_width, layer_activation_bytes
from orchestrator.estimates.rows import cost_of, seconds_of
from orchestrator.specs.compute import ResolvedCompute
from train_jobs.config import ModelConfig, PredictConfig
from train_jobs.config.arithmetic import encoder_parameters, flops_per_token
from train_jobs.config.base import Config

BATCH_TOKENS = {"cpu": 2048, "gpu": 65_536}  # what `batching.batch_tokens: auto` is


class PredictEstimates(Config):
    """What a prediction will need: formulas, and of time a rule of thumb; not measurements."""

    parameters: int
    """Of the model, without its head, which is small."""
    tokens_per_row: float | None
    """Tokens of a row, at most; None: nobody here can count the rows."""
    seconds: float | None
    """How long it takes; None: the rows or the device are not known here."""
    cost: float | None
    """USD of that time; None without a price."""
    process_bytes: int
    """Memory of each process: weights, one layer of a batch, libraries."""


def estimate_prediction(
    job: PredictConfig,
    model: ModelConfig,
    vocab_size: int,
    *,
    compute: ResolvedCompute,
    rows: int | None,
    tokens: float | None,
) -> PredictEstimates:
    """The figures of `job`.

    Args:
        job: what is predicted.
        model: the shape.
        vocab_size: rows of the embedding table.
        compute: machines.
        rows: of the input; None: not known.
        tokens: of a row; None: not known.
    """
    parameters = encoder_parameters(model, vocab_size)
    width = activation_width(job.batching.precision, compute.device)
    asked = job.batching.batch_tokens
    batch = BATCH_TOKENS[compute.device] if asked == "auto" else asked
    seconds = None
    if rows is not None and tokens is not None:  # a third of training: no backward pass
        each = tokens * flops_per_token(model, vocab_size, sequence_length=tokens, max_predictions=0) / 3
        seconds = seconds_of(rows * each, compute)
    layer = batch * layer_activation_bytes(model, activation_bytes=width)
    libraries = LIBRARIES if compute.device == "cpu" else 0
    return PredictEstimates(
        parameters=parameters,
        tokens_per_row=tokens,
        seconds=seconds,
        cost=cost_of(seconds, compute),
        process_bytes=parameters * FP32 + layer + libraries,
    )
