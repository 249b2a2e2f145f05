"""Figures that every plan has that trains."""

from __future__ import annotations

from orchestrator.estimates.memory import FP32
from train_jobs.config import CheckpointConfig
from train_jobs.config.base import Config


class TrainingEstimates(Config):
    """Memory of a process and what lies on the disk: formulas, not measurements."""

    parameters: int
    """Trainable parameters."""
    state_bytes: int
    """Weights, gradients and moments of each process; of the fullest, where they are sharded."""
    activation_bytes: int
    """What a micro batch, every sequence of it taken as full, keeps for the backward pass in each process."""
    library_bytes: int
    """Python, torch and MLflow themselves, where they share the memory of the computation: on a CPU."""
    checkpoint_bytes: int
    """One checkpoint."""
    checkpoints_at_once: int
    """Most checkpoints on the disk at any moment: all that are kept, of all runs, and one that is being written."""
    model_bytes: int
    """What is exported."""

    @property
    def process_bytes(self) -> int:
        """Memory of each process: state, activations, libraries."""
        return self.state_bytes + self.activation_bytes + self.library_bytes

    @property
    def disk_bytes(self) -> int:
        """Most that checkpoints and models take of the disk."""
        return self.checkpoints_at_once * self.checkpoint_bytes + self.model_bytes


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
