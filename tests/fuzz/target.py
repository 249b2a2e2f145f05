"""The process that fuzzes one reader: `python -m tests.fuzz.target READER FINDINGS [OPTION OF LIBFUZZER...]`.

A finding is written once per place and the run continues; libFuzzer itself writes inputs that hang, exhaust the memory
or kill the process. The last line of stdout has the counts of findings.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import atheris

from tests.fuzz.readers import READERS, Call
from train_jobs.config.errors import InternalError, UserError

SLOW = 2.0  # seconds of CPU of one input


def guarded(call: Call, findings: Path) -> Call:
    """Return a call that writes unexpected exceptions and slow inputs to a folder."""

    def run(data: bytes) -> None:
        begin = time.process_time()
        try:
            call(data)
        except InternalError:
            note(findings, data, traceback.format_exc())
        except UserError as problem:
            str(problem)
        except Exception:
            note(findings, data, traceback.format_exc())
        if (seconds := time.process_time() - begin) > SLOW:
            note(findings, data, f"slow\n{seconds:.1f} s")

    return run


def note(findings: Path, data: bytes, why: str) -> None:
    """Write an input and its traceback, unless one from the same place exists."""
    places = [line for line in why.splitlines() if line.startswith("  File ")][-1:] or why.splitlines()[:1]
    name = hashlib.sha256(places[0].encode()).hexdigest()[:12]
    findings.mkdir(parents=True, exist_ok=True)
    if not (findings / name).exists():
        (findings / name).write_bytes(data)
        (findings / f"{name}.txt").write_text(why, errors="replace")


def main() -> None:
    """Fuzz until libFuzzer's limits; ends the process."""
    name, findings, *options = sys.argv[1:]
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    if name in {"hf-weights", "checkpoint", "hf-config", "requests"}:
        import torch  # before instrumentation: only our packages are instrumented

        torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    os.chdir(folder)
    with atheris.instrument_imports(include=["orchestrator", "train_jobs"]):
        call = READERS[name](folder)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123  # warnings of the readers; libFuzzer has its own
    atheris.Setup([sys.argv[0], *options], guarded(call, Path(findings)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
