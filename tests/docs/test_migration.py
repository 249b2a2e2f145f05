"""The page for users of other projects: it names every flag of theirs, with a key that exists or a reason."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from documents import ROOT
from pydantic import BaseModel
from transformers import TrainingArguments

from orchestrator.jobs.registry import job_kind
from orchestrator.jobs.scaffold import spec_models
from orchestrator.specs.reference import keys
from train_jobs.config.other_tools import OURS

PAGE = ROOT / "docs" / "migration.md"
HEADER = "| setting | key | difference |"
FLAGS = yaml.safe_load((Path(__file__).parent / "foreign_flags.yaml").read_text(encoding="utf-8"))
TRAINER = "Hugging Face: TrainingArguments"


class Line(NamedTuple):
    """A line of a table."""

    setting: str
    keys: str
    difference: str


def table_lines(heading: str | None = None) -> Iterator[Line]:
    """Return the lines of the tables of settings, or of the one below a heading."""
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        for line in text.partition(HEADER)[2].splitlines():
            if heading in (None, title) and line.startswith("| ") and not line.startswith("| ---"):
                yield Line(*(cell.strip() for cell in line.strip("|").split("|")))


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


def test_hints_of_the_product_are_those_of_the_page() -> None:
    everywhere = {key.name for model, _ in spec_models().values() for key in keys(model)}
    assert {key for keys_of_one in OURS.values() for key in keys_of_one} <= everywhere
    named: dict[str, str] = {}
    for line in table_lines():
        for flag in re.findall(r"`(?:--)?([\w-]+)`", line.setting) if line.keys else []:
            named[flag] = named.get(flag, "") + line.keys
    on_page = OURS.keys() & named.keys()
    assert len(on_page) > 25
    assert {word for word in on_page if not any(f"{key}`" in named[word] for key in OURS[word])} == set()


@pytest.mark.parametrize("heading", FLAGS)
def test_page_names_exactly_the_flags_of_the_programs(heading: str) -> None:
    existing = {flag for flags in FLAGS[heading].values() for flag in flags.split()}
    if heading == TRAINER:
        existing |= {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    named = [flag for line in table_lines(heading) for flag in re.findall(r"`--([\w-]+)`", line.setting)]
    assert sorted(named) == sorted(existing), "each flag once, and no flag that does not exist"
