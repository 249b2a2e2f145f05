"""What a user writes: a job, where it runs, with what, and where its metrics go.

Names are loaded when they are first used: a backend that reads one section of a request need not load all of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.specs.azure import AzureSpec
    from orchestrator.specs.code import CodeSpec
    from orchestrator.specs.compute import ComputeSpec, ResolvedCompute
    from orchestrator.specs.environment import EnvironmentSpec
    from orchestrator.specs.job import (
        KINDS,
        EvaluateSpec,
        FinetuneSpec,
        JobSpec,
        PredictSpec,
        PrepareSpec,
        PretrainSpec,
    )
    from orchestrator.specs.machine import usable_cores, visible_gpus
    from orchestrator.specs.notify import NotifySpec
    from orchestrator.specs.resolve import Change, Flag, Resolved, find_project, resolve_spec
    from orchestrator.specs.tracking import TrackingSpec

_HOMES = {
    "AzureSpec": "azure",
    "Change": "resolve",
    "CodeSpec": "code",
    "ComputeSpec": "compute",
    "EnvironmentSpec": "environment",
    "EvaluateSpec": "job",
    "FinetuneSpec": "job",
    "Flag": "resolve",
    "NotifySpec": "notify",
    "JobSpec": "job",
    "KINDS": "job",
    "PredictSpec": "job",
    "PrepareSpec": "job",
    "PretrainSpec": "job",
    "Resolved": "resolve",
    "ResolvedCompute": "compute",
    "TrackingSpec": "tracking",
    "find_project": "resolve",
    "resolve_spec": "resolve",
    "usable_cores": "machine",
    "visible_gpus": "machine",
}

__all__ = [
    "AzureSpec",
    "Change",
    "CodeSpec",
    "ComputeSpec",
    "EnvironmentSpec",
    "EvaluateSpec",
    "FinetuneSpec",
    "Flag",
    "NotifySpec",
    "JobSpec",
    "KINDS",
    "PredictSpec",
    "PrepareSpec",
    "PretrainSpec",
    "Resolved",
    "ResolvedCompute",
    "TrackingSpec",
    "find_project",
    "resolve_spec",
    "usable_cores",
    "visible_gpus",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
