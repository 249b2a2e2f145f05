"""All routes of the control plane, put together out of the parts."""

from __future__ import annotations

from orchestrator.testing.arm import assets, computes, datastores, endpoints, jobs, operations, quotas, workspaces
from orchestrator.testing.arm.service import Table

SUBSCRIPTION = Table.joined(operations.ROUTES, quotas.ROUTES)
PARTS = (workspaces, computes, datastores, assets, endpoints, jobs)
WORKSPACE = Table.joined(*(part.ROUTES for part in PARTS))
