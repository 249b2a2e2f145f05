"""The one place that knows Azure's SDK: every private function of azure-ai-ml that is used, is used here.

Bodies go out as they are in the request, through the very clients that MLClient's own operations use, so that what a
dry run shows is what is sent. The public operations would make other bodies of it: they add what git says of the
current folder, and give code a random name. Tried with azure-ai-ml 1.35.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from orchestrator.backends.azure.wire.azure_errors import explained
from orchestrator.backends.azure.wire.sign_in import SignIn
from orchestrator.backends.azure.wire.workspace import Workspace
from orchestrator.support.errors import NotFoundError
from orchestrator.support.quiet_tqdm import load_quietly

Body = dict[str, Any]

T = TypeVar("T")
STORE_SECONDS = 1800  # a signature lasts for an hour; half of that is left to whoever gets it
POLLING_SECONDS = 5  # of long operations, where Azure does not say how long to wait
_READ_ONLY = ("provisioningState", "provisioningErrors", "createdOn", "modifiedOn", "resourceId", "isAttachedCompute")


class Store(NamedTuple):
    """Where a datastore really is, and what lets us in: never printed, never kept."""

    account: str
    """Name of the storage account."""
    url: str
    """https address of the account."""
    container: str
    """Its container."""
    credential: Any
    """A signature, a key, or the token credential."""

    @property
    def endpoint(self) -> str:
        """What follows `ACCOUNT.blob.` in the address."""
        return self.url.partition(".blob.")[2].rstrip("/")


class Wire:
    """All that is asked of and sent to one workspace.

    Args:
        workspace: which.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._made: Any = None
        self._stores: dict[str, tuple[float, Store]] = {}

    def location(self) -> str:
        """The region of the workspace, which has to be there.

        Raises:
            NotFoundError: there is no such workspace.
            AuthError: not signed in, or not allowed to see it.
        """
        name = self.workspace.workspace
        found = self._or_none(f"workspace {name}", lambda ml: ml.workspaces.get(name))
        if found is None:
            where = f"resource group {self.workspace.resource_group}, subscription {self.workspace.subscription_id}"
            raise NotFoundError(
                f"there is no workspace {name}", facts={"where": where}, fix="az ml workspace list --output table"
            )
        return str(found.location)

    def tracking_uri(self) -> str:
        """Where MLflow finds the runs of the workspace."""
        found = self._call("workspace", lambda ml: ml.workspaces.get(self.workspace.workspace))
        return str(found.mlflow_tracking_uri)

    def compute(self, name: str) -> Body | None:
        """A cluster as it is."""
        found = self._or_none(f"cluster {name}", lambda ml: ml.compute._operation.get(*self._scope, name))
        return None if found is None else dict(found.as_dict())

    def computes(self) -> list[Body]:
        """All of them."""
        return self._call(
            "clusters", lambda ml: [dict(one.as_dict()) for one in ml.compute._operation.list(*self._scope)]
        )

    def put_compute(self, name: str, body: Body) -> None:
        """Makes or changes a cluster, and waits until that is done."""
        what = f"cluster {name}"
        self._call(what, lambda ml: ml.compute._operation.begin_create_or_update(*self._scope, name, body).result())

    def delete_compute(self, name: str) -> None:
        """Deletes a cluster with its machines, and waits until it is gone."""
        delete = {"underlying_resource_action": "Delete"}
        self._call(
            f"cluster {name}", lambda ml: ml.compute._operation.begin_delete(*self._scope, name, **delete).result()
        )

    def usages(self, location: str) -> list[Body]:
        """What the subscription may use in a region and does: {name, limit, used}, in cores."""

        found = self._call("quota", lambda ml: [one.as_dict() for one in ml.compute._usage_operations.list(location)])
        return [
            {"name": one["name"]["value"], "limit": int(one["limit"]), "used": int(one["currentValue"])}
            for one in found
        ]

    def asset(self, kind: str, name: str, version: str) -> Body | None:
        """A version of an asset: kind is environments, codes, data or models."""
        what = f"{kind} {name}:{version}"
        found = self._or_none(what, lambda ml: _versions(ml, kind).get(*self._scope, name, version))
        return None if found is None else dict(found.as_dict())

    def put_asset(self, kind: str, name: str, version: str, body: Body) -> None:
        """Makes a version of an asset."""
        what = f"{kind} {name}:{version}"
        self._call(what, lambda ml: _versions(ml, kind).create_or_update(*self._scope, name, version, body))

    def store(self, name: str) -> Store:
        """Where a datastore is.

        Raises:
            NotFoundError: the workspace has no such datastore.
        """
        known = self._stores.get(name)
        if known is None or time.monotonic() - known[0] > STORE_SECONDS:
            from azure.ai.ml._artifacts._artifact_utilities import get_datastore_info

            found = self._or_none(f"datastore {name}", lambda ml: get_datastore_info(ml.datastores, name))
            if found is None:
                raise NotFoundError(
                    f"workspace {self.workspace.workspace} has no datastore {name}", fix="--set azure.datastore=NAME"
                )
            names = ("storage_account", "account_url", "container_name", "credential")
            known = self._stores[name] = time.monotonic(), Store(*(found[key] for key in names))
        return known[1]

    def job(self, name: str) -> Body | None:
        """A job as Azure has it."""
        found = self._or_none(f"job {name}", lambda ml: ml.jobs._get_job_2401(name))
        return None if found is None else dict(found.as_dict())

    def put_job(self, name: str, body: Body) -> None:
        """Submits a command or sweep job, once: whether it arrived, `job` tells, and not a second request.

        Raises:
            UserError: it was refused, or nobody knows; `__cause__` has Azure's own error.
        """
        user = body["properties"].get("identity", {}).get("identityType") == "UserIdentity"

        def put(ml: Any) -> None:
            more: dict[str, Any] = {}
            if user:
                ml.jobs._set_headers_with_user_aml_token(more)
            clients = ml.jobs.service_client_01_2025_preview, ml.jobs.service_client_01_2024_preview_arm
            client = clients[body["properties"]["jobType"] == "Sweep"]  # as the SDK's own operation chooses
            client.jobs.create_or_update(*self._scope, name, body, retry_total=0, **more)

        self._call(f"job {name}", put)

    def put_job_file(self, job: Any) -> None:
        """Submits a job of a file by the SDK's own operation, which uploads what it names."""
        self._call(f"job {job.name}", lambda ml: ml.jobs.create_or_update(job))

    def cancel_job(self, name: str) -> None:
        """Asks a job to end."""
        self._call(f"job {name}", lambda ml: ml.jobs.begin_cancel(name))

    def jobs(self, limit: int) -> list[Body]:
        """So many jobs of the workspace that are not archived, the newest first: {name, tags}."""

        def ask(ml: Any) -> list[Body]:
            found = islice((job for job in ml.jobs.list() if job is not None), limit)
            return [{"name": job.name, "tags": dict(job.tags or {})} for job in found]

        return self._call("jobs", ask)

    def details(self, name: str) -> Body:
        """What the run history knows of a job: status, times, error, and the addresses of its logs."""
        found = self._call(f"job {name}", lambda ml: ml.jobs._runs_operations.get_run_details(name))
        return dict(found.as_dict())

    def children(self, name: str) -> list[Body]:
        """What the run history knows of the trials of a sweep: runId, status, tags."""

        def ask(ml: Any) -> list[Body]:
            history = ml.jobs._runs_operations._operation
            return [
                dict(one.as_dict()) for one in history.get_child(self.workspace.subscription_id, *self._scope, name)
            ]

        return self._call(f"trials of {name}", ask)

    def archive_job(self, name: str) -> None:
        """Takes a job off the lists."""
        self._call(f"job {name}", lambda ml: ml.jobs.archive(name))

    def endpoint(self, name: str) -> Body | None:
        """An online endpoint."""
        found = self._or_none(
            f"endpoint {name}", lambda ml: ml.online_endpoints._online_operation.get(*self._scope, name)
        )
        return None if found is None else dict(found.as_dict())

    def put_endpoint(self, name: str, body: Body) -> None:
        """Makes or changes an online endpoint, and waits."""
        what = f"endpoint {name}"
        self._call(
            what,
            lambda ml: ml.online_endpoints._online_operation.begin_create_or_update(*self._scope, name, body).result(),
        )

    def put_deployment(self, endpoint: str, name: str, body: Body) -> None:
        """Makes or changes what answers behind an endpoint, and waits."""

        def put(ml: Any) -> None:
            operation = ml.online_deployments._online_deployment
            operation.begin_create_or_update(*self._scope, endpoint, name, body).result()

        self._call(f"deployment {endpoint}/{name}", put)

    def delete_endpoint(self, name: str) -> None:
        """Deletes an endpoint with all behind it, and waits."""
        self._call(
            f"endpoint {name}",
            lambda ml: ml.online_endpoints._online_operation.begin_delete(*self._scope, name).result(),
        )

    @property
    def _scope(self) -> tuple[str, str]:
        return self.workspace.resource_group, self.workspace.workspace

    def _or_none(self, what: str, ask: Callable[[Any], T]) -> T | None:
        with suppress(NotFoundError):
            return self._call(what, ask)
        return None

    def _call(self, what: str, ask: Callable[[Any], T]) -> T:
        """Asks with a client; once more with a new one, which signs in anew, if the token was not accepted."""
        from azure.core.exceptions import HttpResponseError

        with explained(what):
            try:
                return ask(self._ml())
            except HttpResponseError as problem:
                if problem.status_code != 401:
                    raise
            self._made = None
            return ask(self._ml())

    def _ml(self) -> Any:
        if self._made is None:
            self.workspace.require()
            self._made = _client(self.workspace)
        return self._made


def _client(workspace: Workspace) -> Any:
    """MLClient, which says nothing on its own: stdout and stderr are ours."""
    load_quietly()
    from azure.ai.ml import MLClient

    quiet()
    return MLClient(
        SignIn(os.environ),
        workspace.subscription_id,
        workspace.resource_group,
        workspace.workspace,
        enable_telemetry=False,
        show_progress=False,
        polling_interval=POLLING_SECONDS,
    )


def quiet() -> None:
    """Silences Azure's SDK, of which every class that it calls experimental says so. Call it once that is loaded."""
    for name in ("azure", "azure.ai.ml", "azure.ai.ml._utils._experimental", "msal"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _versions(ml: Any, kind: str) -> Any:
    """The client that knows the versions of a kind of asset."""
    return {
        "environments": lambda: ml.environments._version_operations,
        "codes": lambda: ml._code._version_operation,
        "data": lambda: ml.data._operation,
        "models": lambda: ml.models._model_versions_operation,
    }[kind]()


def writable(body: Body) -> Body:
    """A cluster as Azure has it, without what only Azure writes: what may be sent back."""
    kept = {key: body[key] for key in ("location", "identity", "tags", "sku") if body.get(key)}
    properties = {
        key: value for key, value in body["properties"].items() if key not in _READ_ONLY and value is not None
    }
    inner = properties.get("properties") or {}
    sizes = ("allocationState", "allocationStateTransitionTime", "errors", "currentNodeCount", "targetNodeCount")
    states = (*sizes, "nodeStateCounts", "propertyBag")
    properties["properties"] = {key: value for key, value in inner.items() if key not in states and value is not None}
    return {**kept, "properties": properties}
