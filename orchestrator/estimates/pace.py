"""How long pretraining takes and what it costs: between two rates of the arithmetic.

Of GPUs the rates are those that others published for BERT: the slower one of Hugging Face's model under plain PyTorch,
the faster one of tuned kernels. GPUs of which nobody published any are taken to reach the shares of their data sheets
that A100s do. This project has been run on none of them; of CPUs the rates are its own.
"""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.specs.compute import ResolvedCompute
from train_jobs.config import PretrainConfig
from train_jobs.config.arithmetic import data_sheet, gpu_model
from train_jobs.config.base import Config

HOUR = 3600.0
NARROW = 256  # below, a layer's products are too small to fill a CPU's matrix units


class Pace(NamedTuple):
    """FLOP/s of one GPU, or of one thread of a CPU."""

    slow: float
    fast: float


# V100: 32% and 43% of 125 TFLOP/s: Hugging Face's model as DeepSpeed measured it, NVIDIA DeepLearningExamples (fp16).
# A100: 19% and 45% of 312: MosaicML's baseline of Hugging Face's BERT-base, DeepLearningExamples (580 sequences/s).
# H100, H200: A100's 19%, and MLPerf's 42% (v2.1, 8 GPUs), of 989. T4: nobody published any, 12% and 31% of 65.
GPUS = {
    "T4": Pace(8e12, 20e12),
    "V100": Pace(40e12, 54e12),
    "A100": Pace(59e12, 139e12),
    "H100": Pace(188e12, 415e12),
    "H200": Pace(188e12, 415e12),
}
SHARES = Pace(0.19, 0.45)  # of what a data sheet says: those of the A100
FP32_SHARE = {"T4": 0.2, "V100": 0.25, "A100": 0.5, "H100": 0.5, "H200": 0.5}  # without tensor cores, or by TF32
# A thread of a Xeon with AMX makes 74 GFLOP/s of the recipe tiny in bf16 and 350 of base (docs/speed.md); one without
# half precision makes a fraction of that
NARROW_THREAD, WIDE_THREAD = Pace(25e9, 75e9), Pace(40e9, 350e9)


class Span(Config):
    """How long all steps take, and what that costs: at the faster and at the slower rate."""

    seconds_least: float
    """At the faster one."""
    seconds_most: float
    """At the slower one; never more than `schedule.hours`."""
    cost_least: float | None
    """USD of the shorter time, all machines; None without a price."""
    cost_most: float | None
    """USD of the longer time."""
    basis: str
    """Where the rates are from."""


def span_of(job: PretrainConfig, flops_per_step: float, compute: ResolvedCompute) -> Span | None:
    """How long a pretraining takes; None on a GPU that nobody here knows.

    Args:
        job: what is trained.
        flops_per_step: of all processes.
        compute: the machines.
    """
    found = _pace(job, compute)
    if found is None:
        return None
    pace, basis = found
    threads = compute.threads_per_process if compute.device == "cpu" else 1
    flops, units = flops_per_step * job.train.steps, compute.world_size * threads
    end = job.schedule.hours * HOUR if job.schedule.hours else float("inf")
    least, most = (min(flops / (rate * units), end) for rate in (pace.fast, pace.slow))
    hourly = None if compute.price_per_hour is None else compute.nodes * compute.price_per_hour / HOUR
    return Span(
        seconds_least=least,
        seconds_most=most,
        cost_least=None if hourly is None else least * hourly,
        cost_most=None if hourly is None else most * hourly,
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
        basis = "assumed of T4s" if gpu == "T4" else f"rates that others published for {gpu}s"
        return Pace(pace.slow * share, pace.fast * share), basis
    peaks = data_sheet(compute.gpu or "")
    if peaks is None:
        return None
    peak = peaks[job.train.precision == "fp32"]
    told = f"{SHARES.slow:.0%} to {SHARES.fast:.0%} of the data sheet, as others have of A100s"
    return Pace(SHARES.slow * peak, SHARES.fast * peak), told
