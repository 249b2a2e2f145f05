"""Child processes: started in a new interpreter, and ended by the kernel when their parent dies."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import train_jobs

PR_SET_PDEATHSIG = 1  # of prctl(2)


def start_child(module: str, *words: str, environ: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a module in a new interpreter, with pipes to its stdin and stdout.

    Args:
        module: the module.
        words: its arguments.
        environ: variables that this process may override.
    """
    # A new interpreter, not a fork: a forked child would inherit torch, its threads and their locks. The path is
    # passed on because the parent may run from a snapshot that is not installed.
    root = str(Path(train_jobs.__file__).resolve().parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", module, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # One thread each: other processes use the other cores.
        env={
            **(environ or {}),
            **os.environ,
            "PYTHONPATH": path,
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
        },
    )


def end_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> bool:
    """Let the kernel signal this process when its parent dies; return whether the parent lives.

    Args:
        parent: process id of the parent.
        number: the signal.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    return os.getppid() == parent  # else it died before the call above took effect, and no signal will arrive


def begin_child(parent: int) -> BinaryIO | None:
    """Begin the main function of a child; return the stream to its parent, or None if the parent is dead.

    Args:
        parent: process id of the parent.
    """
    if not end_with_parent(parent):
        return None
    # The terminal and torchrun send these to the whole process group. The parent handles them and ends its children.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Libraries may print to stdout, even from C: such a line would break the protocol. File descriptor 1 becomes
    # stderr, and messages use a copy of the pipe.
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return stream
