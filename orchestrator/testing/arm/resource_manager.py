"""The control plane, `management.azure.com`: check token, version and workspace, then call the resource's handler."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.testing.blob_service import Storage
from orchestrator.testing.cloud_state import PROVIDER, Document, State
from orchestrator.testing.jobs.job_table import Jobs
from orchestrator.testing.proxy.login import Login
from orchestrator.testing.proxy.messages import Call, Refusal, Reply, Routes
from orchestrator.testing.schemas.schema import mismatches

POLL_HEADERS = {"retry-after-ms": "20"}  # without it, azure-core polls every 30 s; it ignores a `Retry-After: 0`
REGION = f"providers/{PROVIDER}/locations/{{region}}"
ROUTES = Routes()


class ResourceManager:
    """The control plane of the one workspace.

    Args:
        state: the resources.
        login: checks tokens.
        storage: the workspace's account.
        jobs: runs submitted jobs.
        routes: of all resources below the subscription and below the workspace.
    """

    def __init__(self, state: State, login: Login, storage: Storage, jobs: Jobs, routes: Routes) -> None:
        self.state, self.login, self.storage, self.jobs, self._routes = state, login, storage, jobs, routes
        self.violations: list[str] = []
        self.page_size = 50
        self.scoring: dict[str, Callable[[Any], Any]] = {}
        self.scoring_key = secrets.token_urlsafe(32)

    def answer(self, call: Call) -> Reply:
        """Answer one call.

        Raises:
            Refusal: Azure would refuse it, or the double does not know the call.
        """
        self.login.check(call)
        if "api-version" not in call.query:
            raise Refusal(400, "MissingApiVersionParameter", "The api-version query parameter is required.")
        with self.state.lock:
            return self._routes.answer(self, call, self.path(call))

    def path(self, call: Call) -> str:
        """Return the path of a call below the workspace, or below the subscription if it names no workspace.

        Raises:
            Refusal: it names another subscription, group or workspace.
        """
        place = self.state.place
        base = f"/subscriptions/{place.subscription}/"
        if not f"{call.path}/".lower().startswith(base.lower()):
            raise Refusal(404, "SubscriptionNotFound", f"The subscription of {call.path} could not be found.")
        # ARM paths are case-insensitive, and the SDK writes `resourcegroups` in some of them
        head, marker, tail = call.path.partition("/workspaces/")
        if not marker:
            return call.path[len(base) :].strip("/")
        if not f"{head}/".lower().startswith(f"{place.group_path}/".lower()):
            group = head.partition("/resourceGroups/")[2].partition("/")[0]
            raise Refusal(404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found.")
        name, _, below = tail.partition("/")
        if name.lower() != place.workspace.lower():
            resource = f"{PROVIDER}/workspaces/{name}"
            raise Refusal(
                404,
                "ResourceNotFound",
                f"The Resource '{resource}' under resource group '{place.resource_group}' was not found.",
            )
        return below.strip("/")

    def body(self, call: Call, resource: str) -> Document:
        """Return the body of a PUT, validated against its schema.

        Raises:
            Refusal: it is invalid; the problems are kept in `violations` too.
        """
        body: Document = call.json
        try:
            problems = mismatches(resource, call.query["api-version"], body)
        except (KeyError, FileNotFoundError):
            problems = [f"no schema of {resource} at {call.query['api-version']}"]
        if problems:
            self.violations += [f"{call.line}: {problem}" for problem in problems]
            raise Refusal(400, "InvalidRequestContent", "; ".join(problems))
        return body

    def get(self, path: str) -> Document:
        """Return the resource at a path.

        Raises:
            Refusal: it does not exist.
        """
        if (resource := self.state.resources.get(path)) is None:
            raise Refusal(404, "ResourceNotFound", f"The resource '{path}' was not found.")
        return resource

    def accepted(
        self, kind: str, status: int = 202, document: Document | None = None, error: Document | None = None
    ) -> Reply:
        """Start a long-running operation; return the answer with the URL to poll, and how often.

        Args:
            kind: compute, job or mfe.
            status: of the answer.
            document: its body.
            error: what the operation fails with.
        """
        name = str(uuid.uuid4())
        last: Document = {"status": "Failed", "error": error} if error else {"status": "Succeeded"}
        # one answer in progress, so that every client polls at least twice
        self.state.operations[name] = [{"status": "InProgress"}, last]
        path = f"{self.state.place.locations_path}/{kind}OperationsStatus/{name}"
        url = f"https://management.azure.com{path}?api-version=2023-08-01-preview"
        reply = Reply(status) if document is None else Reply.json(document, status)
        reply.headers.update({"Azure-AsyncOperation": url, "Location": url, **POLL_HEADERS})
        return reply

    def put(self, path: str, kind: str, document: Document, error: Document | None = None) -> Reply:
        """Store a resource, as a long-running operation of an endpoint.

        Args:
            path: below the workspace.
            kind: its type in ARM.
            document: body of the PUT.
            error: what the operation fails with.
        """
        resource, new = self.state.put(path, kind, document)
        return self.accepted("mfe", 201 if new else 200, resource, error)

    def page(self, call: Call, documents: Iterable[Document]) -> Reply:
        """Return one page of a list, in ARM's format."""
        shown, following = call.page(list(documents), self.page_size)
        return Reply.json({"value": shown, **({"nextLink": following} if following else {})})


@ROUTES.add("GET", f"{REGION}/{{kind:compute|job|mfe}}OperationsStatus/{{name}}")
def get_operation(service: ResourceManager, call: Call, region: str, kind: str, name: str) -> Reply:
    """Return the status of a long-running operation: first `InProgress`, then its result.

    Raises:
        Refusal: it does not exist.
    """
    if (answers := service.state.operations.get(name)) is None:
        raise Refusal(404, "OperationNotFound", f"Operation '{name}' was not found.")
    answer = answers.pop(0) if len(answers) > 1 else answers[0]
    return Reply.json({"id": call.path, "name": name, **answer}, headers=POLL_HEADERS)


@ROUTES.add("GET", "")
def get_workspace(service: ResourceManager, call: Call) -> Reply:
    """Return the workspace, with the address from which clients learn the hosts of the data plane."""
    place = service.state.place
    return Reply.json(
        {
            "id": place.workspace_path,
            "identity": {"type": "SystemAssigned", "tenantId": place.tenant},
            "kind": "Default",
            "location": place.region,
            "name": place.workspace,
            "properties": {
                "discoveryUrl": f"https://{place.data_plane}/discovery",
                "friendlyName": place.workspace,
                "mlFlowTrackingUri": f"azureml://{place.data_plane}/mlflow/v1.0{place.workspace_path}",
                "provisioningState": "Succeeded",
                "publicNetworkAccess": "Enabled",
                "storageAccount": f"{place.group_path}/providers/Microsoft.Storage/storageAccounts/{place.account}",
                "tenantId": place.tenant,
                "workspaceId": "00000000-0000-4000-8000-00000000000e",
            },
            "tags": {},
            "type": f"{PROVIDER}/workspaces",
        }
    )


@ROUTES.add("GET", "onlineEndpoints/{name}")
@ROUTES.add("GET", "onlineEndpoints/{name}/deployments/{deployment}")
@ROUTES.add("GET", "(environments|data|models|codes)/{name}/versions/{version}")
def get_resource(service: ResourceManager, call: Call, **_: str) -> Reply:
    """Return a resource as it was stored."""
    return Reply.json(service.get(service.path(call)))
