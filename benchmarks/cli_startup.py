"""Measure the start-up of the command line: `--help`, and a whole dry run.

python -m benchmarks.cli_startup [RUNS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe, spread

ORCHESTRATOR = str(Path(sys.executable).parent / "orchestrator")
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "orchestrator --help": [ORCHESTRATOR, "--help"],
    "orchestrator submit pretrain --dry-run": [ORCHESTRATOR, "submit", "pretrain", "--dry-run"],
}


def main() -> None:
    """Print a table of milliseconds."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as home:
        # pip compiles what it installs: without bytecode, compiling the sources would be most of what is measured
        environ = {**os.environ, "ORCHESTRATOR_HOME": home, "PYTHONPYCACHEPREFIX": home}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(runs + 1):  # in turn, so that a slow moment of the machine affects all equally
            for name, command in COMMANDS.items():
                started = time.perf_counter()
                subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True)
                taken[name].append(time.perf_counter() - started)
    print(f"{describe('pydantic')}; milliseconds, median (min-max) of {runs} after a warm-up\n")
    for name, seconds in taken.items():
        print(f"| `{name}` | {spread(seconds[1:], 1e3, 0)} |")


if __name__ == "__main__":
    main()
