"""Find a faulty machine within ten seconds, before hours are spent on it: GPU count, a matrix product, an all-reduce.

    torchrun --nproc-per-node 8 -m train_jobs.tools.preflight --device gpu

Every process checks its own device and shares the result with the others. Exit code 0: no problem; 8: a machine cannot
run the job (driver, GPU); 1: the network. stderr lists each faulty process with its machine, the same on every process.
A process whose GPU has memory in use by other programs prints a warning.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from train_jobs.config import MachineError
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.gpu_check import free_memory, require_driver, require_usable_gpu

PATIENCE = timedelta(seconds=60)  # the machines of a job start seconds apart
SIZE = 1024  # rows of the matrices; the product takes a hundredth of a second on any GPU
ELEMENTS = 4 * 1024 * 1024  # of the all-reduce: 16 MB, enough to use every link
LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
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


def find_device(kind: str, local_rank: int, local_size: int) -> torch.device:
    """Return the device of a process, which computes.

    Args:
        kind: cpu or gpu.
        local_rank: number of the process on its machine.
        local_size: number of processes on the machine.

    Raises:
        MachineError: the machine has too few GPUs, or this one cannot be used.
    """
    if kind == "cpu":
        return torch.device("cpu")
    # before the GPUs are counted: some ways to count them find none if the driver is old
    require_driver()
    visible = torch.cuda.device_count()
    if visible < local_size:
        raise MachineError(
            f"{visible} GPUs are visible, need {local_size}", fix=f"--set compute.processes_per_node={max(visible, 1)}"
        )
    device = torch.device("cuda", local_rank)
    require_usable_gpu(device)
    free, fix = free_memory(device)
    if fix:
        text = f"memory may run out: GPU {local_rank} of {socket.gethostname()} has {free}; {fix}"
        print(f"warning: {text}", file=sys.stderr, flush=True)
    return device


def check_process(kind: str) -> tuple[torch.device, str | None]:
    """Return the device of this process, and the problem that keeps it from computing."""
    local_rank, local_size = (int(os.environ.get(name, str(one))) for one, name in enumerate(LOCAL))
    try:
        device = find_device(kind, local_rank, local_size)
        return device, check_device(device)
    except MachineError as problem:
        facts = ", ".join(f"{label} {value}" for label, value in problem.facts.items())
        return torch.device("cpu"), f"{problem.message}{f' ({facts})' if facts else ''}; fix: {problem.fix}"
    except RuntimeError as problem:  # an ECC error, a GPU that fell off the bus
        return torch.device("cpu"), str(problem).splitlines()[0]


def check_network(device: torch.device, size: int, group: dist.ProcessGroup | None) -> str | None:
    """Return the problem of an all-reduce over all `size` processes; None without one."""
    values = torch.ones(ELEMENTS, device=device)
    dist.all_reduce(values, group=group)
    low, high = values.min().item(), values.max().item()
    return None if low == high == size else f"an all-reduce gave {low:g} to {high:g}, not {size}"


def preflight(kind: str) -> tuple[list[str], int]:
    """Check this process and return the problems of all processes, each with its rank and machine, and an exit code.

    Args:
        kind: cpu or gpu.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device, wrong = check_process(kind)
    mine = f"rank {rank} on {socket.gethostname()}: {wrong}" if wrong else None
    if size == 1:
        return ([mine], MachineError.exit_code) if mine else ([], 0)
    # Over gloo first, which needs no GPU, so that a process with a faulty GPU can report it.
    dist.init_process_group("gloo", timeout=PATIENCE)
    world = World(rank=rank, local_rank=0, size=size, device=torch.device("cpu"))
    found = map(json.loads, world.gather_texts(json.dumps(mine)))
    problems = [line for line in found if line]
    code = MachineError.exit_code if problems else 0
    if not problems:
        group = dist.new_group(backend="nccl", timeout=PATIENCE) if device.type == "cuda" else dist.group.WORLD
        if wrong := check_network(device, size, group):
            problems, code = [f"rank {rank} on {socket.gethostname()}: {wrong}"], 1
    dist.barrier()
    dist.destroy_process_group()
    return problems, code


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the checks, print problems and return an exit code."""
    parser = argparse.ArgumentParser(prog="train_jobs.tools.preflight", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    arguments = parser.parse_args(argv)
    started = time.monotonic()
    rank = int(os.environ.get("RANK", "0"))
    try:
        problems, code = preflight(arguments.device)
    except (RuntimeError, dist.DistError) as problem:
        words = str(problem).splitlines()[0]
        problems = [f"rank {rank} on {socket.gethostname()} cannot reach the other processes: {words}"]
        code = 1
    for line in problems:
        print(f"preflight: {line}", file=sys.stderr, flush=True)
    if not problems and rank == 0:
        print(f"preflight: no problem, {time.monotonic() - started:.1f} s", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
