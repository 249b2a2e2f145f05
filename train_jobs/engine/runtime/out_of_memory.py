"""Memory that runs out: how it shows, what is given back, what is said where nothing smaller can be tried."""

from __future__ import annotations

import gc

import torch

from train_jobs.config import OutOfMemoryError

# What allocators say in a plain RuntimeError: torch's on the CPU (c10/core/impl/alloc_cpu.cpp), CUDA's own, cuBLAS's.
SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_exhausted(problem: BaseException) -> bool:
    """Whether `problem` says that there is no memory, of a GPU or of the host."""
    if isinstance(problem, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(problem, RuntimeError) and any(sign in str(problem) for sign in SIGNS)


def release(device: torch.device) -> None:
    """Gives back what nothing refers to any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def no_smaller(micro_batch_size: int, *, step: int, device: torch.device, can_shard: bool) -> OutOfMemoryError:
    """What to say where the micro batch cannot be made smaller.

    Args:
        micro_batch_size: what was tried: one sequence, or as many as the recipe says.
        can_shard: the optimizer's state could be sharded over processes, and is not.
    """
    facts = {"need": f"more than there is for a micro batch of {micro_batch_size}", **_memory_of(device)}
    if micro_batch_size == 1:
        mend = "start a new run with a shorter data.sequence_length or a smaller model"
    else:
        facts["why"] = "train.loss_normalization is micro_batch: with another micro batch it is another recipe"
        half = -(-micro_batch_size // 2)
        mend = f"start a new run with --set train.micro_batch_size={half} or --set train.loss_normalization=global"
    if can_shard:
        mend = f"--set optimizer.sharded=true, which goes on from the last checkpoint; else {mend}"
    return OutOfMemoryError(f"out of memory in step {step}", facts=facts, fix=mend)


def explain(problem: BaseException) -> OutOfMemoryError | None:
    """The OutOfMemoryErrorbehind `problem`, if memory ran out elsewhere than in forward and backward pass."""
    if not is_exhausted(problem):
        return None
    return OutOfMemoryError(
        "out of memory where no smaller micro batch is tried",
        facts={"says": (str(problem) or type(problem).__name__).splitlines()[0][:200]},
        fix="--set optimizer.sharded=true, if there are several processes, or start a new run with a smaller model",
    )


def _memory_of(device: torch.device) -> dict[str, str]:
    """What the device has, where torch can tell."""
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {"have": f"{total / 1e9:.1f} GB on {torch.cuda.get_device_name(device)}, {free / 1e9:.1f} GB of it free"}
