"""Lock files, licences and bill of materials: one source of versions, complete, and a changed file is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from cyclonedx.output.json import JsonV1Dot6
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from supply_chain import licences, lock, sbom

ROOT = Path(__file__).resolve().parents[2]


def entries(path: Path) -> list[str]:
    """Return the entries of a lock file, each with its hashes."""
    return [block for block in re.split(r"\n(?=\S)", path.read_text()) if block[0] not in "#-"]


def test_lock_constraints_and_pyproject_agree() -> None:
    assert list(lock.disagreements()) == []


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("constraints.txt", "rich==15.0.0", "rich==14.0.0"),
        ("requirements.lock", "rich==15.0.0", "rich==14.0.0"),
        ("pyproject.toml", '"rich>=13.7"', '"rich>=16"'),
        ("pyproject.toml", '"rich>=13.7"', '"rich>=13.7", "absent-package"'),
        ("requirements-cuda.lock", "triton==", "other=="),
    ],
)
def test_disagreement_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str) -> None:
    for path in (lock.CONSTRAINTS, lock.LOCK, lock.CUDA_LOCK, lock.CPU_LOCK, ROOT / "pyproject.toml"):
        text = path.read_text()
        assert path.name != file or old in text
        (tmp_path / path.name).write_text(text.replace(old, new) if path.name == file else text)
    for name in ("CONSTRAINTS", "LOCK", "CUDA_LOCK", "CPU_LOCK"):
        monkeypatch.setattr(lock, name, tmp_path / getattr(lock, name).name)
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    assert list(lock.disagreements())


@pytest.mark.parametrize("path", [lock.LOCK, lock.CUDA_LOCK, lock.CPU_LOCK], ids=lambda path: path.name)
def test_every_entry_is_pinned_and_hashed(path: Path) -> None:
    found = entries(path)
    assert found
    for entry in found:
        first, *hashes = entry.replace("\\\n", "\n").splitlines()
        assert re.match(r"[a-z0-9-]+==[\w.+]+", first), first
        assert all(re.fullmatch(r"\s+--hash=sha256:[0-9a-f]{64}\s*", line) for line in hashes)
        assert hashes, first


def test_lock_is_complete_without_resolving() -> None:
    """The installation is `--no-deps`, so a package that the lock lacks would be missing."""
    known = lock.pins(lock.LOCK.read_text())
    for name in known:
        try:
            needed = [Requirement(text) for text in requires(name) or []]
        except PackageNotFoundError:
            pytest.fail(f"{name} is locked, but not installed here")
        for one in needed:
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                version = known.get(canonicalize_name(one.name))
                assert version is not None, f"{name} needs {one}"
                assert one.specifier.contains(version, prereleases=True), f"{name} needs {one}, locked {version}"


def test_changed_wheel_is_refused(tmp_path: Path) -> None:
    """A file with the right name and version, but other content, as a compromised mirror would send it."""
    (entry,) = (entry for entry in entries(lock.LOCK) if entry.startswith("idna=="))
    version = entry.split()[0].partition("==")[2]
    facts = f"idna-{version}.dist-info"
    with zipfile.ZipFile(tmp_path / f"idna-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("idna/__init__.py", "raise SystemExit('executed')")
        wheel.writestr(f"{facts}/METADATA", f"Metadata-Version: 2.1\nName: idna\nVersion: {version}\n")
        wheel.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{facts}/RECORD", "")
    (tmp_path / "one.lock").write_text("--only-binary :all:\n" + entry + "\n")
    (recipe,) = re.findall(r"^LOCKED := \$\(PIP_INSTALL\) (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(tmp_path)]
    command += ["--ignore-installed", "--target", str(tmp_path / "there"), *recipe.split(), "-r"]
    refused = subprocess.run([*command, str(tmp_path / "one.lock")], capture_output=True, text=True)
    assert (refused.returncode, "DO NOT MATCH THE HASHES" in refused.stderr) == (1, True), refused.stderr
    assert not list((tmp_path / "there").glob("idna*"))


def test_licences_are_known_and_allowed() -> None:
    assert list(licences.problems()) == []


@pytest.mark.parametrize(
    ("name", "expression", "allowed"),
    [
        ("rich", "MIT", True),
        ("rich", "GPL-3.0-only", False),
        ("rich", "GPL-3.0-only OR MIT", True),
        ("rich", "MIT AND AGPL-3.0-only", False),
        ("rich", "LicenseRef-NVIDIA-Proprietary", False),
        ("nvidia-cublas", "LicenseRef-NVIDIA-Proprietary", True),
    ],
)
def test_licence_is_judged(name: str, expression: str, allowed: bool) -> None:
    assert licences.is_allowed(name, expression) is allowed


def test_sbom_names_every_file() -> None:
    document = json.loads(JsonV1Dot6(sbom.make_bom()).output_as_string())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    found = {one["name"]: one for one in document["components"]}
    assert {name: one["version"] for name, one in found.items()} == licences.locked()
    assert all("licenses" in one for name, one in found.items() if name != "cuda-toolkit")
    written = {item["content"] for one in found.values() for item in one["externalReferences"][0]["hashes"]}
    locked = {digest for path in (lock.LOCK, lock.CUDA_LOCK) for digest in re.findall(r"\w{64}", path.read_text())}
    assert written == locked
    needs = {one["ref"]: one.get("dependsOn", []) for one in document["dependencies"]}
    assert any(ref.startswith("torch==") for ref in needs["bert-orchestrator"])
    assert any(ref.startswith("nvidia-cublas==") for ref in needs[f"torch=={found['torch']['version']}"])


def required() -> set[str]:
    """Return the packages that pyproject.toml requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.long)], ids=["required", "whole"])
def test_sbom_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    """The validator needs a tenth of a second for each package, so the quick test has those of pyproject.toml alone."""
    if not whole:
        kept = [entry for entry in entries(lock.LOCK) if entry.partition("==")[0] in required()]
        (tmp_path / "some.lock").write_text("\n".join(kept))
        (tmp_path / "none.lock").touch()
        monkeypatch.setattr(sbom, "LOCK", tmp_path / "some.lock")
        monkeypatch.setattr(sbom, "CUDA_LOCK", tmp_path / "none.lock")
    assert sbom.main([str(tmp_path / "sbom.json")]) == 0
    found = {one["name"] for one in json.loads((tmp_path / "sbom.json").read_text())["components"]}
    assert found == (set(licences.locked()) if whole else required())


def test_audit_without_service_is_not_green(tmp_path: Path) -> None:
    """An unreachable proxy stands for a service that does not answer."""
    if subprocess.run([sys.executable, "-c", "import pip_audit"], capture_output=True).returncode:
        pytest.skip("pip-audit is not installed: make audit")
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "supply_chain.audit"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=nowhere)
    assert (done.returncode, "NOT CHECKED" in done.stdout) == (3, True), done.stderr
