"""Time and cost of planned work, from its arithmetic and the rates of machines.

Pretraining has a slow and a fast rate. Those of GPUs are published for BERT: Hugging Face's model in plain PyTorch, and
tuned kernels. GPUs without published rates are assumed to reach the same shares of their data sheet as an A100. The
rates of CPUs are our own measurements.
"""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.specs.compute import ResolvedCompute
from train_jobs.config import Config, PretrainConfig
from train_jobs.config.arithmetic import data_sheet, gpu_model

HOUR = 3600.0
NARROW = 256  # hidden size below which the products of a layer are too small to fill a CPU's matrix units


class Pace(NamedTuple):
    """FLOP/s of one GPU, or of one thread of a CPU."""

    slow: float
    fast: float


# V100: 32% and 43% of 125 TFLOP/s: Hugging Face's model as DeepSpeed measured it, NVIDIA DeepLearningExamples (fp16).
# A100: 19% and 45% of 312: MosaicML's baseline of Hugging Face's BERT-base, DeepLearningExamples (580 sequences/s).
# H100, H200: A100's 19%, and MLPerf's 42% (v2.1, 8 GPUs), of 989. T4: not published, assumed 12% and 31% of 65.
GPUS = {
    "T4": Pace(8e12, 20e12),
    "V100": Pace(40e12, 54e12),
    "A100": Pace(59e12, 139e12),
    "H100": Pace(188e12, 415e12),
    "H200": Pace(188e12, 415e12),
}
SHARES = Pace(0.19, 0.45)  # shares of the data sheet that the A100 reaches, for GPUs without published rates
FP32_SHARE = {"T4": 0.2, "V100": 0.25, "A100": 0.5, "H100": 0.5, "H200": 0.5}  # without tensor cores, or with TF32
# A thread of a Xeon with AMX reaches 74 GFLOP/s with the recipe tiny in bf16 and 350 with base (docs/speed.md); without
# half precision it reaches a fraction of that
NARROW_THREAD, WIDE_THREAD = Pace(25e9, 75e9), Pace(40e9, 350e9)

# FLOP/s for short sequences without padding, such as the rows of a table: of one CPU thread, of one GPU.
ROW_THREAD_RATE = 40e9
ROW_GPU_RATES = {"T4": 4e12, "V100": 8e12, "A100": 100e12, "H100": 250e12, "H200": 250e12}
ROW_GPU_SHARE = 0.25  # share of the data sheet, for other GPUs
# Seconds of a layer however few tokens there are: the host of a GPU launches its kernels. Fine-tuning MRPC on an H200
# took 27 ms a step of 12 layers; with torch.compile the host was not faster. One text at a time, it predicted 195 a
# second (docs/gpu.md).
LAUNCH_OF_LAYER = 2.2e-3  # forward and backward
LAUNCH_OF_FORWARD = 1 / 195 / 12
BYTES_PER_TOKEN = 4.0  # roughly, of English text in WordPiece; other columns of a table count as text, too
SPECIAL_TOKENS = 3  # [CLS] and two [SEP]


class Span(Config):
    """Time and cost of all steps, at the fast and at the slow rate."""

    seconds_least: float
    """At the fast rate."""
    seconds_most: float
    """At the slow rate; at most `schedule.hours`."""
    cost_least: float | None
    """Cost at the fast rate on all machines, in USD; None: no price."""
    cost_most: float | None
    """Cost at the slow rate and the highest price, in USD."""
    basis: str
    """Source of the rates."""


def span_of(job: PretrainConfig, flops_per_step: float, compute: ResolvedCompute) -> Span | None:
    """Return the time and cost of pretraining; None on an unknown GPU.

    Args:
        job: the job.
        flops_per_step: floating-point operations of an optimizer step over all processes.
        compute: the machines.
    """
    found = _pace(job, compute)
    if found is None:
        return None
    pace, basis = found
    threads = compute.threads_per_process if compute.device == "cpu" else 1
    flops, units = flops_per_step * job.train.steps, compute.world_size * threads
    end = job.schedule.hours * HOUR if job.schedule.hours else float("inf")  # a time budget stops training early
    least, most = (min(flops / (rate * units), end) for rate in (pace.fast, pace.slow))
    return Span(
        seconds_least=least,
        seconds_most=most,
        cost_least=cost_of(least, compute),
        cost_most=cost_of(most, compute, highest=True),
        basis=basis,
    )


def _pace(job: PretrainConfig, compute: ResolvedCompute) -> tuple[Pace, str] | None:
    if compute.device == "cpu":
        thread = NARROW_THREAD if job.model.hidden_size < NARROW else WIDE_THREAD
        return thread, "rule of thumb for CPUs"
    gpu = gpu_model(compute.gpu or "") or ""
    if gpu in GPUS:
        share = FP32_SHARE[gpu] if job.train.precision == "fp32" else 1.0
        pace = GPUS[gpu]
        basis = "rates assumed for the T4" if gpu == "T4" else f"rates published for the {gpu}"
        return Pace(pace.slow * share, pace.fast * share), basis
    peaks = data_sheet(compute.gpu or "")
    if peaks is None:
        return None
    peak = peaks[job.train.precision == "fp32"]
    basis = f"{SHARES.slow:.0%} to {SHARES.fast:.0%} of the data sheet, as published for the A100"
    return Pace(SHARES.slow * peak, SHARES.fast * peak), basis


def tokens_per_row(table_bytes: int, rows: int, max_length: int) -> float:
    """Return an upper estimate of the average tokens of a row, from the size of its table.

    Args:
        table_bytes: size of the table, all of it counted as text.
        rows: number of its rows.
        max_length: maximum number of tokens of a sequence.
    """
    return min(float(max_length), SPECIAL_TOKENS + table_bytes / max(rows, 1) / BYTES_PER_TOKEN)


def seconds_of(flops: float, compute: ResolvedCompute, *, launches: float) -> float | None:
    """Return the seconds of a number of FLOPs on short sequences; None: unknown GPU.

    Args:
        flops: of all processes.
        compute: the machines.
        launches: seconds in which the hosts of all processes launch kernels; they count on GPUs.
    """
    if compute.device == "cpu":
        return flops / (ROW_THREAD_RATE * compute.threads_per_process * compute.world_size)
    name = compute.gpu or ""
    rate, peaks = ROW_GPU_RATES.get(gpu_model(name) or ""), data_sheet(name)
    if rate is None and peaks is not None:
        rate = ROW_GPU_SHARE * peaks[0]
    return max(flops / rate, launches) / compute.world_size if rate else None


def cost_of(seconds: float | None, compute: ResolvedCompute, *, highest: bool = False) -> float | None:
    """Return the cost of all machines for a time in seconds, in USD; None: no time or no price.

    Args:
        seconds: the time; None: unknown.
        compute: the machines.
        highest: at the highest price, where the price varies.
    """
    if seconds is None or compute.price_per_hour is None:
        return None
    price = (compute.highest_price_per_hour if highest else None) or compute.price_per_hour
    return seconds / HOUR * compute.nodes * price
