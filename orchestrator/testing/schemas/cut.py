"""Cuts what the double checks out of Microsoft's schemas: python -m orchestrator.testing.schemas.cut FOLDER

FOLDER holds <api version>.json, Microsoft.MachineLearningServices.json of Azure/azure-resource-manager-schemas at that
version. The result is JSON Schema again, draft 7, without descriptions and without what only ARM templates know
(expressions, nested resources, name and type, which a request has in its path), and stricter than its source: an object
has no other properties than those named. Of an object whose discriminator decides on its other properties each kind is
one whole definition, and the base only chooses among them.
"""

from __future__ import annotations

import json
import re
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
        text = json.dumps(cut, separators=(",", ":"))
        (target / f"{version}.json").write_text(text + "\n", encoding="ascii")
        print(f"{version}: {len(cut['definitions'])} definitions, {len(text)} bytes")


def cut_version(document: Node, resources: tuple[str, ...]) -> Node:
    """Return the schemas of the named resources of one version, with every definition that they reach."""
    found: Node = {}
    for resource in resources:
        node = simplified(document["resourceDefinitions"][f"workspaces_{resource}"])
        node["properties"] = {name: rule for name, rule in node["properties"].items() if name not in OF_THE_PATH}
        node["required"] = sorted(set(node["required"]) - OF_THE_PATH)
        found[resource.replace("_", "/")] = node
    definitions: Node = {}
    wanted = references(found)
    while wanted:
        name = min(wanted)
        definitions[name] = simplified(document["definitions"][name])
        wanted = (wanted | references(definitions[name])) - definitions.keys()
    complete_kinds(definitions)
    return {"resources": found, "definitions": definitions}


def simplified(node: Node) -> Node:
    """Return a node of a published schema without what requests do not need."""
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
    """Return an object of which one property decides on the others; `complete_kinds` makes JSON Schema of it."""
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
    """Return the definitions that a node names, directly."""
    return set(re.findall(r'"#/definitions/([^"]+)"', json.dumps(node)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(__file__).parent)
