"""Holds request bodies against Microsoft's schemas, strictly: an unknown field is as wrong as a missing one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

Node = dict[str, Any]

PUBLISHED = {
    "2022-02-01-preview": "2023-04-01-preview",
    "2022-10-01": "2023-04-01-preview",
    "2023-10-01": "2023-04-01-preview",
}
"""Versions that the client asks for and whose schema is not at hand -> the nearest that is."""
TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
}


class Deviation:
    """Where the azure-ai-ml package itself departs from the schema, seen with 1.35.2: one field, named values."""

    def __init__(self, resource: str, path: str, values: tuple[Any, ...]) -> None:
        self.resource = resource
        self.path = path
        self.values = values

    def allows(self, resource: str, path: str, value: object) -> bool:
        return (resource, path) == (self.resource, self.path) and value in self.values


DEVIATIONS = (
    Deviation("jobs", "properties.objective.goal", ("minimize", "maximize")),
    Deviation("jobs", "properties.samplingAlgorithm.rule", ("sobol", "random")),
    Deviation("codes/versions", "properties.properties.hash_version", (202208,)),
)


@cache
def _schemas(version: str) -> Node:
    source = files("orchestrator.testing.schemas") / f"{version}.json"
    found: Node = json.loads(source.read_text(encoding="ascii"))
    return found


def mismatches(resource: str, version: str, body: object) -> list[str]:
    """What is wrong with the body of a PUT, one line a field: `properties.limits.timeout: ...`.

    Args:
        resource: below the workspace, `environments/versions`.
        version: api-version of the request.

    Raises:
        KeyError: there is no schema of that resource at that version.
    """
    document = _schemas(PUBLISHED.get(version, version))
    return list(_Check(resource, document["definitions"]).walk(document["resources"][resource], body, ""))


class _Check:
    def __init__(self, resource: str, definitions: Node) -> None:
        self.resource = resource
        self.definitions = definitions

    def walk(self, node: Node, value: object, path: str) -> Iterator[str]:
        if any(deviation.allows(self.resource, path, value) for deviation in DEVIATIONS):
            return
        if "ref" in node:
            node = self.definitions[node["ref"]]
        if "any" in node:
            tries = [list(self.walk(choice, value, path)) for choice in node["any"]]
            yield from min(tries, key=len)
        elif "type" in node:
            yield from self._typed(node, value, path)

    def _typed(self, node: Node, value: object, path: str) -> Iterator[str]:
        kind = node["type"]
        if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
            yield f"{path or 'body'}: {json.dumps(value)[:80]} is no {kind}"
        elif isinstance(value, dict):
            yield from self._object(node, value, path)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from self.walk(node["items"], item, f"{path}[{index}]")
        else:
            yield from (f"{path}: {problem}" for problem in _limits(node, value))

    def _object(self, node: Node, value: Node, path: str) -> Iterator[str]:
        fields, required = self._fields(node, value)
        if fields is None:
            named = node["discriminator"]
            known = ", ".join(sorted(node["kinds"]))
            yield f"{_join(path, named)}: {value.get(named)!r} is none of {known}"
            return
        yield from (f"{_join(path, name)}: is missing" for name in sorted(required - value.keys()))
        for name, field in value.items():
            rule = fields.get(name, node.get("others"))
            if rule is None:
                yield f"{_join(path, name)}: no such field"
            else:
                yield from self.walk(rule, field, _join(path, name))

    def _fields(self, node: Node, value: Node) -> tuple[Node | None, set[str]]:
        fields, required = node["fields"], set(node["required"])
        if "discriminator" not in node:
            return fields, required
        name = node["kinds"].get(value.get(node["discriminator"]))
        if name is None:
            return None, required
        kind = self.definitions[name]
        return {**fields, **kind["fields"]}, required | set(kind["required"])


def _limits(node: Node, value: object) -> Iterator[str]:
    if "enum" in node and value not in node["enum"]:
        yield f"{value!r} is none of {', '.join(map(str, node['enum']))}"
    if isinstance(value, str):
        if "pattern" in node and not re.search(node["pattern"], value):
            yield f"{value!r} does not match {node['pattern']}"
        if len(value) < node.get("minLength", 0):
            yield f"is shorter than {node['minLength']}"
        if "maxLength" in node and len(value) > node["maxLength"]:
            yield f"is longer than {node['maxLength']}"
    if isinstance(value, int | float):
        if "minimum" in node and value < node["minimum"]:
            yield f"{value} is less than {node['minimum']}"
        if "maximum" in node and value > node["maximum"]:
            yield f"{value} is more than {node['maximum']}"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
