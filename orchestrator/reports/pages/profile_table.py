"""Where the time of the profiled steps went: a table of the stages of a step, one of the top operations, the trace."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.reports.charts.notation import number, percent
from orchestrator.runs.status import RunStatus
from orchestrator.support.html import Markup, element

SHOWN = 15  # operations; the file has more
FILE = "operations.json"  # beside the trace


def read_profile(trace: str | None) -> dict[str, Any] | None:
    """The table beside a trace; None where there is no trace, or not all of it yet."""
    with suppress(OSError, ValueError):
        document: dict[str, Any] | None = json.loads(Path(trace).with_name(FILE).read_text()) if trace else None
        return document
    return None


def profile_section(profile: Mapping[str, Any], status: RunStatus) -> list[Markup]:
    """A heading and what there is to say.

    Args:
        profile: what train_jobs/engine/reporting/profiler.py wrote.
        status: of the run.
    """
    first, last = profile["steps"]
    on_device = profile["device"] == "cuda"
    told = (
        f"Rank 0, steps {first:,} to {last:,}: {number(profile['step_ms'])} ms a step. Recorded steps take longer than"
        " others; shares are what to look at."
    )
    columns = ("Operation", "Calls", "CPU ms", *(["Device ms"] if on_device else []), "Share")
    return [
        element("h2", "Profile"),
        element(
            "div",
            element("p", told, class_="soft"),
            _table(("Stage of a step", "ms", "Share"), _stages(profile["stages"])),
            _table(columns, _operations(profile["operations"], on_device=on_device)),
            element("p", "Operations: over all these steps, without the time of those that they call.", class_="soft"),
            element("p", "Trace, for ui.perfetto.dev: ", element("code", status.trace or "")),
            class_="panel profile",
        ),
    ]


def _stages(stages: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [(stage["name"], number(stage["ms"]), percent(stage["share"])) for stage in stages]


def _operations(operations: Sequence[Mapping[str, Any]], *, on_device: bool) -> list[tuple[str, ...]]:
    return [
        (
            row["name"],
            f"{row['calls']:,}",
            number(row["self_cpu_ms"]),
            *([number(row["self_device_ms"])] if on_device else []),
            percent(row["share"]),
        )
        for row in operations[:SHOWN]
    ]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """A name, and figures to its right."""
    head = element("tr", *(element("th", label, scope="col") for label in header))
    body = (
        element("tr", element("td", element("code", row[0])), *(element("td", text) for text in row[1:]))
        for row in rows
    )
    return element("table", element("thead", head), element("tbody", *body))
