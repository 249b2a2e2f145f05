"""Limits of a process that `ulimit` sets, open files and address space, and the errors of a process that hits one."""

from __future__ import annotations

import errno
import re
import resource
from pathlib import Path

from train_jobs.config.errors import MachineError, OutOfMemoryError, UserError

LEAST_FILES = 32  # a launcher opens more than 13 and at most 18; below that torchrun retries its rendezvous without end
MORE_SPACE = "ulimit -v unlimited"
_TAIL_BYTES = 4096  # of the end of a log
# Whole lines as Python ends a traceback and C++ an abort, never a word: a job may print any text.
_TOO_MANY_FILES = re.compile(r"^[\w.]*Error: \[Errno (?:23|24)\] |\(errno: 24 - Too many open files\)", re.M)
_NO_MEMORY = re.compile(
    r"^[\w.]*MemoryError(?:: .*)?$|^  what\(\):  std::bad_alloc$|^[\w.]*Error: \[Errno 12\] "
    r"|^[\w.]*Error: .*DefaultCPUAllocator: can't allocate memory",
    re.M,
)
# With a limit of the address space, these have no other likely cause: a thread and a library need some of it too.
_NO_SPACE = re.compile(
    r"^  what\(\):  Resource temporarily unavailable|: failed to map segment from shared object$", re.M
)


def more_files(error: int | None) -> str | None:
    """Return the command that raises the limit of open files; None: the error of the kernel has another cause."""
    if error == errno.ENFILE:  # of the whole machine
        return "sudo sysctl -w fs.file-max=1000000"
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"ulimit -n {max(4096, 4 * soft)}" if error == errno.EMFILE else None


def open_files_limit() -> str:
    """Return the limit of open files as text."""
    return f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]} open files (ulimit -n)"


def require_files() -> None:
    """Require that a process may open enough files to launch a job.

    Raises:
        MachineError: the limit is lower.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < LEAST_FILES:
        raise MachineError(
            "cannot start the job: it may open too few files",
            facts={"limit": open_files_limit(), "need": LEAST_FILES},
            fix=f"{more_files(errno.EMFILE)}, then resume the run",
        )


def address_space_limit() -> str | None:
    """Return the limit of the address space as text; None without one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else f"{soft // 1024} kB of address space (ulimit -v)"


def explain_limit(problem: BaseException) -> UserError | None:
    """Return the error of a job that hit a limit; None for other exceptions."""
    found: BaseException | None = problem
    while found is not None:
        if isinstance(found, OSError) and (command := more_files(found.errno)) is not None:
            fix = f"{command}, then resume the run"
            return MachineError("too many open files", facts={"limit": open_files_limit()}, fix=fix)
        no_memory = isinstance(found, MemoryError) or (isinstance(found, OSError) and found.errno == errno.ENOMEM)
        if no_memory and (limit := address_space_limit()) is not None:
            return OutOfMemoryError("out of memory", facts={"limit": limit}, fix=f"{MORE_SPACE}, then resume the run")
        found = found.__cause__ or found.__context__
    return None


def limit_note(log: Path, start: int = 0) -> str:
    """Return a note for the reason of a process that died without an error of its own; empty if it hit no limit.

    Args:
        log: of a process with the limits of this one; its end shows the traceback or the abort.
        start: place in the log where the output of the process begins.
    """
    try:
        with log.open("rb") as stream:
            stream.seek(max(log.stat().st_size - _TAIL_BYTES, start))
            tail = stream.read().decode(errors="replace")
    except OSError:
        return ""
    if _TOO_MANY_FILES.search(tail):
        return f"; too many open files: the limit is {open_files_limit()}; fix: {more_files(errno.EMFILE)}"
    limit = address_space_limit()
    if limit is not None and (_NO_MEMORY.search(tail) or _NO_SPACE.search(tail)):
        return f"; memory ran out: the limit is {limit}; fix: {MORE_SPACE}"
    return "; memory ran out" if _NO_MEMORY.search(tail) else ""
