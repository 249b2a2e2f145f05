"""Tokens of the rows of a table, and time and cost of work on them: rules of thumb."""

from __future__ import annotations

from orchestrator.specs.compute import ResolvedCompute
from train_jobs.config.arithmetic import data_sheet, gpu_model

BYTES_PER_TOKEN = 4.0  # of English text in WordPiece pieces, roughly; what else a table has makes it more
SPECIAL_TOKENS = 3  # [CLS] and two [SEP]
# FLOP/s that short sequences without padding come to: of a CPU each thread, of a GPU all of it; in fp32 without bf16
THREAD_RATE = 40e9
GPU_RATES = {"T4": 4e12, "V100": 8e12, "A100": 100e12, "H100": 250e12, "H200": 250e12}
GPU_SHARE = 0.25  # of what the data sheet says, for other GPUs
HOUR = 3600.0


def tokens_per_row(table_bytes: int, rows: int, max_length: int) -> float:
    """Tokens of a row, at most: all of its bytes taken for text."""
    return min(float(max_length), SPECIAL_TOKENS + table_bytes / max(rows, 1) / BYTES_PER_TOKEN)


def seconds_of(flops: float, compute: ResolvedCompute) -> float | None:
    """How long so much work takes; None on a GPU that nobody here knows."""
    if compute.device == "cpu":
        return flops / (THREAD_RATE * compute.threads_per_process * compute.world_size)
    name = compute.gpu or ""
    rate, peaks = GPU_RATES.get(gpu_model(name) or ""), data_sheet(name)
    if rate is None and peaks is not None:
        rate = GPU_SHARE * peaks[0]
    return flops / (rate * compute.world_size) if rate else None


def cost_of(seconds: float | None, compute: ResolvedCompute) -> float | None:
    """USD of so much time of all machines."""
    if seconds is None or compute.price_per_hour is None:
        return None
    return seconds / HOUR * compute.nodes * compute.price_per_hour
