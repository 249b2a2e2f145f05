"""The same bits every time, on GPUs too: algorithms that add in a fixed order, and what they cost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.utils.deterministic

ROUNDS = 3


def demand() -> None:
    """Has torch use deterministic algorithms, or refuse what has none. To be called before a GPU is used.

    cuBLAS reads its variable when it is first used; with several streams it may else choose another algorithm each
    time (cuBLAS documentation, "Results reproducibility").
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # filling finds reads of memory never written; we pay for none. The module's class defines the property.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def cost(attempt: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Median seconds of `attempt` with deterministic algorithms and with whichever are fastest, turn by turn."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    try:
        for number in range(ROUNDS + 1):
            for deterministic, seconds in taken.items():
                torch.use_deterministic_algorithms(deterministic)
                _wait(device)
                started = time.perf_counter()
                attempt()
                _wait(device)
                if number:  # what is done for the first time takes longer
                    seconds.append(time.perf_counter() - started)
    finally:
        torch.use_deterministic_algorithms(True)
    return median(taken[True]), median(taken[False])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
