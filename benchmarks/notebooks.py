"""Seconds of a Run All of each notebook, on a machine that other work keeps busy.

    python -m benchmarks.notebooks [--busy 1] [NOTEBOOK ...]

In one folder and home, in the order of their numbers, as a newcomer runs them: a later notebook finds the pretrained
model of an earlier one. Without a GPU, and without network. NOTEBOOK is the beginning of a name, such as 04.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from benchmarks.machine import describe

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NOWHERE = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep that many other processes computing."""
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.notebooks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("notebooks", nargs="*", default=[""], metavar="NOTEBOOK", help="default: all")
    parser.add_argument("--busy", type=int, default=1, metavar="N", help="other processes that compute all the time")
    arguments = parser.parse_args()
    print(describe("torch", "nbclient"), f"\nother busy processes: {arguments.busy}\n\n| notebook | s |\n|---|---|")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place, busy(arguments.busy):
        os.environ |= {"ORCHESTRATOR_HOME": f"{place}/home", "CUDA_VISIBLE_DEVICES": "", **NOWHERE}
        os.environ |= dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1")
        for path in sorted(NOTEBOOKS.glob("*.ipynb")):
            if not path.name.startswith(tuple(arguments.notebooks)):
                continue
            notebook = nbformat.read(path, as_version=4)
            started = time.monotonic()
            NotebookClient(notebook, timeout=None, resources={"metadata": {"path": place}}).execute()
            print(f"| {path.stem} | {time.monotonic() - started:.0f} |", flush=True)


if __name__ == "__main__":
    main()
