"""What the tests of the engine share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_disk import Disk

from tests.conftest import tmpfs


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk of 4 MiB; skips the test where this user may not mount one."""
    with tmpfs(tmp_path / "disk", "4m") as folder:
        yield Disk(folder)
