"""Write requirements*.lock: every package of a user's installation with the hashes of its files.

    make lock                            # python -m supply_chain.lock
    python -m supply_chain.lock --check  # fails if the files differ from the package index

pyproject.toml names the packages and constraints.txt, the only place with exact versions, their versions. uv resolves
them for all Python versions together. The hashes are those of the package index, of wheels for Linux on x86_64 only.
PyPI has torch's CUDA build. Hashes of its CPU build, which has another index, are in supply_chain/torch-cpu.sha256, in
the format of sha256sum. pip prefers a file whose hash the index states, so that build has a lock file of its own.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
LOCK, CUDA_LOCK, CPU_LOCK = (ROOT / f"requirements{name}.lock" for name in ("", "-cuda", "-cpu"))
TORCH_CPU = Path(__file__).with_name("torch-cpu.sha256")
CUDA_SECTION = "# torch's CUDA build"  # in constraints.txt: what follows belongs to requirements-cuda.lock
PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
GLIBC = range(5, 40)
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
HEADER = """\
# Written by `make lock` from pyproject.toml and constraints.txt; do not edit.
# {what}
# Wheels for Linux on x86_64 and {pythons}, installed by `make .venv/.user` with --require-hashes.
--only-binary :all:
"""


def pins(text: str) -> dict[str, str]:
    """Return name -> version of the lines `name==version` of a text."""
    lines = (line.split("#")[0].split(";")[0].strip(" \\") for line in text.splitlines())
    return {
        canonicalize_name(name): version for name, found, version in (line.partition("==") for line in lines) if found
    }


def cuda_names(constraints: str) -> set[str]:
    """Return the packages that only torch's CUDA build needs."""
    return set(pins(constraints.partition(CUDA_SECTION)[2]))


def resolve() -> list[dict[str, Any]]:
    """Return the packages of a user's installation with their files, as uv finds them in the package index.

    Raises:
        subprocess.CalledProcessError: uv failed; its message is on stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        needed, found = Path(folder, "needed.in"), Path(folder, "pylock.toml")
        build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
        needed.write_text("\n".join(build) + "\n")
        command = [sys.executable, "-m", "uv", "--no-config", "pip", "compile", "--quiet", "--universal"]
        command += ["--python-version", ".".join(map(str, PYTHONS[0])), "--constraint", str(CONSTRAINTS)]
        command += ["--output-file", str(found), str(ROOT / "pyproject.toml"), str(needed)]
        subprocess.run(command, check=True)
        packages: list[dict[str, Any]] = tomllib.loads(found.read_text())["packages"]
    return packages


def environment(python: tuple[int, int]) -> dict[str, str]:
    """Return the values of markers for one Python version on Linux, x86_64."""
    version = ".".join(map(str, python))
    machine = {"platform_machine": "x86_64", "platform_system": "Linux", "sys_platform": "linux", "os_name": "posix"}
    names = {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
    return {"python_version": version, "python_full_version": f"{version}.0", **machine, **names}


def tags_of(python: tuple[int, int]) -> frozenset[Tag]:
    """Return the tags of the wheels that one Python version installs."""
    interpreter = f"cp{python[0]}{python[1]}"
    return frozenset(
        [*cpython_tags(python, [interpreter], PLATFORMS), *compatible_tags(python, interpreter, PLATFORMS)]
    )


def hashes_of(package: dict[str, Any]) -> tuple[list[str], set[tuple[int, int]]]:
    """Return the SHA-256 of the usable wheels of a package, and the Python versions that need it but have no wheel."""
    marker = Marker(package["marker"]) if "marker" in package else None
    needing = [python for python in PYTHONS if marker is None or marker.evaluate(environment(python))]
    hashes, lacking = set(), set()
    for python in needing:
        wanted = tags_of(python)
        usable = [
            wheel["hashes"]["sha256"]
            for wheel in package.get("wheels", [])
            if parse_wheel_filename(wheel["url"].rsplit("/", 1)[1].replace("%2B", "+"))[3] & wanted
        ]
        hashes |= set(usable)
        lacking |= set() if usable else {python}
    return sorted(hashes), lacking


def cpu_hashes(version: str) -> list[str]:
    """Return the known hashes of torch's CPU build of a version."""
    pairs = (line.split() for line in TORCH_CPU.read_text().splitlines())
    return [digest for digest, name in pairs if str(parse_wheel_filename(name)[1]) == f"{version}+cpu"]


def cpu_lock(version: str) -> str:
    """Return the lock file of torch's CPU build: an entry for each Python version whose wheel has a known hash."""
    lines = ["# Written by `make lock` from supply_chain/torch-cpu.sha256; do not edit."]
    lines += ["# The CPU build of torch. `make .venv/.user` prefers it if an index that pip is configured with has it."]
    for digest, name in (line.split() for line in TORCH_CPU.read_text().splitlines()):
        _, found, _, tags = parse_wheel_filename(name)
        interpreter = next(iter(tags)).interpreter
        marker = f"python_version == '{interpreter[2]}.{interpreter[3:]}' and platform_machine == 'x86_64'"
        if str(found) == f"{version}+cpu":
            lines.append(f"torch=={found} ; {marker} \\\n    --hash=sha256:{digest}")
    return "\n".join(lines) + "\n"


def entry(package: dict[str, Any], hashes: Sequence[str]) -> str:
    """Return the lines of a package in a lock file."""
    lowest = f"python_full_version >= '{PYTHONS[0][0]}.{PYTHONS[0][1]}'"
    marker = re.sub(rf"^{re.escape(lowest)}( and )?", "", package.get("marker", ""))
    first = f"{package['name']}=={package['version']}" + (f" ; {marker}" if marker else "")
    return " \\\n    ".join([first, *(f"--hash=sha256:{digest}" for digest in hashes)])


def lock_files(packages: Sequence[dict[str, Any]]) -> dict[Path, str]:
    """Return path -> content of the lock files.

    Raises:
        SystemExit: a package has no wheel for any Python version, or constraints.txt does not pin it.
    """
    constraints = CONSTRAINTS.read_text()
    cuda, pinned = cuda_names(constraints), pins(constraints)
    entries: dict[bool, list[str]] = {False: [], True: []}
    lacking: set[tuple[int, int]] = set()
    for package in sorted(packages, key=lambda package: package["name"]):
        name = package["name"]
        hashes, without = hashes_of(package)
        if not hashes and not without:
            continue  # other systems only
        if pinned.get(name) != package["version"] or without >= {PYTHONS[0]}:
            raise SystemExit(f"{name} {package['version']}: not pinned in constraints.txt, or without a wheel")
        for python in without:
            print(f"{name} {package['version']} has no wheel for Python {'.'.join(map(str, python))}", file=sys.stderr)
        lacking |= without
        if name == "torch":
            hashes = [*hashes, *cpu_hashes(package["version"])]
        entries[name in cuda].append(entry(package, hashes))
    covered = "Python " + ", ".join(f"{major}.{minor}" for major, minor in PYTHONS if (major, minor) not in lacking)
    known = [line.split()[1] for line in TORCH_CPU.read_text().splitlines()]
    whats = {
        LOCK: f"The packages of a user's installation. Of torch's CPU build it has only {', '.join(known)}.",
        CUDA_LOCK: "The packages that torch's CUDA build needs in addition to requirements.lock.",
    }
    files = {
        path: HEADER.format(what=what, pythons=covered) + "\n".join(entries[path is CUDA_LOCK]) + "\n"
        for path, what in whats.items()
    }
    return {**files, CPU_LOCK: cpu_lock(pinned["torch"])}


def disagreements() -> Iterator[str]:
    """Yield how pyproject.toml, constraints.txt and the lock files contradict each other; needs no network."""
    constraints = CONSTRAINTS.read_text()
    pinned, cuda = pins(constraints), cuda_names(constraints)
    base, extra = (pins(path.read_text()) for path in (LOCK, CUDA_LOCK))
    for name, version in {**base, **extra}.items():
        if pinned.get(name) != version:
            yield f"{name}: the lock has {version}, constraints.txt {pinned.get(name)}"
    if CPU_LOCK.read_text() != cpu_lock(pinned["torch"]):
        yield "requirements-cpu.lock is not that of supply_chain/torch-cpu.sha256"
    if set(extra) != cuda or set(base) & cuda:
        yield f"requirements-cuda.lock and the last section of constraints.txt differ: {sorted(set(extra) ^ cuda)}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for text in [*project["project"]["dependencies"], *project["build-system"]["requires"]]:
        requirement = Requirement(text)
        found = base.get(canonicalize_name(requirement.name))
        if found is None or found not in requirement.specifier:
            yield f"pyproject.toml needs {text}, the lock has {found}"


def main() -> int:
    """Write the lock files, or compare them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file would change")
    arguments = parser.parse_args()
    stale = {
        path: text for path, text in lock_files(resolve()).items() if not path.is_file() or path.read_text() != text
    }
    if arguments.check:
        print("\n".join(f"{path.name} is out of date: make lock" for path in stale) or "lock files: up to date")
        return bool(stale)
    for path, text in stale.items():
        path.write_text(text)
        print(f"written: {path.name}, {len(pins(text))} packages")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
