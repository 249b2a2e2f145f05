"""The installed package: pins, public names, type marker."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

import orchestrator

ROOT = Path(__file__).resolve().parents[2]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    return {normalized(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def collect_requirements(name: str, extras: set[str], seen: dict[str, str]) -> None:
    """Collect name -> installed version of all direct and indirect requirements of a distribution."""
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        markers = [{"extra": extra} for extra in extras | {""}]
        if requirement.marker and not any(requirement.marker.evaluate(marker) for marker in markers):
            continue
        key = normalized(requirement.name)
        if key in seen and not requirement.extras:
            continue
        try:
            seen[key] = distribution(key).version
        except PackageNotFoundError:
            continue  # CUDA packages of torch, which the CPU build does not need
        collect_requirements(key, set(requirement.extras), seen)


def test_every_dependency_pinned_to_installed_version() -> None:
    found: dict[str, str] = {}
    collect_requirements("bert-orchestrator", {"dev"}, found)
    assert {"torch", "mlflow", "azure-ai-ml", "sqlalchemy", "ruff"} <= found.keys()
    pinned = pins()
    assert {name: pinned.get(name) for name in found} == {name: found[name].partition("+")[0] for name in found}


def test_public_names_are_sorted_and_exist() -> None:
    assert orchestrator.__all__ == sorted(orchestrator.__all__)
    for name in orchestrator.__all__:
        assert getattr(orchestrator, name).__name__ == name


def test_both_packages_are_typed() -> None:
    assert (ROOT / "orchestrator" / "py.typed").is_file()
    assert (ROOT / "train_jobs" / "py.typed").is_file()
