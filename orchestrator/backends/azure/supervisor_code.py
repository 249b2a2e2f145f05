"""The code of a supervisor in Azure: this package and the environments, as one archive."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import train_jobs.config

ARCHIVE = "supervisor.zip"
SHIPPED = "orchestrator/shipped"  # as in a wheel
LEFT_OUT = {"__pycache__", "testing", "shipped"}  # folders of the package that a supervisor does not need


def write_archive(folder: Path, environments: Path) -> Path:
    """Write the code as one file: uploading each of its files would take a thousand requests.

    Args:
        folder: an empty folder.
        environments: folder of the environments, with the constraints next to it.
    """
    target = folder / ARCHIVE
    with ZipFile(target, "w", ZIP_DEFLATED) as archive:
        for name, path in _code_files(environments).items():
            archive.writestr(ZipInfo(name), path.read_bytes(), ZIP_DEFLATED)
    return target


def code_digest(environments: Path) -> str:
    """Return the hash of the code.

    Args:
        environments: folder of the environments.
    """
    total = hashlib.sha256()
    for name, path in _code_files(environments).items():
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _code_files(environments: Path) -> dict[str, Path]:
    """Return path in the archive -> file."""
    shipped = [path for path in sorted(environments.rglob("*")) if path.is_file()]
    files = {f"{SHIPPED}/environments/{path.relative_to(environments).as_posix()}": path for path in shipped}
    files[f"{SHIPPED}/constraints.txt"] = environments.parent / "constraints.txt"
    packages = Path(__file__).resolve().parents[2], Path(train_jobs.config.__file__).resolve().parents[1]
    return files | {f"{package.name}/{name}": package / name for package in packages for name in _sources(package)}


def _sources(package: Path) -> Iterator[str]:
    for path in sorted(package.rglob("*")):
        parts = path.relative_to(package).parts
        if path.is_file() and not LEFT_OUT & {*parts} and path.suffix != ".pyc":
            yield "/".join(parts)
