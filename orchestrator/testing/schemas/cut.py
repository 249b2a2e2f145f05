"""Cuts what the double checks out of Microsoft's schemas: python -m orchestrator.testing.schemas.cut FOLDER

FOLDER holds <api version>.json, Microsoft.MachineLearningServices.json of Azure/azure-resource-manager-schemas at that
version. What stays is every field that a request may have and each of their limits; descriptions go, and so does what
only ARM templates know (expressions, nested resources, name and type, which a request has in its path). A node is

    {"type": ..., "enum"|"pattern"|"minLength"|"maxLength"|"minimum": ...}    a value
    {"type": "array", "items": node}
    {"type": "object", "fields": {name: node}, "required": [...], "others": node}    no `others`: no other fields
    {..., "discriminator": field, "kinds": {value: definition}}    the rest of its fields depends on one
    {"ref": definition}, {"any": [node, ...]}, {}    anything
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Node = dict[str, Any]

RESOURCES: dict[str, tuple[str, ...]] = {
    "2023-04-01": ("codes_versions",),
    "2023-04-01-preview": (
        *("data", "data_versions", "environments", "environments_versions"),
        *("onlineEndpoints", "onlineEndpoints_deployments"),
    ),
    "2023-08-01-preview": ("computes", "models", "models_versions"),
    "2024-01-01-preview": ("jobs",),
    "2025-01-01-preview": ("jobs",),
}
"""Which resources of a workspace are taken at which version; the client uses these, but for endpoints, of which it
uses versions that are not among the six at hand."""
KINDS = {
    "computeType": ("AmlCompute",),
    "dataType": ("uri_file", "uri_folder"),
    "distributionType": ("Mpi", "PyTorch", "TensorFlow"),
    "endpointComputeType": ("Managed",),
    "jobType": ("Command", "Sweep"),
}
"""Values of a discriminator that stay; of others all."""
NUMBERS = {"slackAmount", "slackFactor"}
"""Fields that the published schemas call integers, and the service's own definition numbers."""
LIMITS = ("enum", "pattern", "minLength", "maxLength", "minimum", "maximum")
OF_THE_PATH = {"apiVersion", "name", "type", "resources"}


def main(source: Path, target: Path) -> None:
    for version, resources in RESOURCES.items():
        document = json.loads((source / f"{version}.json").read_text(encoding="utf-8"))
        cut = cut_version(document, resources)
        text = json.dumps(cut, sort_keys=True, separators=(",", ":"))
        (target / f"{version}.json").write_text(text + "\n", encoding="ascii")
        print(f"{version}: {len(cut['definitions'])} definitions, {len(text)} bytes")


def cut_version(document: Node, resources: tuple[str, ...]) -> Node:
    """The named resources of one version with every definition that they reach."""
    found: Node = {}
    for resource in resources:
        node = simplified(document["resourceDefinitions"][f"workspaces_{resource}"])
        node["fields"] = {name: field for name, field in node["fields"].items() if name not in OF_THE_PATH}
        node["required"] = sorted(set(node["required"]) - OF_THE_PATH)
        found[resource.replace("_", "/")] = node
    definitions: Node = {}
    wanted = references(found)
    while wanted:
        name = wanted.pop()
        definitions[name] = simplified(document["definitions"][name])
        wanted |= references(definitions[name]) - definitions.keys()
    return {"resources": found, "definitions": definitions}


def simplified(node: Node) -> Node:
    """A node of a JSON Schema in the form that the module's docstring describes."""
    if "$ref" in node:
        return _reference(node["$ref"])
    if "allOf" in node:
        return _with_kinds(*node["allOf"])
    if "oneOf" in node:
        choices = [simplified(choice) for choice in node["oneOf"] if not choice.get("$ref", "").endswith("/expression")]
        return choices[0] if len(choices) == 1 else {"any": choices}
    if node.get("type") == "array":
        return {"type": "array", "items": simplified(node["items"])}
    if node.get("type") == "object":
        return _object(node)
    return {key: node[key] for key in ("type", *LIMITS) if key in node}


def _object(node: Node) -> Node:
    fields = {name: simplified(field) for name, field in node.get("properties", {}).items()}
    for name in NUMBERS & fields.keys():
        fields[name]["type"] = "number"
    found: Node = {"type": "object", "fields": fields, "required": sorted(node.get("required", []))}
    others = node.get("additionalProperties")
    if isinstance(others, dict):
        found["others"] = simplified(others)
    elif not fields:
        found["others"] = {}
    return found


def _with_kinds(base: Node, choice: Node) -> Node:
    """An object of which one field says what the others are."""
    kinds = {}
    for subtype, constant in (pair["allOf"] for pair in choice["oneOf"]):
        ((field, value),) = ((name, limit["const"]) for name, limit in constant["properties"].items())
        kinds[value] = subtype["$ref"].rpartition("/")[2]
    kept = KINDS.get(field, kinds)
    return {
        **_object(base),
        "discriminator": field,
        "kinds": {value: name for value, name in kinds.items() if value in kept},
    }


def _reference(target: str) -> Node:
    document, _, name = target.rpartition("#/definitions/")
    if not document:
        return {"ref": name}
    return {"type": "number"} if name == "numberOrExpression" else {"type": "string"}


def references(node: Any) -> set[str]:
    """Definitions that a node names, directly."""
    if isinstance(node, list):
        return {name for part in node for name in references(part)}
    if not isinstance(node, dict):
        return set()
    found = set(node.get("kinds", {}).values())
    if isinstance(node.get("ref"), str):
        found.add(node["ref"])
    return found.union(*(references(part) for part in node.values()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(__file__).parent)
