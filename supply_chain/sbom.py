"""Write the bill of materials of a release: the packages of the lock files as CycloneDX 1.6, validated.

    make sbom    # python -m supply_chain.sbom dist/sbom.json

Each package has version, licence, and the SHA-256 of every file that the lock allows. Dependencies between packages
come from the metadata of the installed ones; the libraries of torch's CUDA build are rarely installed, and have none.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from supply_chain.licences import locked, read_table
from supply_chain.lock import CUDA_LOCK, LOCK, ROOT, pins


def locked_hashes(text: str) -> dict[str, list[str]]:
    """Return package -> SHA-256 of its files in a lock file."""
    blocks = re.split(r"\n(?=\S)", text)
    entries = [block for block in blocks if "==" in block and not block.startswith("#")]
    return {canonicalize_name(block.partition("==")[0]): re.findall(r"sha256:(\w{64})", block) for block in entries}


def needed_by(name: str, known: set[str]) -> list[str]:
    """Return the locked packages that an installed package needs; empty if it is not installed."""
    try:
        needed = [Requirement(text) for text in requires(name) or []]
    except PackageNotFoundError:
        return []
    used = [one for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return sorted({canonicalize_name(one.name) for one in used} & known)


def make_bom() -> Bom:
    """Return the bill of materials of this checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    licences, factory = read_table(), LicenseFactory()
    versions = {**pins(CUDA_LOCK.read_text()), **pins(LOCK.read_text())}
    hashes = {**locked_hashes(CUDA_LOCK.read_text()), **locked_hashes(LOCK.read_text())}
    components = {}
    for name, version in versions.items():
        digests = [HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in hashes[name]]
        place = XsUri(f"https://pypi.org/project/{name}/{version}/")
        expression = licences[name].expression
        components[name] = Component(
            name=name,
            version=version,
            type=ComponentType.LIBRARY,
            bom_ref=f"{name}=={version}",
            purl=PackageURL("pypi", name=name, version=version),
            licenses=() if expression == "NOASSERTION" else [factory.make_from_string(expression)],
            external_references=[ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=place, hashes=digests)],
        )
    root = Component(
        name=project["name"],
        version=project["version"],
        type=ComponentType.APPLICATION,
        bom_ref=project["name"],
        licenses=[factory.make_from_string(project["license"])],
    )
    bom = Bom(components=components.values())
    bom.metadata.component = root
    direct = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    bom.register_dependency(root, [components[name] for name in sorted(direct)])
    for name, component in components.items():
        needed = needed_by(name, set(components))
        if name == "torch":
            needed = sorted({*needed, *pins(CUDA_LOCK.read_text())})
        bom.register_dependency(component, [components[one] for one in needed])
    return bom


def main(argv: list[str]) -> int:
    """Write and validate the file; return the exit code."""
    path = Path(argv[0] if argv else "dist/sbom.json")
    text = JsonV1Dot6(make_bom()).output_as_string(indent=1)
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        print(f"not valid CycloneDX 1.6: {problem}", file=sys.stderr)
        return 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
    print(f"written: {path}, {len(locked())} packages, valid CycloneDX 1.6")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
