"""docs/architecture.md: the drawing matches the imports, and the described paths exist."""

from __future__ import annotations

import re
import sys

import pytest

from tests.docs.documents import ROOT

PAGE = ROOT / "docs" / "architecture.md"
HOP = re.compile(r"^\| (\d+) \| `([^`]+)`", re.MULTILINE)


@pytest.fixture
def architecture(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    import architecture

    yield architecture
    sys.modules.pop("architecture", None)


def test_drawing_matches_current_imports(architecture: object) -> None:
    """Sizes of packages may change; packages, layers and arrows must not."""
    shape = re.compile(r'<text class="size".*?</text>')
    drawn = shape.sub("", architecture.draw())  # type: ignore[attr-defined]
    kept = shape.sub("", (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8"))
    assert drawn == kept, "run: python docs/site/architecture.py"


def test_circular_imports_of_packages_are_refused(architecture: object) -> None:
    with pytest.raises(ValueError, match=r"a circle among \['a', 'b'\]"):
        architecture.floors({"a": {"b"}, "b": {"a"}, "c": set()})  # type: ignore[attr-defined]
    assert architecture.floors({"a": {"b"}, "b": set()}) == {"a": 1, "b": 0}  # type: ignore[attr-defined]


def test_every_step_is_a_file_and_every_path_is_short() -> None:
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")
    for section in sections:
        hops = HOP.findall(section)
        assert [file for _, file in hops if not (ROOT / file).is_file()] == []
    run = next(HOP.findall(section) for section in sections if section.startswith("From a spec to a run"))
    local = {file for _, file in run if "/azure/" not in file}
    azure = {file for _, file in run if "/local/" not in file}
    assert len(local) <= 8
    assert len(azure) <= 14
    assert len({file for _, file in run}) == len(run)
