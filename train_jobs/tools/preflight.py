"""Find a faulty machine within ten seconds, before hours are spent on it: GPU count, a matrix product, an all-reduce.

    torchrun --nproc-per-node 8 -m train_jobs.tools.preflight --device gpu

Every process checks its own device and shares the result with the others. Exit code 0: no problem; 1: stderr lists each
faulty process with its machine, the same on every process.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

PATIENCE = timedelta(seconds=60)  # the machines of a job start seconds apart
SIZE = 1024  # rows of the matrices; the product takes a hundredth of a second on any GPU
ELEMENTS = 4 * 1024 * 1024  # of the all-reduce: 16 MB, enough to use every link
TOLERANCE = 1e-2  # relative; with TF32 a GPU multiplies fp32 with 10 bits of mantissa


def check_device(device: torch.device) -> str | None:
    """Return the problem that a matrix product with a known result reveals; None without one."""
    ones = torch.full((SIZE, SIZE), 0.5, device=device)
    product = ones @ ones
    expected = SIZE / 4
    worst = (product - expected).abs().max().item()
    if not worst <= TOLERANCE * expected:  # NaN too
        return f"a matrix product is off by {worst:g} of {expected:g}"
    return None


def has_code(capability: tuple[int, int], built: Sequence[str]) -> bool:
    """Return whether a build of torch has code for a GPU.

    Args:
        capability: compute capability of the GPU, (8, 0) for an A100.
        built: architectures of the build: sm_80 is machine code for one generation, compute_90 is PTX, which later
            generations compile.
    """
    found = [match.groups() for name in built if (match := re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", name))]
    if not found:  # not CUDA's names (ROCm's, for example): no verdict
        return True
    for kind, major, minor in found:
        same = int(major) == capability[0] and int(minor) <= capability[1]
        if same or (kind == "compute" and (int(major), int(minor)) <= capability):
            return True
    return False


def check_build(device: torch.device) -> str | None:
    """Return a problem if this torch has no code for the GPU, so that every kernel would fail; else None."""
    if device.type != "cuda":
        return None
    capability, built = torch.cuda.get_device_capability(device), torch.cuda.get_arch_list()
    if has_code(capability, built):
        return None
    name, number = torch.cuda.get_device_name(device), "{}{}".format(*capability)
    return f"torch {torch.__version__} has no code for {name} (sm_{number}), only for {', '.join(built)}"


def find_device(kind: str, local_rank: int, local_size: int) -> tuple[torch.device, str | None]:
    """Return the device of a process, and a problem if the machine has too few GPUs.

    Args:
        kind: cpu or gpu.
        local_rank: number of the process on its machine.
        local_size: number of processes on the machine.
    """
    if kind == "cpu":
        return torch.device("cpu"), None
    visible = torch.cuda.device_count()
    if visible < local_size:
        return torch.device("cpu"), f"{visible} GPUs are visible, need {local_size}"
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank), None


def check_network(device: torch.device, size: int, group: dist.ProcessGroup | None) -> str | None:
    """Return the problem of an all-reduce over all `size` processes; None without one."""
    values = torch.ones(ELEMENTS, device=device)
    dist.all_reduce(values, group=group)
    low, high = values.min().item(), values.max().item()
    return None if low == high == size else f"an all-reduce gave {low:g} to {high:g}, not {size}"


def preflight(kind: str) -> list[str]:
    """Check this process and return the problems of all processes, each with its rank and machine.

    Args:
        kind: cpu or gpu.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device, wrong = find_device(kind, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if wrong is None:
        try:
            wrong = check_build(device) or check_device(device)
        except RuntimeError as problem:  # an ECC error, a GPU that fell off the bus
            wrong = str(problem).splitlines()[0]
    mine = f"rank {rank} on {socket.gethostname()}: {wrong}" if wrong else None
    if size == 1:
        return [mine] if mine else []
    # Over gloo first, which needs no GPU, so that a process with a faulty GPU can report it.
    dist.init_process_group("gloo", timeout=PATIENCE)
    found: list[str | None] = [None] * size
    dist.all_gather_object(found, mine)
    problems = [line for line in found if line]
    if not problems:
        group = dist.new_group(backend="nccl", timeout=PATIENCE) if device.type == "cuda" else dist.group.WORLD
        if wrong := check_network(device, size, group):
            problems = [f"rank {rank} on {socket.gethostname()}: {wrong}"]
    dist.barrier()
    dist.destroy_process_group()
    return problems


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the checks, print problems and return an exit code."""
    parser = argparse.ArgumentParser(prog="train_jobs.tools.preflight", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    arguments = parser.parse_args(argv)
    started = time.monotonic()
    rank = int(os.environ.get("RANK", "0"))
    try:
        problems = preflight(arguments.device)
    except (RuntimeError, dist.DistError) as problem:
        words = str(problem).splitlines()[0]
        problems = [f"rank {rank} on {socket.gethostname()} cannot reach the other processes: {words}"]
    for line in problems:
        print(f"preflight: {line}", file=sys.stderr, flush=True)
    if not problems and rank == 0:
        print(f"preflight: no problem, {time.monotonic() - started:.1f} s", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
