"""Replay kept inputs in a process of its own: `python -m tests.fuzz.replay CORPUS READER...`; one JSON line a problem.

The peak of the resident memory is reset before each input, so memory is that of one input alone. A limit of the address
space, far above what is allowed, protects the machine.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.readers import READERS, Call
from train_jobs.config.errors import InternalError, UserError

SLOW, HANG = 2.0, 5.0  # seconds of CPU of one input, on an idle machine
IDLE = 0.045  # seconds of CPU of the reference work on an idle machine
STUCK = 30.0  # seconds of one input that sleeps or waits, which takes no CPU
MOST_MB = 512
BACKSTOP_MB = 8192


def replay(corpus: Path, reader: str) -> Iterator[dict[str, object]]:
    """Yield the problems of a reader's kept inputs; then the number of inputs and the CPU time of all."""
    inputs = sorted((corpus / reader).iterdir())
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        call, slower = READERS[reader](Path(name)), slowness()
        begin, most = time.process_time(), 0.0
        for path in inputs:
            print(f"{reader}/{path.name}", file=sys.stderr, flush=True)
            started, before = time.process_time(), reset_peak()
            signal.setitimer(signal.ITIMER_PROF, HANG * slower)  # its signal ends the process, also inside of C
            signal.setitimer(signal.ITIMER_REAL, STUCK)
            why = problem_of(call, path.read_bytes())
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            seconds, memory = time.process_time() - started, megabytes("VmHWM") - before
            most = max(most, seconds)
            if seconds > SLOW and seconds > SLOW * slowness():
                why = why or f"{seconds:.1f} s"
            if memory > MOST_MB:
                why = why or f"{memory:.0f} MB"
            if why:
                yield {"reader": reader, "input": path.name, "problem": why}
        os.chdir("/")
    yield {"reader": reader, "inputs": len(inputs), "seconds": round(time.process_time() - begin, 2), "most": most}


def slowness() -> float:
    """Return how many times more CPU time than on an idle machine a fixed work takes at the moment; at least 1.

    Processes that share a core and its caches slow each other down, also in CPU time.
    """
    begin = time.process_time()
    sorted(str(number * 7919 % 100_003) for number in range(150_000))
    return max(1.0, (time.process_time() - begin) / IDLE)


def problem_of(call: Call, data: bytes) -> str:
    """Return the traceback of an unexpected error, or an empty string."""
    try:
        call(data)
    except InternalError:
        return traceback.format_exc()
    except UserError as problem:
        str(problem).encode(errors="surrogateescape")
        return ""
    except Exception:
        return traceback.format_exc()
    return ""


def reset_peak() -> float:
    """Reset the peak of the resident memory of this process; return its memory in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return megabytes("VmRSS")


def megabytes(key: str) -> float:
    """Return a value of /proc/self/status in MB."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


if __name__ == "__main__":
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    resource.setrlimit(resource.RLIMIT_AS, (BACKSTOP_MB << 20, BACKSTOP_MB << 20))
    corpus = Path(sys.argv[1]).resolve()
    for name in sys.argv[2:]:
        for line in replay(corpus, name):
            print(json.dumps(line), flush=True)
