"""What a run was made from: recipe, changes, data, code, environment; and the commands that go on with it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.jobs.registry import DEFAULT, run_kind
from orchestrator.reports.charts.notation import counted
from orchestrator.reports.pages.tuning import tuning_rows
from orchestrator.runs.status import RunStatus
from orchestrator.support.formatting import bytes_text
from orchestrator.support.html import Markup, element

TIMES = " \u00d7 "
VARIABLES = "environment.variables."  # may hold secrets, and a report is passed on
SHOWN_APART = {"recipe", "name"}  # changed values that are shown elsewhere


def plan_table(plan: Mapping[str, Any]) -> Markup:
    """The plan, one subject a row."""
    rows = (element("tr", element("th", label, scope="row"), element("td", *content)) for label, content in _rows(plan))
    return element("div", element("table", element("tbody", *rows)), class_="panel")


def commands(status: RunStatus) -> Markup:
    """What to type next, ready to paste."""
    handle = shlex.quote(status.handle)
    verbs = ["logs", "status"]
    if status.state.resumable:
        verbs.insert(0, "resume")
    if not status.state.terminal:
        verbs.append("cancel")
    return element("pre", element("code", "\n".join(f"orchestrator {verb} {handle}" for verb in verbs)))


def _rows(plan: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    job, spec, data, snapshot = plan["job"], plan["spec"], plan["data"], plan["snapshot"]
    yield "Recipe", _recipe(spec["recipe"], plan["changes"].get("recipe"))
    yield "Changed", [_changes(plan["changes"])]
    if run_kind(spec.get("kind", DEFAULT)).scored:
        yield from tuning_rows(plan)
    else:
        yield "Model", [_model(job["model"], plan["estimates"])]
        yield "Batch", _batch(plan)
    yield "Compute", [_compute(plan["compute"])]
    yield "Data", [data["name"], _content(data["files"], data["total_bytes"], "sha256", data["sha256"])]
    if parent := plan.get("parent"):
        yield "Starts from", [parent["name"], element("div", "lineage ", element("code", parent["hash"]))]
    yield "Code", [_content(snapshot["files"], snapshot["total_bytes"], "snapshot", snapshot["digest"])]
    yield "Environment", [", ".join(f"{package} {version}" for package, version in plan["environment"].items())]
    yield "Run hash", [element("code", plan["run_hash"])]
    if plan["warnings"]:
        yield "Warnings", [element("div", warning) for warning in plan["warnings"]]


def _recipe(recipe: str, change: Mapping[str, Any] | None) -> list[str]:
    return [recipe, *([element("span", f" ({change['from']})", class_="soft")] if change else [])]


def _changes(changes: Mapping[str, Mapping[str, Any]]) -> Markup:
    """Key, value and origin of each changed value."""
    rows = [
        element(
            "tr",
            element("th", element("code", key), scope="row"),
            element("td", element("code", _shown(key, change["value"]))),
            element("td", change["from"], class_="soft"),
        )
        for key, change in changes.items()
        if key not in SHOWN_APART
    ]
    return element("table", element("tbody", *rows)) if rows else element("span", "nothing", class_="soft")


def _shown(key: str, value: object) -> str:
    if key.startswith(VARIABLES):
        return "not shown"
    return value if isinstance(value, str) else json.dumps(value)


def _model(model: Mapping[str, Any], estimates: Mapping[str, Any]) -> str:
    return (
        f"{model['num_hidden_layers']} layers of width {model['hidden_size']}, "
        f"{model['num_attention_heads']} attention heads, {estimates['parameters']:,} parameters (estimate)"
    )


def _batch(plan: Mapping[str, Any]) -> list[str]:
    """global = micro x accumulation x world, in sequences per optimizer step."""
    train = plan["job"]["train"]
    if plan["accumulation_steps"] is None:
        found = f" sequences a step on {counted(plan['world_size'], 'process', 'processes')}; micro batch: auto"
        return [f"{train['global_batch_size']:,}", element("span", found, class_="soft")]
    factors = (train["micro_batch_size"], plan["accumulation_steps"], plan["world_size"])
    equation = f"{train['global_batch_size']:,} = {TIMES.join(f'{factor:,}' for factor in factors)}"
    meaning = f" sequences a step: global = {TIMES.join(('micro', 'accumulation', 'world'))}"
    return [equation, element("span", meaning, class_="soft")]


def _compute(compute: Mapping[str, Any]) -> str:
    return (
        f"{counted(compute['nodes'], 'node')}{TIMES}{counted(compute['processes_per_node'], 'process', 'processes')}, "
        f"{counted(compute['threads_per_process'], 'thread')} each, on {compute['device'].upper()}"
    )


def _content(files: int, size: int, what: str, digest: str) -> Markup:
    return element("div", f"{counted(files, 'file')}, {bytes_text(size)}, {what} ", element("code", digest))
