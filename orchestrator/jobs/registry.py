"""Kinds of jobs by name, each imported on first use.

Other packages add kinds by the entry-point group `orchestrator.jobs`, NAME = "package.module:INSTANCE"; notebooks by
`register`. Neither can replace a kind of this package.
"""

from __future__ import annotations

from typing import cast

from orchestrator.jobs.kind import JobKind, UnknownKind
from orchestrator.support.plugins import find, installed

GROUP = "orchestrator.jobs"
SHIPPED = {
    "pretrain": "orchestrator.jobs.pretrain.kind:PRETRAIN",
    "prepare": "orchestrator.jobs.prepare.kind:PREPARE",
    "finetune": "orchestrator.jobs.finetune.kind:FINETUNE",
    "evaluate": "orchestrator.jobs.predict.kind:EVALUATE",
    "predict": "orchestrator.jobs.predict.kind:PREDICT",
    "command": "orchestrator.jobs.command.kind:COMMAND",
}
DEFAULT = "pretrain"  # kind of a spec, a sweep's trial or an old run that does not name its kind
_registered: dict[str, JobKind] = {}


def register(kind: JobKind) -> None:
    """Add a kind of job to this process.

    Raises:
        ValueError: this package has a kind of that name.
    """
    if kind.name in SHIPPED:
        raise ValueError(f"cannot register kind of job {kind.name!r}: this package has a kind of that name")
    _registered[kind.name] = kind


def kind_names() -> list[str]:
    """Return the names of all kinds, those of this package first."""
    return [*SHIPPED, *sorted({*_registered, *installed(GROUP)} - {*SHIPPED})]


def is_kind(name: str) -> bool:
    """Return whether a kind of job has that name."""
    return name in SHIPPED or name in _registered or name in installed(GROUP)


def job_kind(name: str) -> JobKind:
    """Return the kind of job of that name.

    Raises:
        SpecError: the kind is unknown; the message suggests a similar name.
        ServiceError: another package's cannot be loaded.
    """
    if (kind := _registered.get(name) or find(name, SHIPPED, GROUP, "kind of job")) is not None:
        return cast(JobKind, kind)
    from train_jobs.config.errors import SpecError, did_you_mean

    names = kind_names()
    raise SpecError(f"unknown kind of job {name!r}{did_you_mean(name, names)}", facts={"known": ", ".join(names)})


def run_kind(name: str) -> JobKind:
    """Return the kind of a run; a placeholder if its package is not installed."""
    return job_kind(name) if is_kind(name) else UnknownKind(name)


def all_kinds() -> dict[str, JobKind]:
    """Return all kinds by name."""
    return {name: job_kind(name) for name in kind_names()}
