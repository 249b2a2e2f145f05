"""What every request says whose run is a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.backends.base import Request
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.runs.tracked_run import default_uri
from orchestrator.specs.sections import NotifySpec
from orchestrator.support.home import TOKEN_STORES

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan


class FolderRequest(Request):
    """What will run, and where it reports."""

    nodes: int
    """Machines, or what plays them."""
    processes_per_node: int
    """Ranks on each."""
    threads: int
    """CPU threads of each rank."""
    device: str
    """cpu or gpu."""
    max_restarts: int
    """How often a failed or preempted attempt is started again by itself."""
    variables: dict[str, str]
    """Environment variables beyond those of the caller."""
    snapshot: str
    """SHA-256 of the code."""
    tracking_uri: str
    """MLflow store."""
    experiment: str
    """MLflow experiment."""
    notify: NotifySpec = NotifySpec()
    """Whom to tell what becomes of it."""
    steps: int | None
    """Optimizer steps that it shall take; None: it trains nothing."""
    token_stores: str
    """Folder of prepared data, shared by all runs."""

    @classmethod
    def shared(cls, plan: Plan, run_name: str, home: Path) -> dict[str, Any]:
        """What a request says of a plan, whoever starts the job."""
        compute, spec = plan.compute, plan.spec
        return {
            "name": run_name,
            "nodes": compute.nodes,
            "processes_per_node": compute.processes_per_node,
            "device": compute.device,
            "max_restarts": spec.max_restarts,
            "variables": dict(spec.environment.variables),
            "snapshot": plan.snapshot.digest,
            "tracking_uri": spec.tracking.uri or default_uri(home),
            "experiment": spec.tracking.experiment,
            "notify": spec.notify,
            "steps": plan.steps,
            "token_stores": str(home / TOKEN_STORES),
        }

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.nodes * self.processes_per_node


def job_arguments(plan: Plan, run: RunFolder, home: Path) -> list[str]:
    """What the job's module is called with."""
    return [
        *("--config", str(run.config), "--output", str(run.outputs)),
        *(("--cache", str(home / TOKEN_STORES)) if plan.stores else ()),
        *("--device", plan.compute.device),
    ]
