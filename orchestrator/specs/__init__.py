"""What a user writes: a job, where it runs, with what, of what code, and where its metrics go."""

from orchestrator.specs.code import CodeSpec
from orchestrator.specs.compute import ComputeSpec, ResolvedCompute, usable_cores, visible_gpus
from orchestrator.specs.environment import EnvironmentSpec
from orchestrator.specs.job import PretrainSpec
from orchestrator.specs.notify import NotifySpec
from orchestrator.specs.resolve import Change, Flag, Resolved, find_project, resolve_spec
from orchestrator.specs.tracking import TrackingSpec

__all__ = [
    "Change",
    "CodeSpec",
    "ComputeSpec",
    "EnvironmentSpec",
    "Flag",
    "NotifySpec",
    "PretrainSpec",
    "Resolved",
    "ResolvedCompute",
    "TrackingSpec",
    "find_project",
    "resolve_spec",
    "usable_cores",
    "visible_gpus",
]
