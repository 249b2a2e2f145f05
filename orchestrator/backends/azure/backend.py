"""Runs on Azure ML."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends.azure.request import AzureRequest, build_request
from orchestrator.backends.azure.workspace import Workspace, find_workspace

if TYPE_CHECKING:
    from orchestrator.plan import Plan


class AzureBackend:
    """Runs on Azure ML."""

    name = "azure"

    def __init__(self, home: Path) -> None:
        self._home = home

    def request(self, plan: Plan, run_name: str) -> AzureRequest:
        """Every body that is sent, as one object: pure."""
        return build_request(plan, run_name, _workspace_of(plan))


def _workspace_of(plan: Plan) -> Workspace:
    return find_workspace(plan.spec.azure.model_dump(), os.environ, Path.cwd())
