"""Modes of home folders, the umask of the process that makes them, and a Python for other users."""

from __future__ import annotations

import os
import site
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
NOBODY = 65534  # uid of every Linux


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Set the umask of this process and of those that it starts."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    """Return the permissions of a file or folder."""
    return stat.S_IMODE(path.lstat().st_mode)


def other_modes(home: Path, folders: int = 0o700, files: int = 0o600) -> dict[str, str]:
    """Return the files and folders of a home that have other modes than these: path -> mode."""
    found = {}
    for path in (home, *home.rglob("*")):
        with suppress(FileNotFoundError):  # a journal of the MLflow store, to which a run may still be copied
            if not path.is_symlink() and mode_of(path) != (folders if path.is_dir() else files):
                found[str(path.relative_to(home))] = f"{mode_of(path):04o}"
    return found


def python_for_all(folder: Path) -> Path:
    """Create an environment that every user can execute, with the packages of this one; skip where none can be."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for program in (sys.executable, f"/usr/bin/{version}"):
        if which(program) and _runs(program, "1"):
            subprocess.run([program, "-m", "venv", "--without-pip", str(folder)], check=True)
            packages = folder / "lib" / version / "site-packages" / "shared.pth"
            packages.write_text("\n".join([str(REPOSITORY), *site.getsitepackages()]) + "\n")
            subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
            if not _runs(str(folder / "bin" / "python"), "import orchestrator, pydantic"):
                pytest.skip(f"other users cannot read the packages of {sys.prefix}: it is in a private folder")
            return folder / "bin" / "python"
    pytest.skip(f"no {version} that other users can execute: {sys.executable} is in a private folder")


def _runs(program: str, script: str) -> bool:
    """Return whether a user without rights can run a script."""
    words = ["setpriv", "--reuid", str(NOBODY), "--clear-groups", "sh", "-c", 'exec "$0" -c "$1"', program, script]
    return not subprocess.run(words, capture_output=True, cwd="/", check=False).returncode
