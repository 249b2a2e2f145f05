"""The profile in a report: read from the files next to the trace, shown as two tables."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from orchestrator.reports.pages.run_page import profile_section, read_profile
from orchestrator.runs.status import RunStatus
from orchestrator.support.html import join

TRACE = "/runs/demo/outputs/profile/rank-0.trace.json.gz"
PROFILE: dict[str, Any] = {
    "trace": "rank-0.trace.json.gz",
    "device": "cpu",
    "steps": [4, 8],
    "step_ms": 1234.5,
    "stages": [{"name": "data", "ms": 123.45, "share": 0.1}, {"name": "forward", "ms": 1111.05, "share": 0.9}],
    "operations": [
        {"name": "aten::<mm>", "calls": 1200, "self_cpu_ms": 800.0, "self_device_ms": 30.0, "share": 0.75},
        {"name": "aten::add_", "calls": 7, "self_cpu_ms": 0.25, "self_device_ms": 10.0, "share": 0.25},
    ],
}


class Tables(HTMLParser):
    """Rows of each table, and the text outside of them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.rest = ""
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "tr" in self._open:
            self.tables[-1][-1].append(data)
        else:
            self.rest += data


def render_profile(profile: dict[str, Any]) -> Tables:
    known = {"name": "demo", "handle": "local://demo", "created": 0.0, "run_hash": "12345678", "state": "completed"}
    return Tables(join(profile_section(profile, RunStatus.model_validate({**known, "trace": TRACE}))))


def test_stages_and_operations_are_tables_with_trace_path() -> None:
    page = render_profile(PROFILE)
    assert page.tables == [
        [["Stage of a step", "ms", "Share"], ["data", "123.5", "10.0%"], ["forward", "1,111", "90.0%"]],
        [
            ["Operation", "Calls", "CPU ms", "Share"],
            ["aten::<mm>", "1,200", "800.0", "75.0%"],
            ["aten::add_", "7", "0.2500", "25.0%"],
        ],
    ]
    assert "Rank 0, steps 4 to 8: 1,234 ms a step" in page.rest or "1,235 ms a step" in page.rest
    assert TRACE in page.rest


def test_device_has_its_own_column() -> None:
    _, operations = render_profile({**PROFILE, "device": "cuda"}).tables
    assert operations[0] == ["Operation", "Calls", "CPU ms", "Device ms", "Share"]
    assert operations[1] == ["aten::<mm>", "1,200", "800.0", "30.00", "75.0%"]


def test_only_the_top_operations_are_shown() -> None:
    many = [{**PROFILE["operations"][0], "name": str(number)} for number in range(30)]
    _, operations = render_profile({**PROFILE, "operations": many}).tables
    assert [row[0] for row in operations[1:]] == [str(number) for number in range(15)]


@pytest.mark.parametrize("content", [None, "", "{"])
def test_missing_table_is_omitted(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "operations.json").write_text(content)
    assert read_profile(str(tmp_path / "rank-0.trace.json.gz")) is None
    assert read_profile(None) is None


def test_table_is_read_next_to_the_trace(tmp_path: Path) -> None:
    (tmp_path / "operations.json").write_text(json.dumps(PROFILE))
    assert read_profile(str(tmp_path / "rank-0.trace.json.gz")) == PROFILE
