"""A run without training: its configuration, its start, its tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from train_jobs.artifacts.lineage import Attempt
from train_jobs.config import PretrainConfig

METRICS = {"mlm_loss": 3.25, "mlm_accuracy": 0.5, "nsp_loss": 0.5, "nsp_accuracy": 0.75, "unigram_entropy": 4.0}
TAGS = {
    "team": "nlp",
    "orchestrator.run": "alpha-1234abcd",
    "orchestrator.handle": "local://alpha-1234abcd",
    "orchestrator.run_hash": "1234abcd",
    "orchestrator.snapshot": "5" * 64,
    "orchestrator.commit": "6" * 40 + "+dirty",
}


def attempt(**changes: Any) -> Attempt:
    """Return the first start, with one process."""
    known = {"started": "2026-11-21T10:00:00+00:00", "step": 0, "processes": 1, "nodes": 1, "threads": 7}
    return Attempt.model_validate({**known, "device": "cpu", "hardware": "A CPU", "precision": "fp32", **changes})


def config_of(corpus: Path, **sections: Any) -> PretrainConfig:
    """Return the default configuration on that text."""
    data = {"text": [str(corpus)], "vocab_size": 256, **sections.pop("data", {})}
    return PretrainConfig.model_validate({"data": data, **sections})
