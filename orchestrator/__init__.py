"""Plan, submit, follow and resume the pretraining of BERT, on this machine or in the cloud.

    from orchestrator import Orchestrator, pretrain

    orchestrator = Orchestrator()
    run = orchestrator.submit(pretrain("notes/", steps=500))
    print(run.wait().metrics)

Names are loaded on first use, so importing the package takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from orchestrator.support.version import __version__ as __version__

if TYPE_CHECKING:
    from orchestrator.client import Orchestrator
    from orchestrator.jobs.base import Plan
    from orchestrator.jobs.builders import Job, evaluate, finetune, predict, prepare, pretrain
    from orchestrator.jobs.pretrain.spec import PretrainSpec
    from orchestrator.run import Run
    from orchestrator.runs.status import RunState, RunStatus
    from orchestrator.support.errors import UserError
    from orchestrator.sweep import Sweep

_BUILDERS = "orchestrator.jobs.builders"
_HOMES = {
    "Job": _BUILDERS,
    "Orchestrator": "orchestrator.client",
    "Plan": "orchestrator.jobs.base",
    "PretrainSpec": "orchestrator.jobs.pretrain.spec",
    "Run": "orchestrator.client",
    "RunState": "orchestrator.runs.status",
    "RunStatus": "orchestrator.runs.status",
    "Sweep": "orchestrator.sweep",
    "UserError": "orchestrator.support.errors",
    **dict.fromkeys(("evaluate", "finetune", "predict", "prepare", "pretrain"), _BUILDERS),
}

__all__ = [
    "Job",
    "Orchestrator",
    "Plan",
    "PretrainSpec",
    "Run",
    "RunState",
    "RunStatus",
    "Sweep",
    "UserError",
    "evaluate",
    "finetune",
    "predict",
    "prepare",
    "pretrain",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
