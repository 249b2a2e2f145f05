"""The body of a job file of `az ml`: ours compared with that of Azure's SDK."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from orchestrator.backends.azure.wire.control_plane import quiet, rest_body
from orchestrator.client import Orchestrator
from orchestrator.support.errors import SpecError


def sdk_body(path: Path, name: str) -> Any:
    """Return the body of a file as Azure's SDK alone makes it, or its error."""
    from azure.ai.ml import load_job

    quiet()
    try:
        job = load_job(path)
        job.name = job.name or name
        body = rest_body(job)
    except Exception as problem:  # the SDK's errors have no common base
        return problem
    work = body["properties"].get("trial", body["properties"])
    if not isinstance(environment := work["environmentId"], str):
        work["environmentId"] = f"azureml:{environment.name}:{environment.version}"
    return body


def our_body(path: Path) -> Any:
    """Return the body that a submission would send, or its error."""
    try:
        submission = Orchestrator("azure").prepare_file(path)
    except SpecError as problem:
        return problem
    document = json.loads(json.dumps(submission.as_dict()))
    assert document == submission.as_dict(), "the request differs when it is asked for again"
    return document["request"]["job"]


def check_alike(path: Path) -> Any:
    """Check that both accept a file with the same body, or both refuse it; return our body, or error."""
    ours = our_body(path)
    theirs = sdk_body(path, ours["name"] if isinstance(ours, dict) else "any")
    if isinstance(ours, SpecError):
        assert isinstance(theirs, Exception), str(ours)
        assert ours.problems
        assert not [text for text in ours.problems if not re.match(re.escape(str(path)) + r":\d+: \S", text)]
    else:
        assert ours == theirs
    return ours
