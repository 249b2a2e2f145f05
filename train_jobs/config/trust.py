"""Conditions that the folder of a model must meet before its weights are loaded."""

from __future__ import annotations

from pathlib import Path

from train_jobs.config.fields import Config

SIGNATURE = "model.sig"
"""File of a model folder with the signature of all other files."""


class TrustConfig(Config):
    """Checks of model folders before anything of them is loaded. They never change a result."""

    allow_pickle: bool = False
    """Load the weights of a folder that has only pytorch_model.bin, a pickle. torch reads it with weights_only, which
    admits tensors and plain containers, but a pickle remains a program. false: such a folder is refused."""
    require_signature: Path | None = None
    """PEM file of the public key whose signature every model folder must have (`orchestrator model sign`). A changed,
    added or missing file is refused, and so is `phase_from`: a checkpoint has no signature. On Azure, the plan checks
    the folder before its upload. None: no check."""
