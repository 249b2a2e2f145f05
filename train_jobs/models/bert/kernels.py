"""Agreement of the processes on attention kernel and precision, and the lines of a job's summary about them."""

from __future__ import annotations

import torch

from train_jobs.config import SpecError
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert.attention import packed_kernel_problem, refuse_packed_kernel
from train_jobs.models.bert.encoder import missing_for_compiling

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def agree_on_kernels(
    world: World, precision: str, head_size: int, *, compile_wanted: bool, section: str = "train"
) -> list[str]:
    """Let all processes use the same precision and attention kernel; every process must call it.

    Args:
        world: the processes.
        precision: bf16, fp16 or fp32, as this process resolved it.
        head_size: hidden size of an attention head.
        compile_wanted: whether the model is compiled on a machine that can.
        section: section of the configuration that has the precision.

    Returns:
        Lines of a job's summary on GPUs: the kernel, and a warning for each fallback to a slower path. None on CPUs.

    Raises:
        SpecError: the processes resolved different precisions.
    """
    number = list(_DTYPES).index(precision)
    lowest, highest = world.minimum(number), -world.minimum(-number)
    if lowest != highest:
        common = "fp32" if world.device.type == "cpu" else "fp16"
        raise SpecError(
            "cannot start: the processes of the job have devices with different arithmetic",
            facts={"precision auto": f"{list(_DTYPES)[lowest]} and {list(_DTYPES)[highest]}, by rank"},
            fix=f"--set {section}.precision={common}, which all of them support",
        )
    if world.device.type != "cuda":
        return []
    problem = packed_kernel_problem(world.device, _DTYPES[precision], head_size)
    # Ranks with different kernels would train with different rounding, and all would wait for the slowest.
    if world.minimum(int(problem is None)) == 0 and problem is None:
        problem = "another process of the job cannot use it"
        refuse_packed_kernel(problem)
    lines = [f"attention  {'FlashAttention on packed sequences' if problem is None else 'padded layout'}"]
    if problem is not None:
        lines.append(f"warning: attention is slower without FlashAttention for packed sequences: {problem}")
    if compile_wanted and (missing := missing_for_compiling(world.device)) is not None:
        lines.append(f"warning: layers are not compiled, which is slower: this machine lacks {missing}")
    return lines
