"""Whether torch.compile takes a model: what a configuration asks for, and what the machine can."""

from __future__ import annotations

import os
import shutil
from typing import Literal

import torch

from train_jobs.config import SpecError


def is_compiled(wanted: Literal["auto"] | bool, device: torch.device) -> bool:
    """What a configuration's `compile` comes to. auto: on GPUs."""
    return device.type == "cuda" if wanted == "auto" else wanted


def require_compiler(device: torch.device, *, key: str) -> None:
    """Sees to it that what is compiled can be.

    Args:
        device: what it is compiled for.
        key: of the configuration, that asked for it.

    Raises:
        SpecError: there is no C++ compiler, which a CPU needs.
    """
    compilers = [os.environ.get("CXX", "g++"), "clang++"]
    if device.type == "cpu" and not any(map(shutil.which, compilers)):
        raise SpecError(
            f"{key} needs a C++ compiler on a CPU",
            facts={"looked for": ", ".join(compilers)},
            fix=f"--set {key}=auto, or install g++",
        )
