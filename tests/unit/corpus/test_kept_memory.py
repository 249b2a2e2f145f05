"""Memory that the allocator keeps for reuse."""

from __future__ import annotations

import subprocess
import sys

import pytest

ROUNDS = """
import resource
import numpy as np
from train_jobs.corpus.executors.worker import keep_freed_memory

{setup}
faults = []
for _ in range(6):
    arrays = [np.ones(size << 20, np.uint8) for size in (20, 30, 10, 25)]
    del arrays
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[1])
"""


def faults(setup: str) -> int:
    """Return the page faults of four rounds of arrays after two rounds of the same size."""
    done = subprocess.run(
        [sys.executable, "-c", ROUNDS.format(setup=setup)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the setting is specific to glibc")
def test_freed_arrays_are_reused() -> None:
    kept, default = faults("assert keep_freed_memory()"), faults("")
    assert kept < 20
    assert default > kept  # otherwise the test shows nothing
