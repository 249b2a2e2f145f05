"""Whether this machine's GPUs can run this build of torch: driver, architecture, and a first computation.

`distributed.start` and the preflight call `require_usable_gpu` before anything else uses a GPU, so a driver that is too
old is reported as such, and not as the first error that follows from it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence

import torch

from train_jobs.config import MachineError

MINIMUM_DRIVERS = {11: 450, 12: 525, 13: 580}
"""First NVIDIA driver for each CUDA release (NVIDIA, CUDA Compatibility, "Minor Version Compatibility", table 1)."""
SMI_SECONDS = 20.0
UPDATE = (
    "update the driver; or, on a data-centre GPU, put the libraries of cuda-compat first:"
    " LD_LIBRARY_PATH=/usr/local/cuda-13.0/compat; or install a torch for CUDA {older}, see docs/gpu.md"
)


def driver_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA that the driver supports, (12, 2) for driver 535; None without a driver.

    The libraries of cuda-compat count: they replace the driver's own.
    """
    # private, but torch's own message about old drivers is built from it, and it needs no working GPU
    read = getattr(torch._C, "_cuda_getDriverVersion", None)
    version = int(read()) if read else 0
    return (version // 1000, version % 1000 // 10) if version else None


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
        torch.ones(1, device=device).add(1).item()
    except RuntimeError as problem:  # an ECC error, a GPU that fell off the bus, a mode that excludes other processes
        raise MachineError(
            f"cannot use GPU {device.index or 0}: it does not compute",
            facts={"says": (str(problem).splitlines() or ["nothing"])[0][:200]},
            fix="nvidia-smi, and dmesg for errors of the driver; then restart the machine",
        ) from problem
