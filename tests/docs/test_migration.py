"""The page for users of other projects: every key that it names exists, and every setting has a key or a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from documents import ROOT
from pydantic import BaseModel

from orchestrator.jobs.registry import job_kind

PAGE = ROOT / "docs" / "migration.md"
HEADER = "| setting | key | difference |"


class Line(NamedTuple):
    """A line of a table."""

    setting: str
    keys: str
    difference: str


def table_lines() -> Iterator[Line]:
    for text in PAGE.read_text(encoding="utf-8").splitlines():
        if text.startswith("| ") and not text.startswith("| ---") and text != HEADER:
            yield Line(*(cell.strip() for cell in text.strip("|").split("|")))


def named_keys() -> list[tuple[str, str]]:
    """Return kind of job and dotted key of each key."""
    found = [key for line in table_lines() for key in re.findall(r"`([^`]+)`", line.keys)]
    return sorted({("pretrain", key) if ": " not in key else tuple(key.split(": ")) for key in found})  # type: ignore[misc]


@pytest.mark.parametrize(("kind", "key"), named_keys())
def test_named_key_exists(kind: str, key: str) -> None:
    section: object = job_kind(kind).spec
    for part in key.split("."):
        assert isinstance(section, type), key
        assert issubclass(section, BaseModel), key
        assert part in section.model_fields, f"{kind} has no key {key}"
        section = section.model_fields[part].annotation


def test_every_setting_has_a_key_or_a_reason() -> None:
    lines = list(table_lines())
    assert len(lines) > 60
    unexplained = [line.setting for line in lines if not line.keys and not line.difference]
    assert unexplained == []
    assert [line.setting for line in lines if not line.setting] == []
    named = "|".join(line.difference for line in lines)
    assert "none: " in named
    both = [line.setting for line in lines if line.keys and line.difference.startswith("none")]
    assert both == [], "a setting with a key has an equivalent"
