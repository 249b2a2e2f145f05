"""Memory that the allocator keeps for reuse."""

from __future__ import annotations

import subprocess
import sys

import pytest

ROUNDS = """
import resource
import numpy as np
from train_jobs.engine.runtime import allocator

{setup}
faults = []
for _ in range(6):
    arrays = [np.ones(size << 20, np.uint8) for size in {sizes}]
    del arrays
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[1])
"""

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the settings are specific to glibc")


def faults(setup: str, sizes: list[int]) -> int:
    """Return the page faults of four rounds of arrays after two rounds of the same sizes, in MiB."""
    program = ROUNDS.format(setup=setup, sizes=sizes)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_freed_arrays_are_reused() -> None:
    sizes = [20, 30, 10, 25]
    kept, default = faults("assert allocator.keep_freed_arrays()", sizes), faults("", sizes)
    assert kept < 20
    assert default > kept  # otherwise the test shows nothing


def test_freed_tensors_are_reused() -> None:
    # as in a micro batch: logits of 40 MiB, a gradient of 90; together more than `keep_freed_arrays` keeps
    sizes = [40, 90, 40, 24, 24, 24, 40]
    kept, default = faults("assert allocator.keep_freed_tensors()", sizes), faults("", sizes)
    assert kept < 20
    assert default > 10_000  # otherwise the test shows nothing


def test_job_on_cpu_keeps_freed_tensors() -> None:
    start = "from train_jobs.engine.runtime import distributed; distributed.start('cpu')"
    assert faults(start, [40, 90, 40, 24, 24, 24, 40]) < 20
