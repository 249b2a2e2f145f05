"""Checks of Python and the installed packages, without importing them."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from orchestrator.specs.compute import visible_gpus
from orchestrator.support.finding import Finding, fail, ok, warn

DISTRIBUTION = "bert-orchestrator"
LISTED = 5
TORCH_SECONDS = 120  # a cold disk takes a minute to read torch's two gigabytes
# A process of its own: loading torch takes seconds, and a broken driver may hang or kill the process that loads it.
PROBE = """
import json, torch
from train_jobs.config import MachineError
from train_jobs.engine.runtime.devices import resolve_precision
from train_jobs.engine.runtime.gpu_check import require_usable_gpu
device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
if device.type == "cuda":
    try:
        require_usable_gpu(device)  # as a job does: it adapts the allocator to the GPU
    except MachineError as problem:
        raise SystemExit("; ".join([*map(str, problem.facts.values()), problem.fix]))
print(json.dumps({"device": device.type, "names": names, "precision": resolve_precision("auto", device)}))
"""


class Need(NamedTuple):
    """An unmet requirement."""

    requirement: str
    dependent: str
    found: str | None


def python() -> Finding:
    """Check the version of Python."""
    here = platform.python_version()
    try:
        needed = distribution(DISTRIBUTION).metadata["Requires-Python"]
    except PackageNotFoundError:
        return warn("python", f"{here}; {DISTRIBUTION} is not installed", "python -m pip install -e .")
    if not SpecifierSet(needed).contains(here, prereleases=True):
        return fail("python", f"{here}, needed {needed}", f"create a virtual environment with Python {needed}")
    return ok("python", f"{here} at {sys.executable}")


def requirements() -> Iterator[Finding]:
    """Check that all required packages are installed, in compatible versions."""
    try:
        missing, count = unmet(DISTRIBUTION)
    except PackageNotFoundError:
        return  # `python` reports it
    if not missing:
        yield ok("packages", f"{count} installed, in compatible versions")
        return
    shown = [f"{need.requirement} (for {need.dependent}): {need.found or 'not installed'}" for need in missing]
    more = [f"and {len(missing) - LISTED} more"] if len(missing) > LISTED else []
    names = " ".join(f"'{requirement}'" for requirement in sorted({need.requirement for need in missing}))
    yield fail("packages", "; ".join([*shown[:LISTED], *more]), f"{sys.executable} -m pip install {names}")


def unmet(name: str) -> tuple[list[Need], int]:
    """Return requirements, direct and indirect, that are missing or of another version; and the number of packages."""
    problems: set[Need] = set()
    seen: set[str] = set()
    waiting: list[tuple[Distribution, frozenset[str]]] = [(distribution(name), frozenset())]
    while waiting:
        dependent, extras = waiting.pop()
        for text in dependent.requires or []:
            requirement = Requirement(text)
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
                continue
            key, wanted = canonicalize_name(requirement.name), f"{requirement.name}{requirement.specifier}"
            try:
                found = distribution(key)
            except PackageNotFoundError:
                problems.add(Need(wanted, dependent.name, None))
                continue
            if not requirement.specifier.contains(Version(found.version), prereleases=True):
                problems.add(Need(wanted, dependent.name, found.version))
            # a package that was seen without extras is visited again for its extras, which add requirements
            if key not in seen or requirement.extras:
                seen.add(key)
                waiting.append((found, frozenset(requirement.extras)))
    return sorted(problems, key=str), len(seen)


def torch_build() -> Finding:
    """Check the version of torch, and the CUDA that it was built for."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return fail("torch", "not installed", f"{sys.executable} -m pip install torch")
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError as problem:
        return fail("torch", f"damaged: {problem}", f"{sys.executable} -m pip install --force-reinstall torch")
    # read as text: importing torch here would take seconds
    version, cuda = (re.search(rf"^{name}\b.*?=\s*['\"]?([^'\"\n]+)", text, re.M) for name in ("__version__", "cuda"))
    built = cuda[1] if cuda and cuda[1] != "None" else None
    return ok("torch", f"{version[1] if version else '?'}, {f'built for CUDA {built}' if built else 'CPU build'}")


def torch_devices(environ: Mapping[str, str], seconds: float = TORCH_SECONDS) -> Finding:
    """Check the devices that torch finds, and the precision that `auto` resolves to."""
    try:
        answer = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, env=dict(environ), timeout=seconds
        )
        found = json.loads(answer.stdout)
    except subprocess.TimeoutExpired:
        return fail("devices", f"torch did not answer within {seconds:g} s", "nvidia-smi, and dmesg for driver errors")
    except ValueError:
        words = answer.stderr.strip().splitlines() or ["no message"]
        return fail("devices", f"torch cannot compute: {words[-1]}", f'{os.fspath(sys.executable)} -c "import torch"')
    gpus, names = visible_gpus(environ), found["names"]
    if gpus > len(names):
        return fail("devices", f"{gpus} GPUs are visible, torch finds {len(names)}", "install a CUDA build of torch")
    what = f"{len(names)} x {names[0]}" if names else "CPU"
    return ok("devices", f"{what}, precision auto is {found['precision']}")
