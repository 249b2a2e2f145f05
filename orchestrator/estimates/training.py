"""Figures that every plan has that trains."""

from __future__ import annotations

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
