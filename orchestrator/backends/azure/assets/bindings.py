"""What a job's configuration names on the machine: `${{inputs.NAME}}` becomes the path of an input there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from orchestrator.jobs.inputs import START, At

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan

JOB = "job"  # input with the job's own documents, and the small files beside them
NAMED_BY_US = (START, "stores", JOB)  # what lies below these needs no quotes


def settings(plan: Plan) -> Iterator[str]:
    """Yield `path.to.key=value` for each value of the configuration that lies elsewhere on the machine."""
    folders = {output.name: f"${{{{outputs.{output.name}}}}}" for output in plan.makes}
    folders |= {one.name: f"${{{{inputs.{JOB if one.inline else one.name}}}}}" for one in plan.needs.inputs}
    plain = {*NAMED_BY_US, *(one.name for one in plan.needs.inputs if one.inline)}
    for key, value in plan.needs.placed.items():
        if isinstance(value, At) and (value.name in plain or not value.below):
            yield f"{key}={_path(value, folders)}"
        else:
            yield f"{key}={_yaml(value, folders)}"


def _yaml(value: Any, folders: dict[str, str]) -> str:
    """A value in YAML's flow style."""
    if isinstance(value, At):
        return f'"{_path(value, folders)}"'
    if isinstance(value, list):
        return f"[{', '.join(_yaml(one, folders) for one in value)}]"
    if isinstance(value, dict):  # `path` plain, as people write it
        places = [f"{key}: {_yaml(one, folders)}" for key, one in value.items() if _holds_path(one)]
        more = {key: one for key, one in value.items() if not _holds_path(one)}
        return f"{{{', '.join([*places, *([json.dumps(more)[1:-1]] if more else [])])}}}"
    return json.dumps(value)


def _holds_path(value: Any) -> bool:
    return isinstance(value, At) or (isinstance(value, list) and any(_holds_path(one) for one in value))


def _path(at: At, folders: dict[str, str]) -> str:
    """The path of something below an input or output, as it stands between YAML's quotation marks."""
    below = at.below.replace("\\", "\\\\").replace('"', '\\"')
    return folders[at.name] + (f"/{below}" if below else "")
