"""Sweeps without a file, isolated from the settings of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import backends
from orchestrator.specs.sweep_spec import SweepSpec

if TYPE_CHECKING:
    from tests.unit.sweeps.quick_sweeps import Sweeps

MakeSpec = Callable[..., SweepSpec]
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("ORCHESTRATOR_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sweeps]:
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setitem(backends._BUILT_IN, "quick", "tests.unit.sweeps.quick_driver:QuickBackend")
    from tests.unit.sweeps.quick_sweeps import Sweeps, kill

    found = Sweeps(tmp_path / "home")
    yield found
    for folder in found.folders:
        kill(folder)


def sweep(space: dict[str, Any], sampling: str = "random", *, seed: int = 0, **more: Any) -> SweepSpec:
    """Return a sweep over a space."""
    return SweepSpec.model_validate({"space": space, "sampling": {"name": sampling, "seed": seed}, **more})
