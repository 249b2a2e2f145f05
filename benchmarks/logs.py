"""Print, search and tail a log of one gigabyte: time and peak memory, compared with cat, grep, tail and sed.

    python -m benchmarks.logs [MEGABYTES] [RUNS]

Everything is printed into a pipe that is read as fast as it comes: to /dev/null grep stops at the first line that fits.
And how long after Ctrl-C a follower ends that waits for lines, and one whose reader does not read.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import describe, spread
from tests.run_folders import live_run, make_run

LINE = b"step %07d/9999999  loss %d.%04d  lr 1.00e-04  300.5 sequences/s  eta 1:02:03\n"
LINES = b"".join(LINE % (number, number % 9, number % 9973) for number in range(100_000))
SYSTEM = [
    ([], ["cat"]),
    (["--tail", "5"], ["tail", "-n", "5"]),
    (["--grep", "nan"], ["grep", "-E", "nan"]),
    (["--grep", "(?i)error|nan"], ["grep", "-Ei", "error|nan"]),
    (["--grep", r"loss 8\.00"], ["grep", "-E", r"loss 8\.00"]),
    (["--grep", r"loss\s+nan"], ["grep", "-E", r"loss\s+nan"]),
    (["--grep", "eta"], ["grep", "-E", "eta"]),
    (["--all-ranks"], ["sed", "s/^/[0:0] /"]),
]


def measure(command: Sequence[str], environ: dict[str, str]) -> float:
    """Return the seconds of a command whose output is read immediately."""
    started = time.perf_counter()
    with (
        subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as process,
        subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL),
    ):
        assert process.stdout is not None
        process.stdout.close()  # only `cat` may hold the read end, or a broken pipe would not be noticed
    assert process.returncode in {0, 1}, command  # grep's 1: nothing fits
    return time.perf_counter() - started


def leave(home: Path, environ: dict[str, str], *, backlog: bool) -> float:
    """Return the seconds from Ctrl-C to the end of a follower."""
    with live_run(home, f"live-{time.monotonic_ns()}") as run:
        run.rank_log(0).write_bytes(LINES if backlog else b"one line\n")
        command = [sys.executable, "-m", "orchestrator.cli.main", "logs", run.name, "-f"]
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            os.read(process.stdout.fileno(), 1)
            time.sleep(0.5)  # by now it waits, for more lines or for its reader
            process.send_signal(signal.SIGINT)
            started = time.perf_counter()
            assert process.wait() == 130
            return time.perf_counter() - started


def main() -> None:
    """Print tables."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as folder:
        home, peak = Path(folder), Path(folder, "peak")
        environ = {**os.environ, "ORCHESTRATOR_HOME": folder, "LC_ALL": "C.UTF-8"}
        log = make_run(home, "large", processes_per_node=1).rank_log(0)
        with log.open("wb") as stream:
            while stream.tell() < megabytes << 20:
                stream.write(LINES)
        make_run(home, "small", processes_per_node=1).rank_log(0).write_bytes(LINES[:1000])
        ours = [sys.executable, "tests/peak.py", str(peak), "logs"]
        cases = [("small", [], [sys.executable, "-c", "pass"]), *(("large", *pair) for pair in SYSTEM)]
        rows: list[tuple[list[float], list[float], list[float]]] = [([], [], []) for _ in cases]
        for _ in range(runs + 1):  # in turn, so that a slow moment of the machine affects all equally
            for (name, words, system), (seconds, peaks, theirs) in zip(cases, rows, strict=True):
                seconds.append(measure([*ours, name, *words], environ))
                peaks.append(float(peak.read_text()))
                theirs.append(measure([*system, str(log)], environ))
        print(f"{describe('pydantic')}; a log of {megabytes} MB, in the page cache")
        print(f"seconds, median (min-max) of {runs} after a warm-up\n")
        print("| log | `orchestrator logs RUN` | s | peak MB | reference | s | ratio |\n|---|---|---|---|---|---|---|")
        for (name, *commands), (seconds, peaks, theirs) in zip(cases, rows, strict=True):
            asked, system = (
                " ".join(words).replace("|", "\\|").replace(sys.executable, "python") for words in commands
            )
            ratio = statistics.median(seconds[1:]) / statistics.median(theirs[1:])
            figures = f"{spread(seconds[1:], 1, 2)} | {max(peaks):.1f}"
            print(f"| {name} | `{asked}` | {figures} | `{system}` | {spread(theirs[1:], 1, 2)} | {ratio:.1f} |")
        print("\n| from Ctrl-C to the end of `logs -f` | ms |\n|---|---|")
        for name, backlog in (("while it waits for lines", False), ("while its backlog is not read", True)):
            taken = [leave(home, environ, backlog=backlog) for _ in range(runs)]
            print(f"| {name} | {spread(taken, 1e3, 0)} |")


if __name__ == "__main__":
    main()
