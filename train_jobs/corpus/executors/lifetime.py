"""The end of a child process: the kernel signals it when its parent dies."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # of prctl(2)


def end_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> bool:
    """Let the kernel signal this process when its parent dies; return whether the parent lives.

    Args:
        parent: process id of the parent.
        number: the signal.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    return os.getppid() == parent  # else it died before the call above took effect, and no signal will arrive
