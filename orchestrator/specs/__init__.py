"""What a user writes: a job, where it runs, with what, and where its metrics go.

Names are loaded when they are first used: a backend that reads one section of a request need not load all of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.jobs.resolve import Change, Flag, Resolved, find_project, resolve_spec
    from orchestrator.specs.azure import AzureSpec
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
    from orchestrator.specs.local_machine import usable_cores, visible_gpus
    from orchestrator.specs.notify import NotifySpec
    from orchestrator.specs.sections import CodeSpec
    from orchestrator.specs.tracking import TrackingSpec

_HOMES = {
    "AzureSpec": "orchestrator.specs.azure",
    "Change": "orchestrator.jobs.resolve",
    "CodeSpec": "orchestrator.specs.sections",
    "ComputeSpec": "orchestrator.specs.compute",
    "EnvironmentSpec": "orchestrator.specs.environment",
    "EvaluateSpec": "orchestrator.specs.job",
    "FinetuneSpec": "orchestrator.specs.job",
    "Flag": "orchestrator.jobs.resolve",
    "NotifySpec": "orchestrator.specs.notify",
    "JobSpec": "orchestrator.specs.job",
    "KINDS": "orchestrator.specs.job",
    "PredictSpec": "orchestrator.specs.job",
    "PrepareSpec": "orchestrator.specs.job",
    "PretrainSpec": "orchestrator.specs.job",
    "Resolved": "orchestrator.jobs.resolve",
    "ResolvedCompute": "orchestrator.specs.compute",
    "TrackingSpec": "orchestrator.specs.tracking",
    "find_project": "orchestrator.jobs.resolve",
    "resolve_spec": "orchestrator.jobs.resolve",
    "usable_cores": "orchestrator.specs.local_machine",
    "visible_gpus": "orchestrator.specs.local_machine",
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
    return getattr(import_module(_HOMES[name]), name)
