"""File locks: one holder, released by the kernel; tests of a lock do not block each other."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from train_jobs.artifacts.files import hold, is_held, try_lock

HOLDER = """
import sys, time
from pathlib import Path
from train_jobs.artifacts.files import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert is_held(path)
        waits: list[str] = []
        busy = ValueError("somebody has it")
        with (
            pytest.raises(ValueError, match="somebody has it"),
            hold(path, seconds=0.1, busy=busy, waiting=lambda: waits.append("waiting")),
        ):
            raise AssertionError
        assert waits == ["waiting"]
        holder.kill()
    assert not is_held(path)
    with hold(path, seconds=0):
        assert is_held(path)
    assert path.exists()


def test_lock_tests_do_not_interfere_or_create_files(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    assert not path.exists()
    path.touch()
    with path.open("rb") as asker:
        fcntl.flock(asker, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert not is_held(path)


def test_timeout_uses_default_error(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as stream:
        assert try_lock(stream)
        with pytest.raises(TimeoutError), hold(path, seconds=0.1):
            raise AssertionError
    with hold(path), path.open() as other:
        assert not try_lock(other)


COUNTER = """
import sys
from pathlib import Path
from train_jobs.artifacts.files import hold
folder = Path(sys.argv[1])
for _ in range(50):
    with hold(folder / "lock", remove=True):
        inside = folder / "inside"
        inside.touch(exist_ok=False)
        (folder / "count").write_text(str(int((folder / "count").read_text()) + 1))
        inside.unlink()
"""


def test_lock_that_is_removed_still_has_one_holder(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    processes = [subprocess.Popen([sys.executable, "-c", COUNTER, str(tmp_path)]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert (tmp_path / "count").read_text() == "200"
    assert [path.name for path in tmp_path.iterdir()] == ["count"]
