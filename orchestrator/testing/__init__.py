"""A double of Azure for tests: a workspace of Azure ML on the loopback interface; see docs/testing-azure.md.

No other module of the orchestrator imports it. It needs the extra `testing`.
"""

from orchestrator.testing.cloud_state import WorkspaceAddress
from orchestrator.testing.double import AzureDouble
from orchestrator.testing.proxy.server import Recorded

__all__ = ["AzureDouble", "Recorded", "WorkspaceAddress"]
