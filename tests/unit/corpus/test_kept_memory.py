"""What the allocator keeps."""

from __future__ import annotations

import subprocess
import sys

import pytest

ROUNDS = """
import resource
import numpy as np
from train_jobs.corpus.executors.worker import keep_freed_memory

{told}
faults = []
for _ in range(6):
    arrays = [np.ones(size << 20, np.uint8) for size in (20, 30, 10, 25)]
    del arrays
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[1])
"""


def faults(told: str) -> int:
    """Pages that four rounds of arrays took from the system, when two had used as many."""
    done = subprocess.run([sys.executable, "-c", ROUNDS.format(told=told)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is told")
def test_freed_arrays_are_used_again() -> None:
    kept, left_alone = faults("assert keep_freed_memory()"), faults("")
    assert kept < 20
    assert left_alone > kept  # or there is nothing to tell
