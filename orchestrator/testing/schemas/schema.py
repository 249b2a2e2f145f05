"""Validate request bodies against Microsoft's schemas, strictly, and cut these schemas out of the published ones.

    python orchestrator/testing/schemas/schema.py FOLDER

FOLDER has <api version>.json, Microsoft.MachineLearningServices.json of Azure/azure-resource-manager-schemas at that
version. The result is JSON Schema again, draft 7, without descriptions and without what only ARM templates need
(expressions, nested resources, name and type, which a request has in its path), and stricter than its source: an object
has no properties but the named ones. Where a discriminator selects the kind of an object, each kind is one complete
definition, and the base only chooses among them.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jsonschema import Draft7Validator

Node = dict[str, Any]

RESOURCES: dict[str, tuple[str, ...]] = {
    "2023-04-01": ("codes_versions",),
    "2023-04-01-preview": (
        *("data", "data_versions", "environments", "environments_versions"),
        *("onlineEndpoints", "onlineEndpoints_deployments"),
    ),
    "2023-08-01-preview": ("computes", "models", "models_versions", "schedules"),
    "2024-01-01-preview": ("jobs",),
    "2025-01-01-preview": ("jobs",),
}
"""Version -> resources of a workspace that the double accepts at it: those that the client uses, except for endpoints,
whose versions are not among the six published ones."""
KINDS = {
    "actionType": ("CreateJob",),
    "computeType": ("AmlCompute",),
    "dataType": ("uri_file", "uri_folder"),
    "distributionType": ("Mpi", "PyTorch", "TensorFlow"),
    "endpointComputeType": ("Managed",),
    "jobType": ("Command", "Sweep"),
}
"""Discriminator -> values to keep; of other discriminators all."""
KINDS_IN_SCHEDULES = {
    "jobType": ("Command",),
    "triggerType": ("Recurrence",),
    "jobInputType": ("literal", "uri_file", "uri_folder"),
    "jobOutputType": ("uri_file", "uri_folder"),
}
"""Discriminator -> values to keep in the version that has schedules."""
NUMBERS = {"slackAmount", "slackFactor"}
"""Fields that are integers in the published schemas, and numbers in the service's own definition."""
LIMITS = ("enum", "pattern", "minLength", "maxLength", "minimum", "maximum")
PATH_KEYS = {"apiVersion", "name", "type", "resources"}
PUBLISHED = {
    "2022-02-01-preview": "2023-04-01-preview",
    "2022-10-01": "2023-04-01-preview",
    "2023-10-01": "2023-04-01-preview",
    "2023-06-01-preview": "2023-08-01-preview",
}
"""Version that the client uses and that has no committed schema -> the nearest version that has one."""


class Deviation(NamedTuple):
    """A field and values by which azure-ai-ml itself (1.35.2) departs from the schema."""

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
    """Return the errors in the body of a PUT: `properties.limits.timeout: 5 is not of type 'string'`.

    Args:
        resource: path below the workspace, `environments/versions`.
        version: api-version of the request.
        body: the JSON document.

    Raises:
        FileNotFoundError: no schema of that version is committed.
        KeyError: that version has no such resource.
    """
    problems = []
    for error in _validator(PUBLISHED.get(version, version), resource).iter_errors(body):
        path = error.json_path.removeprefix("$").removeprefix(".")
        if not any((resource, path) == known[:2] and error.instance in known.values for known in DEVIATIONS):
            problems.append(f"{path or 'body'}: {error.message}")
    return problems


def main(source: Path, target: Path) -> None:
    """Write the cut schemas of all versions."""
    for version, resources in RESOURCES.items():
        document = json.loads((source / f"{version}.json").read_text(encoding="utf-8"))
        cut = cut_version(document, resources)
        text = json.dumps(cut, separators=(",", ":"))
        (target / f"{version}.json").write_text(text + "\n", encoding="ascii")
        print(f"{version}: {len(cut['definitions'])} definitions, {len(text)} bytes")


def cut_version(document: Node, resources: tuple[str, ...]) -> Node:
    """Return the schemas of the named resources of one version, with every definition that they reach."""
    cut: Node = {}
    for resource in resources:
        node = simplified(document["resourceDefinitions"][f"workspaces_{resource}"])
        node["properties"] = {name: rule for name, rule in node["properties"].items() if name not in PATH_KEYS}
        node["required"] = sorted(set(node["required"]) - PATH_KEYS)
        cut[resource.replace("_", "/")] = node
    definitions: Node = {}
    wanted = references(cut)
    while wanted:
        name = min(wanted)  # in a fixed order: the committed files must not change with each run
        node = definitions[name] = simplified(document["definitions"][name])
        if "schedules" in resources and (kept := KINDS_IN_SCHEDULES.get(node.get("discriminator", ""))):
            node["kinds"] = {kind: node["kinds"][kind] for kind in kept}
        wanted = (wanted | references(definitions[name])) - definitions.keys()
    complete_kinds(definitions)
    return {"resources": cut, "definitions": definitions}


def simplified(node: Node) -> Node:
    """Return a node of a published schema, less what requests do not need."""
    if "$ref" in node:
        return _reference(node["$ref"])
    if "allOf" in node:
        return _with_kinds(*node["allOf"])
    if "oneOf" in node:
        choices = [simplified(choice) for choice in node["oneOf"] if not choice.get("$ref", "").endswith("/expression")]
        return choices[0] if len(choices) == 1 else {"anyOf": choices}
    if node.get("type") == "array":
        return {"type": "array", "items": simplified(node["items"])}
    if node.get("type") == "object":
        return _object(node)
    return {key: node[key] for key in ("type", *LIMITS) if key in node}


def _object(node: Node) -> Node:
    properties = {name: simplified(rule) for name, rule in node.get("properties", {}).items()}
    for name in NUMBERS & properties.keys():
        properties[name]["type"] = "number"
    others = node.get("additionalProperties")
    return {
        "type": "object",
        "required": sorted(node.get("required", [])),
        "properties": properties,
        "additionalProperties": simplified(others) if isinstance(others, dict) else not properties,
    }


def _with_kinds(base: Node, choice: Node) -> Node:
    """Return an object whose kind a property selects; `complete_kinds` makes JSON Schema of it."""
    kinds = {}
    for subtype, constant in (pair["allOf"] for pair in choice["oneOf"]):
        ((field, value),) = ((name, limit["const"]) for name, limit in constant["properties"].items())
        kinds[value] = subtype["$ref"]
    kept = KINDS.get(field, kinds)
    return {
        **_object(base),
        "discriminator": field,
        "kinds": {value: name for value, name in kinds.items() if value in kept},
    }


def complete_kinds(definitions: Node) -> None:
    """Make each kind of an object one whole definition, and the object itself the choice among its kinds."""
    for name, base in list(definitions.items()):
        if "kinds" not in base:
            continue
        field, choices = base["discriminator"], []
        for value, target in base["kinds"].items():
            kind = definitions[target.rpartition("/")[2]]
            kind["required"] = sorted({*base["required"], *kind["required"]})
            kind["properties"] = {**base["properties"], **kind["properties"]}
            kind["additionalProperties"] = base["additionalProperties"]
            choices.append({"if": {"properties": {field: {"const": value}}}, "then": {"$ref": target}})
        named = {"type": "object", "required": [field], "properties": {field: {"enum": sorted(base["kinds"])}}}
        definitions[name] = {**named, "allOf": choices}


def _reference(target: str) -> Node:
    document, _, name = target.rpartition("#/definitions/")
    if not document:
        return {"$ref": target}
    return {"type": "number"} if name == "numberOrExpression" else {"type": "string"}


def references(node: Node) -> set[str]:
    """Return the definitions that a node refers to directly."""
    return set(re.findall(r'"#/definitions/([^"]+)"', json.dumps(node)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(__file__).parent)
