"""What every request says whose run is a folder."""

from __future__ import annotations

from orchestrator.backends.base import Request
from orchestrator.specs import NotifySpec


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

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.nodes * self.processes_per_node
