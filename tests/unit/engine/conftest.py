"""What the tests of the engine share."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from engine_disk import Disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk of 4 MiB; skips the test where this user may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.splitlines()[0]}")
    with ExitStack() as stack:
        stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)
        yield Disk(folder)
