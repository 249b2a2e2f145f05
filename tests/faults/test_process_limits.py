"""Runs that hit a limit of `ulimit`: the reason names the limit and the command that raises it."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console
from tests.run_folders import run_script
from train_jobs.artifacts.mounts import write_error

MEMORY_HUNGRY = "import mmap; found = [bytearray(1 << 28) for _ in range(10**4)]"


def script(limit: str, code: str) -> str:
    """Return a shell script of rank 0 that runs Python below a limit; rank 1 waits."""
    return f'[ $RANK = 1 ] && exec sleep 600; {limit}; exec {sys.executable} -c "{code}"'


@pytest.mark.long
@pytest.mark.parametrize(
    ("limit", "code", "reason"),
    [
        ("ulimit -n 40", "held = [open('/dev/null') for _ in range(99)]", "; too many open files: the limit is "),
        ("ulimit -v 900000", MEMORY_HUNGRY, "; memory ran out"),
    ],
    ids=["open files", "memory"],
)
def test_reason_names_the_shortage(console: Console, untracked: None, limit: str, code: str, reason: str) -> None:
    name = run_script(console.home, script(limit, code))
    status = console("wait", name, "-o", "json", "--timeout", "2m").json
    assert status["state"] == "failed"
    assert reason in status["reason"]


@pytest.mark.long
def test_too_low_limit_of_files_ends_the_run(
    console: Console, untracked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 13 files, torchrun cannot open its rendezvous, and tries again without end."""

    class LimitedPopen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (13, 13))
            super().__init__(*arguments, preexec_fn=limit, **options)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", LimitedPopen)
        name = run_script(console.home, "exit 0")
    status = console("wait", name, "-o", "json", "--timeout", "1m").json
    assert (status["state"], status["exit_code"]) == ("failed", 8)
    assert status["reason"].startswith("error[machine]: cannot start the job: it may open too few files")
    assert "13 open files (ulimit -n)" in status["reason"]


JOB = """
import resource, sys
from pathlib import Path
from train_jobs.engine.runtime.boundary import run
def job():
    kind, value = sys.argv[2:]
    resource.setrlimit(getattr(resource, kind), (int(value), int(value)))
    held = [open("/dev/null") for _ in range(99)] if kind == "RLIMIT_NOFILE" else bytearray(1 << 40)
sys.exit(run(job, Path(sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("kind", "value", "code", "words"),
    [
        ("RLIMIT_NOFILE", 40, 8, ("error[machine]: too many open files", "limit  40 open files", "ulimit -n 4096")),
        ("RLIMIT_AS", 4 << 30, 1, ("error[memory]: out of memory", "limit  4194304 kB", "ulimit -v unlimited")),
    ],
    ids=["open files", "memory"],
)
def test_error_of_a_job_names_the_limit(
    tmp_path: Path, kind: str, value: int, code: int, words: tuple[str, ...]
) -> None:
    command = [sys.executable, "-c", JOB, str(tmp_path), kind, str(value)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "RANK": "0"})
    assert done.returncode == code, done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert (tmp_path / "error-0.json").is_file()


def test_folder_that_cannot_be_opened_names_the_limit(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    problem = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    error = write_error("cannot resume run x", problem, tmp_path, fix="free some space", then="; then: again")
    assert str(error).startswith("error[storage]: cannot resume run x: Too many open files")
    assert error.facts["limit"] == f"{limits[0]} open files (ulimit -n)"
    assert error.fix == f"ulimit -n {max(4096, 4 * limits[0])}; then: again"
