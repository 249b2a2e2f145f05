"""Files that this user cannot read: the fix names the obstacle, which may be a folder above or another user's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.jobs.row_counts import count_table
from tests.conftest import Console
from tests.home_modes import NOBODY
from tests.run_folders import make_run
from train_jobs.config.errors import DataError

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to read as another user")

AS_NOBODY = f"""\
import os, sys
from pathlib import Path
from orchestrator.backends.folder.outputs import download
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.support.errors import UserError
from train_jobs.artifacts.vocabulary_file import read_vocabulary
os.setgroups([])
os.setresgid(*[{NOBODY}] * 3)
os.setresuid(*[{NOBODY}] * 3)
kind, path, to = sys.argv[1:]
try:
    if kind == "vocabulary":
        read_vocabulary(Path(path))
    else:
        download(RunFolder(Path(path)), [], Path(to), force=False, progress=None)
except UserError as problem:
    print(problem)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a folder that every user can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def as_nobody(kind: str, path: Path, to: Path) -> list[str]:
    """Return the lines of the error that a user without rights gets."""
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, kind, str(path), str(to)], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@root_only
@pytest.mark.parametrize("owner", [0, NOBODY])
@pytest.mark.parametrize(("closed", "right"), [("vocab.txt", "r"), (".", "x")])
def test_fix_names_obstacle_and_owner(place: Path, owner: int, closed: str, right: str) -> None:
    file = place / "private" / "vocab.txt"
    file.parent.mkdir()
    file.parent.chmod(0o755)
    file.write_text("a\n")
    obstacle = file.parent / closed
    os.chown(obstacle, owner, 0)
    obstacle.chmod(0)
    lines = as_nobody("vocabulary", file, place)
    assert lines[0] == f"error[data]: cannot read {file}: permission denied"
    if owner:
        assert lines[1:] == [f"  fix  chmod u+{right} {obstacle}"]
    else:
        assert lines[1:] == [
            f"  owner  root, of {obstacle}",
            f"  fix    ask root for access, or: sudo chmod o+{right} {obstacle}",
        ]


@root_only
def test_download_names_unreadable_output(place: Path) -> None:
    """The folder that it writes to is not the problem, and free space does not help."""
    run = make_run(place, "one")
    run.metrics.write_text('{"step": 1, "time": 1.0, "metrics": {}}\n')
    for folder in (run.path.parent, run.path, run.outputs, run.logs):
        folder.chmod(0o755)
    run.metrics.chmod(0)
    lines = as_nobody("download", run.path, place / "copy")
    assert lines == [
        f"error[storage]: cannot read {run.metrics}: permission denied",
        f"  owner  root, of {run.metrics}",
        f"  fix    ask root for access, or: sudo chmod o+r {run.metrics}",
    ]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "conll", "squad"])
def test_folder_in_place_of_rows_is_named(tmp_path: Path, form: str) -> None:
    with pytest.raises(DataError, match="it is a folder") as caught:
        count_table(tmp_path, form, header=True, quoting=None)
    assert caught.value.fix == f"name a file: ls {tmp_path}"


def test_folder_in_place_of_spec_is_named(console: Console) -> None:
    done = console("plan", "pretrain", "-f", ".")
    assert done.code == 2
    assert "error[spec]: cannot read .: it is a folder" in done.err
