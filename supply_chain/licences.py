"""Check that the licence of every locked package is known and allowed; `make lint` runs it.

    python -m supply_chain.licences           # check supply_chain/licences.tsv
    python -m supply_chain.licences --write   # take the packages of the lock files, and what installed ones state

A line of the table is a package, its SPDX expression and where that is stated: metadata, or a file that a person read.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import NamedTuple

from supply_chain.lock import CUDA_LOCK, LOCK, pins

TABLE = Path(__file__).with_name("licences.tsv")
METADATA = "metadata"
ALLOWED = {
    *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0"),
    *("CNRI-Python", "ISC", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib"),
}
"""Licences that allow use and redistribution in any project. MPL-2.0 asks for changes of its own files only."""
NVIDIA = {"LicenseRef-NVIDIA-Proprietary", "NOASSERTION"}
"""Allowed only for the libraries of torch's CUDA build. cuda-toolkit, which has no files of its own, states nothing."""
WORDS = {
    "apache": "Apache-2.0",
    "mozilla": "MPL-2.0",
    "mpl": "MPL-2.0",
    "isc": "ISC",
    "mit": "MIT",
    "python software": "PSF-2.0",
    "matplotlib": "PSF-2.0",
    "psf": "PSF-2.0",
    "3-clause": "BSD-3-Clause",
    "2-clause": "BSD-2-Clause",
    "bsd": "BSD-3-Clause",
    "nvidia": "LicenseRef-NVIDIA-Proprietary",
}
"""Words in the free text and the classifiers of older packages -> licence; the first that occurs decides."""


class Licence(NamedTuple):
    """A line of the table."""

    expression: str
    """SPDX expression."""
    source: str
    """Where it is stated."""


def read_table() -> dict[str, Licence]:
    """Return package -> licence."""
    lines = (line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines())
    return {name: Licence(expression, source) for name, expression, source in lines}


def locked() -> dict[str, str]:
    """Return name -> version of all packages of the lock files."""
    return {**pins(LOCK.read_text()), **pins(CUDA_LOCK.read_text())}


def stated(name: str) -> str | None:
    """Return the SPDX expression in the metadata of an installed package; None if it has none."""
    try:
        found = metadata(name)
    except PackageNotFoundError:
        return None
    if found.get("License-Expression"):
        return str(found["License-Expression"])
    text = (found.get("License") or "").strip().partition("\n")[0]
    if re.fullmatch(r"[\w.+-]+( (AND|OR|WITH) [\w.+-]+)*", text) and text.split()[0] in ALLOWED:
        return text
    classifiers = [line for line in found.get_all("Classifier") or [] if line.startswith("License :: ")]
    words = " ".join([*classifiers, text if len(text) < 60 else ""]).lower()
    return next((expression for word, expression in WORDS.items() if re.search(rf"\b{word}\b", words)), None)


def is_allowed(name: str, expression: str) -> bool:
    """Return whether the project may depend on a package under this licence."""
    cuda = name in pins(CUDA_LOCK.read_text())
    known = ALLOWED | NVIDIA if cuda else ALLOWED
    return all(any(one in known for one in part.split(" OR ")) for part in expression.split(" AND "))


def problems() -> Iterator[str]:
    """Yield a line for each package whose licence is unknown, not allowed, or another one than it states."""
    table, names = read_table(), locked()
    for name in sorted(names.keys() - table.keys()):
        yield f"{name}: no licence in {TABLE.name}: python -m supply_chain.licences --write"
    for name in sorted(table.keys() - names.keys()):
        yield f"{name}: not in the lock files, but in {TABLE.name}"
    for name in sorted(table.keys() & names.keys()):
        licence, found = table[name], stated(name)
        if not is_allowed(name, licence.expression):
            yield f"{name}: licence {licence.expression} is not allowed"
        if licence.source == METADATA and found is not None and found != licence.expression:
            yield f"{name}: {TABLE.name} has {licence.expression}, its metadata {found}"


def write_table() -> None:
    """Write the table for the packages of the lock files; lines that a person wrote stay."""
    before = read_table() if TABLE.is_file() else {}
    lines = []
    for name in sorted(locked()):
        known = before.get(name)
        if known is None or (known.source == METADATA and stated(name) is not None):
            known = Licence(stated(name) or "unknown", METADATA)
        lines.append("\t".join((name, *known)))
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Check or write the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table")
    if parser.parse_args().write:
        write_table()
    found = list(problems())
    print("\n".join(found) or f"{len(locked())} packages, all under allowed licences")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
