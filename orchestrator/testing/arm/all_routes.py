"""All routes of the control plane, put together out of the parts."""

from __future__ import annotations

from orchestrator.testing.arm import (
    computes,
    datastores,
    endpoints,
    job_resources,
    operations,
    quotas,
    versioned_assets,
    workspaces,
)
from orchestrator.testing.arm.resource_manager import Table

SUBSCRIPTION = Table.joined(operations.ROUTES, quotas.ROUTES)
PARTS = (workspaces, computes, datastores, versioned_assets, endpoints, job_resources)
WORKSPACE = Table.joined(*(part.ROUTES for part in PARTS))
