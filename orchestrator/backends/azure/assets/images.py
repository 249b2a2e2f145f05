"""The environments that jobs run in on Azure, by content: `environments/train-gpu` and `environments/train-cpu`.

An environment's version is the hash of all that it is built from: an unchanged one is built once and never again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from orchestrator.support.errors import NotFoundError

HERE = Path(__file__).resolve().parents[3]
SHIPPED = HERE / "shipped" / "environments"  # of an installed wheel: setup.py puts them there
ENVIRONMENTS = SHIPPED if SHIPPED.is_dir() else HERE.parent / "environments"
CONSTRAINTS = "constraints.txt"  # lies beside the environments; goes into a Docker context
CPU_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04:latest"  # conda environments need some base
HASH_DIGITS = 12
PYTHON = "3.11"


class TrainImage(NamedTuple):
    """An environment, and what it is made of."""

    name: str
    """train-gpu, train-cpu or serve-cpu."""
    version: str
    """Hash of the rest."""
    conda: str | None
    """A conda file's text; None: it is built from a Dockerfile."""
    files: dict[str, bytes]
    """The context of the Dockerfile: name -> content."""


def train_image(device: str, folder: Path = ENVIRONMENTS) -> TrainImage:
    """The environment for jobs on "gpu" or "cpu"; see `image`."""
    return image(f"train-{device}", folder)


def image(name: str, folder: Path = ENVIRONMENTS) -> TrainImage:
    """One of the environments.

    Args:
        name: train-gpu, train-cpu or serve-cpu.
        folder: of the environments; the constraints lie beside it.

    Raises:
        NotFoundError: the environments are neither in the package nor beside it.
    """
    place = folder / name
    if not place.is_dir():
        raise NotFoundError(
            f"environments/{name} is not there",
            facts={"where": place, "why": "the installation is not whole"},
            fix="--set azure.environment=azureml:NAME:VERSION",
        )
    files = {path.name: path.read_bytes() for path in sorted(place.iterdir()) if path.is_file()}
    conda = files.get("conda.yaml")
    if conda is None:
        files[CONSTRAINTS] = (folder.parent / CONSTRAINTS).read_bytes()
    whole = hashlib.sha256(b"" if conda is None else CPU_IMAGE.encode())
    for file in sorted(files):
        whole.update(f"{file}\0{hashlib.sha256(files[file]).hexdigest()}\n".encode())
    return TrainImage(
        name, whole.hexdigest()[:HASH_DIGITS], conda.decode() if conda else None, {} if conda is not None else files
    )


def pinned_versions(packages: tuple[str, ...], folder: Path = ENVIRONMENTS) -> dict[str, str]:
    """Version of Python and of each package, as the environments pin them; empty without them."""
    path = folder.parent / CONSTRAINTS
    if not path.is_file():
        return {}
    lines = (line.partition("==") for line in path.read_text().splitlines())
    pins = {name.strip(): version.strip() for name, equals, version in lines if equals}
    return {"python": PYTHON, **{package: pins.get(package, "absent") for package in packages}}
