"""Validate request bodies against Microsoft's schemas, strictly: an unknown field is as wrong as a missing one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from jsonschema import Draft7Validator, ValidationError

PUBLISHED = {
    "2022-02-01-preview": "2023-04-01-preview",
    "2022-10-01": "2023-04-01-preview",
    "2023-10-01": "2023-04-01-preview",
}
"""Versions that the client uses and whose schema is not among the committed ones -> the nearest one that is."""


class Deviation(NamedTuple):
    """Where the azure-ai-ml package itself departs from the schema, seen with 1.35.2: one field, named values."""

    resource: str
    path: str
    values: tuple[Any, ...]


DEVIATIONS = (
    Deviation("jobs", "properties.objective.goal", ("minimize", "maximize")),
    Deviation("jobs", "properties.samplingAlgorithm.rule", ("sobol", "random")),
    Deviation("codes/versions", "properties.properties.hash_version", (202208,)),
)


@cache
def _validator(version: str, resource: str) -> Draft7Validator:
    text = (files("orchestrator.testing.schemas") / f"{version}.json").read_text(encoding="ascii")
    document: dict[str, Any] = json.loads(text)
    return Draft7Validator({**document["resources"][resource], "definitions": document["definitions"]})


def mismatches(resource: str, version: str, body: object) -> list[str]:
    """Return what is wrong with the body of a PUT: `properties.limits.timeout: 5 is not of type 'string'`.

    Args:
        resource: path below the workspace, `environments/versions`.
        version: api-version of the request.
        body: the JSON document.

    Raises:
        FileNotFoundError: no schema of that version is committed.
        KeyError: that version has no such resource.
    """
    validator = _validator(PUBLISHED.get(version, version), resource)
    return list(_problems(resource, validator.iter_errors(body)))


def _problems(resource: str, errors: Iterator[ValidationError]) -> Iterator[str]:
    for error in errors:
        path = error.json_path.removeprefix("$").removeprefix(".")
        if not any((resource, path) == known[:2] and error.instance in known.values for known in DEVIATIONS):
            yield f"{path or 'body'}: {error.message}"
