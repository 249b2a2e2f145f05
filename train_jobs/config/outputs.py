"""Names below a job's output folder, which the job writes and the orchestrator reads."""

from __future__ import annotations

METRICS_FILE = "metrics.jsonl"  # a line for each report: step, time, metrics


def seed_folder(seed: int) -> str:
    """Where a fine-tuning with several seeds has what one of them made; with a metrics file of its own."""
    return f"seed-{seed}"
