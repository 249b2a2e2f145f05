"""What a run leaves on its disk, by formula. Notation as in `estimates.memory`."""

from __future__ import annotations

from orchestrator.estimates.memory import FP32
from train_jobs.config import CheckpointConfig


def checkpoints_at_once(checkpoint: CheckpointConfig, *, steps: int) -> int:
    """Most checkpoints that there are at any moment: all that are kept, and one that is being written.

    Fewer where a checkpoint is kept for more than one reason. Some that are written will not be kept: the clock
    decides how many, and they take the place of one another.
    """
    for_good = steps // checkpoint.keep_every if checkpoint.keep_every else 0
    return min(checkpoint.keep_last + checkpoint.keep_best + for_good + 1, steps)


def model_bytes(parameters: int) -> int:
    """The exported model: weights in fp32 (4 N)."""
    return parameters * FP32
