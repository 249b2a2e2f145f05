"""Devices: speed, memory and its exhaustion, precision and deterministic algorithms.

Weights, gradients and optimizer state are fp32 whatever the precision of the forward and backward pass.
"""

from __future__ import annotations

import gc
import os
import resource
import time
import timeit
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from typing import Any

import torch
import torch.utils.deterministic

from train_jobs.config import OutOfMemoryError
from train_jobs.config.arithmetic import data_sheet
from train_jobs.engine.runtime.allocator import return_freed_memory
from train_jobs.engine.runtime.distributed import World

SIDES, TRIES = (256, 512, 1024), 5
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SLOW_SECONDS = 0.02  # of one product; twice the side takes eight times as long


def peak_flops(world: World, precision: str) -> float | None:
    """Return the peak floating-point operations per second of all devices, for utilisation.

    For a GPU it is that of the data sheet. For a CPU it is measured, see `_measured_flops`. All devices are assumed to
    be as fast as this one.

    Args:
        world: device and number of processes.
        precision: bf16, fp16 or fp32.

    Returns:
        The sum over all devices; None for a GPU without a data sheet.
    """
    if world.device.type == "cuda":
        peaks = data_sheet(world.device_name)
        return None if peaks is None else peaks[precision == "fp32"] * world.size
    return _measured_flops(_DTYPES.get(precision, torch.float32)) * world.size


@cache
def _measured_flops(dtype: torch.dtype) -> float:
    """Return the operations per second of the best of five products of 1024 x 1024 matrices on this CPU.

    A precision that the CPU emulates is measured with smaller ones, because the large ones would take longer than a
    short training. The result is kept, because each replicate of a fine-tuning needs it.
    """
    for side in SIDES:
        x = torch.ones(side, side, dtype=dtype)
        # The minimum, not the median: other programs can only make a product slower, and the peak is wanted.
        best = min(timeit.repeat(lambda x=x: x @ x, number=1, repeat=TRIES))  # type: ignore[misc]
        if best > SLOW_SECONDS:
            break
    return 2 * side**3 / best


def memory_bytes(device: torch.device) -> int:
    """Return the peak memory of this process in bytes: GPU memory as torch counts it, or resident on the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux reports KiB


# oneDNN multiplies matrices for torch on CPUs and obeys these variables. Without bf16 instructions it emulates them:
# 137 ms instead of 4.6 ms for a product of 512 x 512 matrices under AVX2.
_ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_ISAS_WITHOUT_BF16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}


def _isa_limit() -> tuple[str, str] | None:
    """Return variable and value of the limit on oneDNN's instructions; None without one."""
    limits = ((name, os.environ.get(name, "").upper()) for name in _ISA_LIMITS)
    return next(((name, limit) for name, limit in limits if limit not in {"", "ALL", "DEFAULT"}), None)


def why_emulated_bf16() -> str | None:
    """Return why this CPU would emulate bf16 matrix products; None if it has instructions for them."""
    limit = _isa_limit()
    if limit and limit[1] in _ISAS_WITHOUT_BF16:
        return f"{limit[0]}={limit[1]} excludes bf16 instructions"
    # private names that may vanish: without them only the automatic choice is lost
    probes = (getattr(torch.cpu, name, None) for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"))
    return None if any(probe() for probe in probes if probe) else "this CPU has no bf16 instructions"


def why_slow_bf16() -> str | None:
    """Return why bf16 is slower than fp32 on this CPU; None if it is faster.

    Not measured at each start: the choice must be the same when a run resumes, whatever else the machine does then.
    """
    if reason := why_emulated_bf16():
        return reason
    # Intel's processors with AMX multiply bf16 slowly without it: a cloud may hide it, or a variable exclude it. A step
    # of BERT-base took 1.57 times as long as in fp32 (docs/speed.md). All of these processors, and no others of Intel
    # with bf16, have fp16 instructions.
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if not ("Intel" in str(found.get("cpu_name")) and found.get("avx512_fp16")):
        return None
    limit = _isa_limit()
    if limit and "AMX" not in limit[1]:
        return f"{limit[0]}={limit[1]} excludes AMX, and this CPU multiplies bf16 slowly without it"
    return (
        None if found.get("amx_bf16") else "this CPU multiplies bf16 slowly without AMX, which it does not offer here"
    )


def resolve_precision(precision: str, device: torch.device) -> str:
    """Resolve "auto" to "bf16" if the hardware multiplies it faster, else to "fp16" on a GPU and "fp32" on a CPU.

    Args:
        precision: auto, bf16, fp16 or fp32.
        device: device to compute on.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        # from Ampere on; torch.cuda.is_bf16_supported also accepts earlier GPUs, which emulate it
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"
    return "fp32" if why_slow_bf16() else "bf16"


def describe_arithmetic(precision: str, device: torch.device, *, compiled: bool = False) -> list[str]:
    """Return the lines of a job's summary about its arithmetic: one line, and a warning if bf16 is slow.

    Args:
        precision: auto, bf16, fp16 or fp32; of auto, the choice and its reason are shown.
        device: device to compute on.
        compiled: whether layers are compiled.
    """
    reason = why_slow_bf16() if device.type == "cpu" else None
    chosen = resolve_precision(precision, device)
    why = f" (auto: {reason})" if reason and precision == "auto" else ""
    lines = [
        f"arithmetic {chosen} on {device.type}{why}{', compiled' if compiled else ''},"
        f" {torch.get_num_threads()} threads a process, torch {torch.__version__}"
    ]
    if reason and chosen == "bf16":
        how = "is emulated and many times" if why_emulated_bf16() else "is"
        lines.append(f"warning: precision bf16 {how} slower than fp32: {reason}; use auto or fp32")
    return lines


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context of a forward pass; empty for fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[precision])


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast is off but keeps its copies of weights."""
    return torch.autocast(device.type, enabled=False)


@dataclass
class LossScale:
    """Dynamic loss scale of fp16: doubled after `interval` finite steps, else halved, and never below `floor`.

    The scale of NVIDIA's recipe has no floor and decayed to zero in endless loops (DeepLearningExamples issues 252 and
    543). In the other precisions the scale is always 1.
    """

    scale: float = 2.0**20
    """High at the start, and halved until it fits: the loss is divided by the tokens of the global batch, so at 2^16
    the smallest gradients of a large batch would be rounded or lost, unnoticed. An overflow only costs a step."""
    floor: float = 1.0
    interval: int = 2000
    good_steps: int = field(default=0)

    @classmethod
    def for_precision(cls, precision: str) -> LossScale:
        """Return a dynamic scale for fp16, a scale of 1 otherwise."""
        return cls() if precision == "fp16" else cls(scale=1.0)

    @property
    def at_floor(self) -> bool:
        """Whether the scale is the lowest, so that it cannot cause an overflow."""
        return self.scale <= self.floor

    def update(self, finite: bool, *, dynamic: bool) -> None:
        """Update the scale after a step.

        Args:
            finite: whether the gradients of the step were finite.
            dynamic: whether the precision is fp16; otherwise the scale stays 1.
        """
        if not dynamic:
            return
        if not finite:
            self.scale, self.good_steps = max(self.scale / 2, self.floor), 0
            return
        self.good_steps += 1
        # A factor of two keeps the scale a power of two, so that scaling and unscaling round nothing.
        if self.good_steps % self.interval == 0:
            self.scale *= 2


ROUNDS = 3


def require_determinism() -> None:
    """Make torch use deterministic algorithms only; operations without one raise. Call this before a GPU is used."""
    # cuBLAS reads this variable at its first use. Without it, it may choose another algorithm each time if there are
    # several streams (cuBLAS documentation, "Results reproducibility").
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Deterministic mode also fills every new tensor, to reveal reads of uninitialised memory. It costs time and changes
    # no result of a program without such reads. The property is defined by the class of the module, so mypy does not
    # know it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def time_determinism(attempt: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Measure `attempt` with deterministic and with the fastest algorithms, alternately.

    Args:
        attempt: function to measure.
        device: device that it computes on.

    Returns:
        Median seconds with deterministic algorithms, and with the fastest ones.
    """
    taken: dict[bool, list[float]] = {True: [], False: []}
    try:
        for number in range(ROUNDS + 1):
            for deterministic, seconds in taken.items():
                torch.use_deterministic_algorithms(deterministic)
                synchronize(device)  # kernels of the previous attempt may still be queued
                started = time.perf_counter()
                attempt()
                synchronize(device)
                if number:  # the first round includes the selection of algorithms and the allocation of memory
                    seconds.append(time.perf_counter() - started)
    finally:
        torch.use_deterministic_algorithms(True)
    return median(taken[True]), median(taken[False])


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done all queued work; a CPU has no queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# Texts in a RuntimeError, since only CUDA's caching allocator raises torch.OutOfMemoryError: torch's allocator on the
# CPU (c10/core/impl/alloc_cpu.cpp), CUDA's own, cuBLAS's.
OUT_OF_MEMORY_TEXTS = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(problem: BaseException) -> bool:
    """Return whether an exception means that memory ran out, of a GPU or of the host."""
    if isinstance(problem, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(problem, RuntimeError) and any(sign in str(problem) for sign in OUT_OF_MEMORY_TEXTS)


def release_memory(device: torch.device) -> None:
    """Release memory that is no longer referenced."""
    # Exceptions and their frames form reference cycles, which only the collector frees; and the caching allocator keeps
    # blocks that are free but too small for the next attempt.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        return_freed_memory()


def micro_batch_error(micro_batch_size: int, *, step: int, device: torch.device, can_shard: bool) -> OutOfMemoryError:
    """Return the error for a micro batch that cannot be made smaller.

    Args:
        micro_batch_size: sequences that did not fit: 1, or the number that the recipe fixes.
        step: optimizer step, for the message.
        device: device whose memory ran out.
        can_shard: whether `optimizer.sharded` would save memory.
    """
    facts = {"need": f"more memory for a micro batch of {micro_batch_size}", **_memory_of(device)}
    if micro_batch_size == 1:
        fix = "start a new run with a shorter data.sequence_length or a smaller model"
    else:
        facts["why"] = "train.loss_normalization is micro_batch: another micro batch would change the recipe"
        half = -(-micro_batch_size // 2)
        fix = f"start a new run with --set train.micro_batch_size={half} or --set train.loss_normalization=global"
    if can_shard:
        fix = f"resume with --set optimizer.sharded=true, or {fix}"
    return OutOfMemoryError(f"out of memory in step {step}", facts=facts, fix=fix)


def explain_memory_error(problem: BaseException) -> OutOfMemoryError | None:
    """Return the error for memory that ran out outside of the forward and backward pass; None for other exceptions."""
    if not is_out_of_memory(problem):
        return None
    return OutOfMemoryError(
        "out of memory outside of the forward and backward pass",
        facts={"says": (str(problem) or type(problem).__name__).splitlines()[0][:200]},
        fix="resume with --set optimizer.sharded=true (needs several processes), or start a run with a smaller model",
    )


def _memory_of(device: torch.device) -> dict[str, str]:
    """Return the memory of a GPU as a fact; nothing for a CPU."""
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {"have": f"{total / 1e9:.1f} GB on {torch.cuda.get_device_name(device)}, {free / 1e9:.1f} GB of it free"}
