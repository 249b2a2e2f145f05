"""Plans for Azure, isolated from the settings of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.azure.options import Workspace
from orchestrator.backends.azure.submission import AzureRequest, build_request
from orchestrator.client import Orchestrator
from orchestrator.jobs.base import Plan
from tests.conftest import write_corpus, write_spec

WORKSPACE = Workspace(subscription_id="0000-1111", resource_group="group", workspace="place")
MakePlan = Callable[..., Plan]


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("ORCHESTRATOR_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def make_plan(tmp_path: Path) -> MakePlan:
    """Return a function that plans the micro job on corpus/notes.txt, with changed values."""
    (tmp_path / "corpus").mkdir()
    write_corpus(tmp_path / "corpus" / "notes.txt")

    def plan(overrides: dict[str, Any] | None = None, **sections: Any) -> Plan:
        write_spec(tmp_path / "job.yaml", data={"text": ["corpus/notes.txt"]}, **sections)
        orchestrator = Orchestrator(home=tmp_path / "home", environ={})
        cluster = {"backend": "azure", "compute.cluster": "gpu", "compute.sku": "Standard_NC4as_T4_v3"}
        return orchestrator.plan(file=tmp_path / "job.yaml", overrides={**cluster, **(overrides or {})})

    return plan


def request_of(plan: Plan) -> AzureRequest:
    """Return the request for a plan in a workspace named `place`."""
    return build_request(plan, plan.name, WORKSPACE)
