"""The error for a file or folder that cannot be read, with the obstacle on its path and a fix that fits it."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from pathlib import Path

from train_jobs.artifacts.regular_files import SpecialFileError
from train_jobs.config.errors import DataError, in_shell


def unreadable(path: Path, problem: OSError) -> DataError:
    """Return the error for a file or folder that cannot be read.

    Args:
        path: the file or folder.
        problem: why.
    """
    if not isinstance(problem, PermissionError):
        if isinstance(problem, IsADirectoryError):
            return DataError(f"cannot read {path}: it is a folder", fix=f"name a file: ls {in_shell(path)}")
        if isinstance(problem, SpecialFileError):
            return DataError(
                f"cannot read {path}: {problem.strerror}", fix="write its content to a file, and name that"
            )
        why = problem.strerror or str(problem)
        if isinstance(problem, FileNotFoundError) and path.is_symlink():
            why = f"it is a link to {path.readlink()}, which does not exist"
        return DataError(f"cannot read {path}: {why}", fix=f"ls -l {in_shell(path)}")
    closed, right = _obstacle(path)
    owner = closed.stat().st_uid
    if owner == os.geteuid():
        return DataError(f"cannot read {path}: permission denied", fix=f"chmod u+{right} {in_shell(closed)}")
    name = str(owner)
    with suppress(KeyError):
        name = pwd.getpwuid(owner).pw_name
    command = f"sudo chmod o+{right} {in_shell(closed)}"
    return DataError(
        f"cannot read {path}: permission denied",
        facts={"owner": f"{name}, of {closed}"},
        fix=f"ask {name} for access, or: {command}",
    )


def _obstacle(path: Path) -> tuple[Path, str]:
    """Return the first folder that cannot be entered, or the path itself, and the right that is missing."""
    for folder in reversed(path.absolute().parents):
        if not os.access(folder, os.X_OK, effective_ids=True):
            return folder, "x"
    return path, "rx" if path.is_dir() else "r"
