"""Description of the machine and the code of a measurement, and medians."""

from __future__ import annotations

import hashlib
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def describe(*packages: str) -> str:
    """Return one line: `machine`, date."""
    return f"{machine(*packages)}, {datetime.now(UTC).date()}"


def machine(*packages: str) -> str:
    """Return processor, cores, Python, versions of `packages`."""
    versions = ", ".join(f"{package} {_version(package)}" for package in packages)
    cores = len(os.sched_getaffinity(0))
    return f"{_processor()}, {cores} cores, Python {platform.python_version()}, {versions}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise SystemExit(f"this measurement needs {package}: pip install -e '.[benchmarks]'") from None


@cache
def commit() -> str:
    """Return the short hash of the code at the first call: later commits do not change a running process.

    Changes of Python files that are not committed add their own hash. It is "unknown" outside a git repository.
    """
    try:
        head, changes = (_git(*words) for words in (("rev-parse", "--short", "HEAD"), ("diff", "HEAD", "--", "*.py")))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}+{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else head


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parents[1]), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 1) -> str:
    """Return `median (min-max)` of scaled values."""
    low, middle, high = min(values) * scale, statistics.median(values) * scale, max(values) * scale
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
