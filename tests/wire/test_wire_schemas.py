"""Strict validation of bodies against Microsoft's schemas; known deviations of the SDK are listed by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing.schemas.schema import RESOURCES, cut_version, mismatches

VERSION = "2025-01-01-preview"
JOB: dict[str, Any] = {
    "properties": {
        "jobType": "Command",
        "command": "python job.py",
        "environmentId": "/subscriptions/x",
        "distribution": {"distributionType": "PyTorch", "processCountPerInstance": 8},
        "resources": {"instanceCount": 2, "shmSize": "64g"},
        "limits": {"jobLimitsType": "Command", "timeout": "PT2H"},
        "inputs": {"data": {"jobInputType": "uri_folder", "uri": "azureml://x", "mode": "ReadOnlyMount"}},
        "environmentVariables": {"A": "1"},
    }
}
Change = Callable[[dict[str, Any]], object]


def test_complete_job_is_valid() -> None:
    assert mismatches("jobs", VERSION, JOB) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda job: job.update(nodes=2), "properties: Additional properties are not allowed ('nodes' was unexpected)"),
        (
            lambda job: job.update(status="Running"),
            "properties: Additional properties are not allowed ('status' was unexpected)",
        ),
        (lambda job: job.pop("command"), "properties: 'command' is a required property"),
        (lambda job: job.update(command="!"), "properties.command: '!' does not match '[a-zA-Z0-9_]'"),
        (lambda job: job.update(command=None), "properties.command: None is not of type 'string'"),
        (lambda job: job.update(jobType="Batch"), "properties.jobType: 'Batch' is not one of ['Command', 'Sweep']"),
        (
            lambda job: job["resources"].update(instanceCount="2"),
            "properties.resources.instanceCount: '2' is not of type 'integer'",
        ),
        (
            lambda job: job["resources"].update(instanceCount=True),
            "properties.resources.instanceCount: True is not of type 'integer'",
        ),
        (lambda job: job["resources"].update(shmSize="lots"), "properties.resources.shmSize: 'lots' does not match"),
        (
            lambda job: job["distribution"].update(nodes=1),
            "properties.distribution: Additional properties are not allowed ('nodes' was unexpected)",
        ),
        (
            lambda job: job["distribution"].update(distributionType="Ray"),
            "properties.distribution.distributionType: 'Ray'",
        ),
        (lambda job: job["inputs"]["data"].pop("uri"), "properties.inputs.data: 'uri' is a required property"),
        (
            lambda job: job["inputs"]["data"].update(mode="Mount"),
            "properties.inputs.data.mode: 'Mount' is not one of ['ReadOnlyMount'",
        ),
        (
            lambda job: job["environmentVariables"].update(B=2),
            "properties.environmentVariables.B: 2 is not of type 'string'",
        ),
        (
            lambda job: job["limits"].update(jobLimitsType="Sweep", maxTrials=3),
            "properties.limits: Additional properties are not allowed ('maxTrials' was unexpected)",
        ),
    ],
)
def test_problem_is_named_by_its_path(change: Change, message: str) -> None:
    body = copy.deepcopy(JOB)
    change(body["properties"])
    (problem, *more) = mismatches("jobs", VERSION, body)
    assert problem.startswith(message)
    assert more == []


def test_every_problem_is_named() -> None:
    body = {"properties": {**JOB["properties"], "nodes": 1, "gpus": 8}, "name": "x"}
    assert mismatches("jobs", VERSION, body) == [
        "properties: Additional properties are not allowed ('gpus', 'nodes' were unexpected)",
        "body: Additional properties are not allowed ('name' was unexpected)",
    ]


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_deviation_is_allowed_at_its_path_only(goal: str) -> None:
    sweep = {
        "jobType": "Sweep",
        "objective": {"goal": goal, "primaryMetric": "loss"},
        "samplingAlgorithm": {"samplingAlgorithmType": "Random", "rule": "sobol"},
        "searchSpace": {"lr": ["uniform", [0, 1]]},
        "trial": {"command": "x", "environmentId": "y"},
    }
    assert mismatches("jobs", "2024-01-01-preview", {"properties": sweep}) == []
    sweep["objective"] = {"goal": goal.upper(), "primaryMetric": goal}
    assert mismatches("jobs", "2024-01-01-preview", {"properties": sweep}) == [
        f"properties.objective.goal: '{goal.upper()}' is not one of ['Minimize', 'Maximize']"
    ]


def test_version_without_a_schema_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        mismatches("jobs", "2019-01-01", JOB)
    with pytest.raises(KeyError):
        mismatches("schedules", VERSION, JOB)


def test_reduced_schema_keeps_exactly_the_reachable_parts() -> None:
    expression = {"$ref": "https://schema.management.azure.com/schemas/common/definitions.json#/definitions/expression"}
    kind = {"allOf": [{"$ref": "#/definitions/Box"}, {"properties": {"shape": {"const": "Box"}}}]}
    document = {
        "resourceDefinitions": {
            "workspaces_things": {
                "type": "object",
                "required": ["name", "type", "apiVersion", "properties"],
                "properties": {
                    "name": {"type": "string"},
                    "type": {"enum": ["x"]},
                    "apiVersion": {"enum": ["y"]},
                    "properties": {"description": "long", "oneOf": [{"$ref": "#/definitions/Thing"}, expression]},
                },
            }
        },
        "definitions": {
            "Thing": {
                "allOf": [
                    {"type": "object", "properties": {"shape": {"type": "string"}}, "required": ["shape"]},
                    {"oneOf": [kind]},
                ]
            },
            "Box": {"type": "object", "properties": {"sides": {"type": "array", "items": {"type": "integer"}}}},
            "Other": {"type": "string"},
        },
    }
    assert cut_version(document, ("things",)) == {
        "resources": {
            "things": {
                "type": "object",
                "required": ["properties"],
                "properties": {"properties": {"$ref": "#/definitions/Thing"}},
                "additionalProperties": False,
            }
        },
        "definitions": {
            "Thing": {
                "type": "object",
                "required": ["shape"],
                "properties": {"shape": {"enum": ["Box"]}},
                "allOf": [{"if": {"properties": {"shape": {"const": "Box"}}}, "then": {"$ref": "#/definitions/Box"}}],
            },
            "Box": {
                "type": "object",
                "required": ["shape"],
                "properties": {"shape": {"type": "string"}, "sides": {"type": "array", "items": {"type": "integer"}}},
                "additionalProperties": False,
            },
        },
    }


def test_committed_schemas_are_small_and_licensed() -> None:
    folder = Path(str(files("orchestrator.testing.schemas")))
    assert {path.stem for path in folder.glob("*.json")} == set(RESOURCES)
    assert sum(path.stat().st_size for path in folder.glob("*.json")) < 70_000
    assert "Permission is hereby granted" in (folder / "LICENSE").read_text()
