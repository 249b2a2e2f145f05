"""Whether this machine's GPUs can run this build of torch: driver, architecture, and a first computation.

`distributed.start` and the preflight call `require_usable_gpu` before anything else uses a GPU, so a driver that is too
old is reported as such, and not as the first error that follows from it.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

import torch

from train_jobs import ALLOCATOR_VARIABLE, EXPANDABLE
from train_jobs.config import MachineError

MINIMUM_DRIVERS = {11: 450, 12: 525, 13: 580}
"""First NVIDIA driver for each CUDA release (NVIDIA, CUDA Compatibility, "Minor Version Compatibility", table 1)."""
DRIVER_LIBRARY = "libcuda.so.1"
SMI_SECONDS = 20.0
FREE_SHARE = 0.9  # of a GPU that no other program uses; the context of a process takes some 0.5 GB
DRIVER_ERROR = "CUDA driver error"
"""Start of torch's errors of the driver interface, which the allocator calls for expandable segments only."""
FIXED_SEGMENTS = "expandable_segments:False"
UPDATE = (
    "update the driver; or, on a data-centre GPU, put the libraries of cuda-compat first:"
    " LD_LIBRARY_PATH=/usr/local/cuda-13.0/compat; or install a torch for CUDA {older}, see docs/gpu.md;"
    " or use the CPU: compute.device=cpu"
)


def driver_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA that the driver supports, (12, 2) for driver 535; None without a driver.

    The libraries of cuda-compat count: they replace the driver's own.
    """
    # The driver answers without a working GPU; torch 2.11 and later have no function for this.
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL(DRIVER_LIBRARY).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):  # no library, or not NVIDIA's
        return None
    return None if failed else (version.value // 1000, version.value % 1000 // 10)


def driver_release() -> str | None:
    """Return the release of the installed driver, such as 535.161.08, by nvidia-smi; None if it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = answer.stdout.split()
    return lines[0] if answer.returncode == 0 and lines else None


def built_cuda() -> tuple[int, int] | None:
    """Return the CUDA that this torch was built for; None for a build without CUDA."""
    found = re.match(r"(\d+)\.(\d+)", torch.version.cuda or "")
    return (int(found[1]), int(found[2])) if found else None


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


def require_driver() -> None:
    """Check that the driver is new enough for the CUDA of this torch.

    Raises:
        MachineError: it is not.
    """
    built, driver = built_cuda(), driver_cuda()
    # Within a major release an older driver runs newer code; across major releases it does not.
    if built is None or driver is None or driver[0] >= built[0]:
        return
    release = driver_release()
    raise MachineError(
        f"cannot use the GPUs: the NVIDIA driver is too old for torch {torch.__version__}",
        facts={
            "need": f"driver {MINIMUM_DRIVERS.get(built[0], '?')} or newer, for CUDA {built[0]}.{built[1]}",
            "have": f"driver {release or 'unknown'}, for CUDA {driver[0]}.{driver[1]}",
        },
        fix=UPDATE.format(older=driver[0]),
    )


def require_code(device: torch.device) -> None:
    """Check that this torch has code for the GPU, without which every kernel fails.

    Raises:
        MachineError: it has none.
    """
    capability, built = torch.cuda.get_device_capability(device), torch.cuda.get_arch_list()
    if has_code(capability, built):
        return
    number = "sm_{}{}".format(*capability)
    raise MachineError(
        f"cannot use {torch.cuda.get_device_name(device)}: torch {torch.__version__} has no code for it",
        facts={"need": number, "have": ", ".join(built)},
        fix=f"install a build of torch with {number}, or use another GPU (docs/gpu.md)",
    )


def require_usable_gpu(device: torch.device) -> None:
    """Check driver and architecture, make the GPU the current one, and compute on it.

    Args:
        device: a CUDA device.

    Raises:
        MachineError: this machine cannot run the job on the GPU.
    """
    require_driver()
    try:
        require_code(device)
        torch.cuda.set_device(device)
        _compute(device)
    except RuntimeError as problem:  # an ECC error, a GPU that fell off the bus, a mode that excludes other processes
        fix = "nvidia-smi, and dmesg for errors of the driver; then restart the machine"
        if DRIVER_ERROR in str(problem):
            fix = f"export {ALLOCATOR_VARIABLE}={FIXED_SEGMENTS} (docs/gpu.md)"
        raise MachineError(
            f"cannot use GPU {device.index or 0}: it does not compute",
            facts={"says": (str(problem).splitlines() or ["nothing"])[0][:200]},
            fix=fix,
        ) from problem


def free_memory(device: torch.device) -> tuple[str, str | None]:
    """Return how much memory of a GPU is free, and what to do if other programs use more than a tenth of it."""
    free, total = torch.cuda.mem_get_info(device)
    fix = "nvidia-smi shows the programs that use it; stop them" if free < FREE_SHARE * total else None
    return f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free", fix


def _compute(device: torch.device) -> None:
    """Allocate memory on the GPU and compute, without expandable segments if the GPU does not support them."""
    try:
        torch.ones(1, device=device).add(1).item()
    except RuntimeError as problem:
        # Expandable segments need CUDA's virtual memory management, which vGPUs and some machines under WSL2 lack. The
        # variable is ours by its value; a choice of the user stays.
        if DRIVER_ERROR not in str(problem) or os.environ.get(ALLOCATOR_VARIABLE) != EXPANDABLE:
            raise
        os.environ[ALLOCATOR_VARIABLE] = FIXED_SEGMENTS  # processes that this one starts need it too
        torch._C._accelerator_setAllocatorSettings(FIXED_SEGMENTS)
        torch.ones(1, device=device).add(1).item()
        # not on stdout: gpu_report writes JSON lines there
        text = f"warning: memory may run out earlier: this GPU has no expandable segments ({problem})"
        print(text, file=sys.stderr, flush=True)
