"""All routes of the control plane, put together out of the parts."""

from __future__ import annotations

from orchestrator.testing.arm import assets, computes, datastores, jobs, operations, quotas, workspaces
from orchestrator.testing.arm.service import Table

SUBSCRIPTION = Table.joined(operations.ROUTES, quotas.ROUTES)
WORKSPACE = Table.joined(workspaces.ROUTES, computes.ROUTES, datastores.ROUTES, assets.ROUTES, jobs.ROUTES)
