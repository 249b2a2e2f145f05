"""The wheel: complete, without other files, and usable without a checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import yaml

from orchestrator.backends.azure.assets import ENVIRONMENTS, train_image
from tests.conftest import MICRO, write_corpus

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("orchestrator", "train_jobs", "environments", "tests", "notebooks", "benchmarks", "docs")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, so that the checkout stays clean."""
    place = tmp_path_factory.mktemp("built")
    source = place / "source"
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run([*command, "--wheel-dir", str(place), str(source)], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return next(place.glob("*.whl"))


def test_wheel_has_exactly_the_required_files(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    packages = ("orchestrator", "train_jobs")
    ours = {
        str(path.relative_to(ROOT))
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    shipped = {f"environments/{path.relative_to(ENVIRONMENTS)}" for path in ENVIRONMENTS.rglob("*") if path.is_file()}
    shipped = {f"orchestrator/shipped/{name}" for name in {*shipped, "constraints.txt"}}
    assert (names, {"orchestrator/py.typed", "train_jobs/py.typed"} <= names) == (ours | shipped, True)


def test_wheel_has_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
        scripts = archive.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert "License-Expression: MIT" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert "![Report of a run" in metadata  # the README
    assert "orchestrator = orchestrator.cli.main:main" in scripts


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and nothing of the checkout; this environment provides its requirements."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder


def run(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Return a function that runs `orchestrator ...` of the wheel in an empty folder."""
    work = installed / "work"
    work.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
    paths = [str(installed / "site"), sysconfig.get_path("purelib")]
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "ORCHESTRATOR_HOME": str(installed / "home")}
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=work,
        env={**environment, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_installed_wheel_is_the_one_that_runs(installed: Path) -> None:
    where = "import orchestrator, train_jobs; print(orchestrator.__file__, train_jobs.__file__)"
    paths = os.pathsep.join([str(installed / "site"), sysconfig.get_path("purelib")])
    done = subprocess.run(
        [sys.executable, "-c", where],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert [Path(word).is_relative_to(installed) for word in done.stdout.split()] == [True, True], done


def test_azure_dry_run_has_environment_of_checkout(installed: Path) -> None:
    (installed / "work" / "notes").mkdir(parents=True, exist_ok=True)
    write_corpus(installed / "work" / "notes" / "text.txt")
    azure = ["--set", "azure.subscription_id=s", "--set", "azure.resource_group=g", "--set", "azure.workspace=w"]
    for preset, device in (("azure-t4", "gpu"), ("azure-cpu", "cpu")):
        words = ["plan", "pretrain", "-b", "azure", "--set", f"compute.preset={preset}", "--data", "notes", *azure]
        done = run(installed, *words, "-o", "json")
        assert done.returncode == 0, done.stderr
        expected = train_image(device)
        (asset,) = (one for one in json.loads(done.stdout)["request"]["assets"] if one["kind"] == "environments")
        assert (asset["name"], asset["version"]) == (expected.name, expected.version)


@pytest.mark.slow  # a small training
def test_wheel_trains_without_a_checkout(installed: Path) -> None:
    shown = run(installed, "--help")
    assert (shown.returncode, "submit" in shown.stdout) == (0, True), shown.stderr
    made = run(installed, "init", "project")
    assert made.returncode == 0, made.stderr
    planned = run(installed, "plan", "pretrain")
    assert planned.returncode == 0, planned.stderr
    spec = {**MICRO, "data": {**MICRO["data"], "text": [str(installed / "work" / "notes")]}}
    (installed / "work" / "notes").mkdir(parents=True, exist_ok=True)
    write_corpus(installed / "work" / "notes" / "text.txt")
    (installed / "work" / "micro.yaml").write_text(yaml.safe_dump(spec))
    done = run(installed, "submit", "pretrain", "-f", "micro.yaml", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "completed"
    mirrors = run(installed, "data", "fetch", "nothing-of-that-name")
    assert "error[" in mirrors.stderr
    assert "error[bug]" not in mirrors.stderr
