"""Description of the machine of a measurement, and medians."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path


def describe(*packages: str) -> str:
    """Return one line: `machine`, date."""
    return f"{machine(*packages)}, {datetime.now(UTC).date()}"


def machine(*packages: str) -> str:
    """Return processor, cores, Python, versions of `packages`."""
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    cores = len(os.sched_getaffinity(0))
    return f"{_processor()}, {cores} cores, Python {platform.python_version()}, {versions}"


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 1) -> str:
    """Return `median (min-max)` of scaled values."""
    low, middle, high = min(values) * scale, statistics.median(values) * scale, max(values) * scale
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
