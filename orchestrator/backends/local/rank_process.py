"""The parent of one rank: it keeps the rank's log and exit code, and ends the rank when the launcher dies.

    python -I -S rank_process.py COMMAND...

The rank's output passes through this process, which removes secrets on the way to the log.

A killed rank cannot write its own exit code, and torchrun does not set a parent-death signal (prctl(2),
PR_SET_PDEATHSIG) on its ranks: when supervisor and launcher are killed together, the ranks would train on, unseen. The
launcher runs this file as a script, in a start of some 20 ms: it imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO

PR_SET_PDEATHSIG = 1  # of prctl(2), from linux/prctl.h
SAVE_SECONDS = 30  # torchrun gives its ranks as long after SIGTERM
SIGNALLED = 128  # a shell's exit code for a child that died of signal n is this plus n
PIPE_BYTES = 1 << 20
DRAIN_SECONDS = 5.0
GATHER_SECONDS, GATHER_BYTES = 0.01, 4096  # a search costs less for many lines than for each of them alone
RESERVE_VARIABLE = "RUN_RESERVE"  # file to delete when the disk is full, so that the reason can be written


def die_with_parent() -> None:
    """Make the kernel send SIGTERM when the parent dies, even by SIGKILL: ranks then save and stop.

    It may run between fork and exec, where only the calling thread exists: it imports nothing and takes no lock.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def is_launcher(pid: int) -> bool:
    """Return whether a process belongs to the run of this one; init, or `systemd --user`, adopts orphans.

    Args:
        pid: its parent.
    """
    mark = f"RUN_EXITS={os.environ['RUN_EXITS']}"
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return pid != 1


def write_exit_code(path: Path, code: int) -> None:
    """Write the exit code of a rank, negative for a signal; on a full disk, free the reserve of the ranks first."""
    try:
        with path.open("r+" if path.exists() else "w") as stream:  # in place: a placeholder has its bytes already
            stream.write(f"{code}\n")
            stream.truncate()
    except OSError:
        with suppress(OSError):
            Path(os.environ[RESERVE_VARIABLE]).unlink(missing_ok=True)
            path.write_text(f"{code}\n", encoding="utf-8")


def main() -> int:
    """Run the rank and return its exit code, as a shell would."""
    die_with_parent()
    launcher = os.getppid()

    def end_orphan(signum: int, frame: FrameType | None) -> None:
        # torchrun signals the whole process group itself: pass the signal on only if torchrun no longer exists
        if os.getppid() != launcher:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the group includes this process
            signal.alarm(SAVE_SECONDS)
            os.killpg(0, signal.SIGTERM)

    def kill_orphan(signum: int, frame: FrameType | None) -> None:
        process.kill()

    # a handler, not SIG_IGN: the rank would inherit an ignored signal and never save a checkpoint, while a caught one
    # is reset to its default when the rank starts (POSIX, execve)
    signal.signal(signal.SIGTERM, lambda signum, frame: None)
    rank = os.environ["RANK"]
    exit_file = Path(os.environ["RUN_EXITS"], f"rank-{rank}")
    with suppress(OSError):
        exit_file.write_text("\n", encoding="utf-8")  # takes a block of the disk, for the exit code
    log = open_log(Path(os.environ["RUN_LOGS"], f"rank-{rank}.log"))
    # not the copy in the run's folder, where an import would leave bytecode next to the recorded code
    sys.path.append(str(Path(__file__).parents[3]))
    filtered = FilteredOutput(log, os.environ)
    process = subprocess.Popen(
        sys.argv[1:],
        stdout=filtered.writing,
        stderr=filtered.writing,
        preexec_fn=die_with_parent,
        pass_fds=[filtered.reading],
    )
    filtered.start()
    signal.signal(signal.SIGALRM, kill_orphan)
    signal.signal(signal.SIGTERM, end_orphan)
    if os.getppid() != launcher or not is_launcher(launcher):  # it died before the handler was there
        process.terminate()
    code = process.wait()
    signal.alarm(0)
    write_exit_code(exit_file, code)  # first: the rest of the output may take seconds, and a cancel may arrive
    filtered.finish()
    return SIGNALLED - code if code < 0 else code


class FilteredOutput:
    """A pipe whose content a thread copies to a log, without secrets.

    Args:
        log: the log.
        environ: environment variables of the writer, which name the run's own secrets.

    Attributes:
        reading: end of the pipe that the writer inherits too. If this process is killed, a rank that saves its last
            checkpoint must not fail in `print` because no process reads its output.
        writing: end of the pipe for the writer's output.
    """

    def __init__(self, log: IO[bytes], environ: Mapping[str, str]) -> None:
        from train_jobs.artifacts.redaction import StreamRedactor, secret_values  # `main` adds its folder to the path

        self.reading, self.writing = os.pipe()
        with suppress(OSError):  # the limit for unprivileged users may be lower
            fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._log = log
        self._redactor = StreamRedactor(secret_values(environ), self._write)
        self._thread = threading.Thread(target=self._copy, daemon=True)

    def start(self) -> None:
        """Copy until every writer has closed the pipe."""
        os.close(self.writing)
        self._thread.start()

    def finish(self) -> None:
        """Copy the rest. A process of the writer that still runs may hold the pipe open; it is not waited for long."""
        self._thread.join(DRAIN_SECONDS)
        self._redactor.close()
        if not self._thread.is_alive():
            os.close(self.reading)
            self._log.close()

    def _copy(self) -> None:
        while piece := os.read(self.reading, PIPE_BYTES):
            self._redactor.feed(piece)
            if len(piece) < GATHER_BYTES:
                time.sleep(GATHER_SECONDS)

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # a full disk: the rank reports it
            self._log.write(data)
            self._log.flush()


def open_log(path: Path) -> IO[bytes]:
    """Open a log to append to it; on a full disk, nothing keeps the output."""
    try:
        return path.open("ab")
    except OSError:  # the rank reports it
        return Path(os.devnull).open("ab")


if __name__ == "__main__":
    sys.exit(main())
