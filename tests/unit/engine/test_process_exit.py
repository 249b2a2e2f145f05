"""The end of a process of a job: it has the job's own exit code, whatever its threads do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ENDING = """
import atexit, sys, threading, time
from datetime import timedelta
from pathlib import Path
import torch
from train_jobs.engine.runtime.boundary import exit_process

def wait_in_store():
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    while True:
        try:
            store.wait(["never written"], timedelta(milliseconds=20))
        except torch.distributed.DistError:
            began.set()

began, place = threading.Event(), Path(sys.argv[1])
threading.Thread(target=wait_in_store, daemon=True).start()
assert began.wait(60)
threading.Thread(target=lambda: (time.sleep(0.5), (place / "thread").touch())).start()
atexit.register((place / "handler").touch)
print("written at the end", end="")
exit_process(75)
"""


def test_exit_code_survives_threads_in_other_code(tmp_path: Path) -> None:
    """With sys.exit, a daemon thread that returns from C++ meanwhile aborts the process: exit code -6."""
    command = [sys.executable, "-c", ENDING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (75, "written at the end"), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["handler", "thread"]
