"""Every promise about faults in the documentation names its evidence: a row of docs/faults.md, or a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
PROMISE = re.compile(
    r"bit-exact|bit for bit|byte-identical|nothing is lost|loses? nothing|exactly once|never (a|creates a) second"
    r"|never counted twice|never submitted twice|no trial runs twice|never loads a half",
    re.IGNORECASE,
)
EVIDENCE = re.compile(r"faults\.md#|tests/(e2e|faults|unit|pains|wire|contract)")


def sections(page: Path) -> list[str]:
    """Return the sections of a page, each with its heading."""
    return re.split(r"^(?=#+ )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_promises_name_their_evidence(page: Path) -> None:
    bare = [
        f"{section.splitlines()[0]}: {found.group()}"
        for section in sections(page)
        if (found := PROMISE.search(section)) and not EVIDENCE.search(section)
    ]
    assert not bare, "promises without a link to a row of docs/faults.md or to a test"


def test_evidence_exists() -> None:
    for page in PAGES:
        for path in re.findall(r"tests/[\w/]+\.py", page.read_text(encoding="utf-8")):
            assert (REPOSITORY / path).is_file(), f"{page.name} names {path}"
        for row in re.findall(r"faults\.md#([\w-]+)", page.read_text(encoding="utf-8")):
            (cells,) = re.findall(rf'<a id="{row}"></a>(.*)', (REPOSITORY / "docs" / "faults.md").read_text())
            assert int(cells.split(" | ")[2]) > 0, f"{page.name} links to {row}, which is not tried yet"
