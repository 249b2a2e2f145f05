"""How long-running operations stand."""

from __future__ import annotations

from orchestrator.testing.arm.resource_manager import POLL_MILLISECONDS, ResourceManager, Table
from orchestrator.testing.cloud_state import PROVIDER, Document
from orchestrator.testing.proxy.messages import Call, Refusal, Reply

ROUTES = Table()
KINDS = ("computeOperationsStatus", "jobOperationsStatus", "mfeOperationsStatus")


def get_operation(service: ResourceManager, call: Call, region: str, name: str) -> Reply:
    operation = service.state.operations.get(name)
    if operation is None:
        raise Refusal(404, "OperationNotFound", f"Operation '{name}' was not found.")
    answer: Document = {"id": call.path, "name": name, "status": "Succeeded"}
    if operation.polls_left > 0:
        operation.polls_left -= 1
        answer["status"] = "InProgress"
    elif operation.error is not None:
        answer = {**answer, "status": "Failed", "error": operation.error}
    return Reply.json(answer, retry_after_ms=str(POLL_MILLISECONDS))


for kind in KINDS:
    ROUTES.add("GET", f"providers/{PROVIDER}/locations/{{region}}/{kind}/{{name}}")(get_operation)
