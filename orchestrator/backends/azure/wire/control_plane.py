"""The one place that knows Azure's SDK: every private function of azure-ai-ml that is used, is used here.

Bodies are sent as they are in the request, through the clients that MLClient's own operations use, so that a dry run
shows the very bodies. The public operations would change them: they add facts about git in the current folder, and
give code a random name. Tested with azure-ai-ml 1.35.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from copy import copy
from io import StringIO
from itertools import islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from orchestrator.backends.azure.options import Workspace
from orchestrator.backends.azure.wire.azure_errors import is_transient, retry_reading, translated_errors
from orchestrator.backends.azure.wire.sign_in import SignIn
from orchestrator.support.errors import NotFoundError
from orchestrator.support.quiet_tqdm import load_quietly

Body = dict[str, Any]
T = TypeVar("T")

STORE_SECONDS = 1800  # a signature is valid for an hour: its user has at least half of that
POLLING_SECONDS = 5  # of long operations, unless Azure gives a time; the SDK's default is 30
_VERSIONS = {
    "environments": "environments._version_operations",
    "codes": "_code._version_operation",
    "data": "data._operation",
    "models": "models._model_versions_operation",
}  # kind of asset -> client of its versions
_READ_ONLY = {"provisioningState", "provisioningErrors", "createdOn", "modifiedOn", "resourceId", "isAttachedCompute"}
_READ_ONLY_INNER = {
    *("allocationState", "allocationStateTransitionTime", "errors", "currentNodeCount", "targetNodeCount"),
    *("nodeStateCounts", "propertyBag"),
}


class Store(NamedTuple):
    """Address of a datastore, with the permission to use it: never printed, never kept."""

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
        """The part of the address after `ACCOUNT.blob.`."""
        return self.url.partition(".blob.")[2].rstrip("/")


class Wire:
    """Requests to one workspace. Every method raises UserError if Azure refuses or cannot be reached.

    Args:
        workspace: the workspace.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._scope = workspace.resource_group, workspace.workspace
        self._client: Any = None
        self._stores: dict[str, tuple[float, Store]] = {}

    def location(self) -> str:
        """Return the region of the workspace.

        Raises:
            NotFoundError: the workspace does not exist.
            AuthError: not signed in, or not allowed to see it.
        """
        group, name = self._scope
        try:
            return str(self._call(f"workspace {name}", lambda ml: ml.workspaces.get(name).location))
        except NotFoundError:
            raise NotFoundError(
                f"workspace {name} does not exist",
                facts={"where": f"resource group {group}, subscription {self.workspace.subscription_id}"},
                fix="az ml workspace list --output table",
            ) from None

    def tracking_uri(self) -> str:
        """Return the address of the workspace's MLflow runs, `azureml://...`."""
        return str(self._call("workspace", lambda ml: ml.workspaces.get(self._scope[1]).mlflow_tracking_uri))

    def compute(self, name: str) -> Body | None:
        """Return a cluster; None: it does not exist."""
        return self._get(f"cluster {name}", lambda ml: ml.compute._operation.get(*self._scope, name))

    def computes(self) -> list[Body]:
        """Return all clusters."""
        return self._list("clusters", lambda ml: ml.compute._operation.list(*self._scope))

    def put_compute(self, name: str, body: Body) -> None:
        """Create or change a cluster, and wait until Azure has done so, which takes up to minutes."""
        self._call(
            f"cluster {name}",
            lambda ml: ml.compute._operation.begin_create_or_update(*self._scope, name, body).result(),
        )

    def delete_compute(self, name: str) -> None:
        """Delete a cluster with its machines, and wait."""
        delete = {"underlying_resource_action": "Delete"}
        self._call(
            f"cluster {name}", lambda ml: ml.compute._operation.begin_delete(*self._scope, name, **delete).result()
        )

    def usages(self, location: str) -> list[Body]:
        """Return the subscription's quotas in a region: {name, limit, used}, in cores."""
        found = self._list("quota", lambda ml: ml.compute._usage_operations.list(location))
        return [
            {"name": one["name"]["value"], "limit": int(one["limit"]), "used": int(one["currentValue"])}
            for one in found
        ]

    def sizes(self, location: str) -> list[Body]:
        """Return the machine sizes of a region: name, family, vCPUs, gpus, memoryGB, lowPriorityCapable."""
        return self._list("machine sizes", lambda ml: ml.compute._vmsize_operations.list(location).value)

    def asset(self, kind: str, name: str, version: str) -> Body | None:
        """Return a version of an asset; None: it does not exist.

        Args:
            kind: environments, codes, data or models.
            name: of the asset.
            version: of the asset.
        """
        versions = attrgetter(_VERSIONS[kind])
        return self._get(f"{kind} {name}:{version}", lambda ml: versions(ml).get(*self._scope, name, version))

    def assets(self, kind: str) -> list[Body]:
        """Return all assets of a kind that are not archived, without their versions; only of data."""
        return self._list(kind, lambda ml: ml.data._container_operation.list(*self._scope, list_view_type="ActiveOnly"))

    def asset_versions(self, kind: str, name: str) -> list[Body]:
        """Return the versions of an asset that are not archived, the newest first; empty if it does not exist."""
        versions = attrgetter(_VERSIONS[kind])
        order = {"order_by": "createdtime desc", "list_view_type": "ActiveOnly"}
        try:
            return self._list(f"{kind} {name}", lambda ml: versions(ml).list(*self._scope, name, **order))
        except NotFoundError:
            return []

    def put_asset(self, kind: str, name: str, version: str, body: Body) -> None:
        """Create a version of an asset; an existing version cannot be changed.

        Args:
            kind: environments, codes, data or models.
            name: of the asset.
            version: of the asset.
            body: with the `properties` of Azure's REST API.

        Raises:
            ConflictError: the version exists with other content.
        """
        versions, scope = attrgetter(_VERSIONS[kind]), (*self._scope, name, version)
        self._call(f"{kind} {name}:{version}", lambda ml: versions(ml).create_or_update(*scope, body))

    def store(self, name: str) -> Store:
        """Return the address of a datastore.

        Raises:
            NotFoundError: the workspace has no such datastore.
        """
        known = self._stores.get(name)
        if known is None or time.time() - known[0] > STORE_SECONDS:  # monotonic() stops in a sleeping laptop
            try:
                found = retry_reading(
                    lambda: self._call(f"datastore {name}", lambda ml: _datastore_info(ml.datastores, name))
                )
            except NotFoundError:
                raise NotFoundError(
                    f"unknown datastore {name!r} in workspace {self._scope[1]}", fix="--set azure.datastore=NAME"
                ) from None
            store = Store(*itemgetter("storage_account", "account_url", "container_name", "credential")(found))
            known = self._stores[name] = time.time(), store
        return known[1]

    def job(self, name: str) -> Body | None:
        """Return a job; None: it does not exist."""
        return self._get(f"job {name}", lambda ml: ml.jobs._get_job_2401(name))

    def put_job(self, name: str, body: Body) -> None:
        """Submit a command or sweep job with a single request.

        Args:
            name: of the job.
            body: with the `properties` of Azure's REST API.

        Raises:
            UserError: Azure refused it, or it is unknown whether Azure has it; `__cause__` is Azure's own error.
        """
        user = body["properties"].get("identity", {}).get("identityType") == "UserIdentity"

        def put(ml: Any) -> None:
            more: dict[str, Any] = {}
            if user:
                ml.jobs._set_headers_with_user_aml_token(more)
            # each job type has its own API version, as in the SDK's own operation
            clients = ml.jobs.service_client_01_2025_preview, ml.jobs.service_client_01_2024_preview_arm
            resources = body["properties"].get("resources") or {}
            # only the older version has elastic jobs
            client = clients[body["properties"]["jobType"] == "Sweep" or "maxInstanceCount" in resources]
            # No retries of the SDK: after a lost reply it would send the job again, and report a conflict with the job
            # that it had just created. `dispatch.put` asks for the job before it sends another request.
            client.jobs.create_or_update(*self._scope, name, body, retry_total=0, **more)

        self._call(f"job {name}", put)

    def put_job_file(self, job: Any) -> None:
        """Submit a job of a file by the SDK's own operation, which uploads the files that it names."""
        with redirect_stderr(StringIO()):  # it prints a colour code for each upload, in spite of show_progress
            self._call(f"job {job.name}", lambda ml: ml.jobs.create_or_update(job))

    def cancel_job(self, name: str) -> None:
        """Ask a job to end."""
        self._call(f"job {name}", lambda ml: ml.jobs.begin_cancel(name))

    def jobs(self, limit: int) -> list[Body]:
        """Return at most `limit` jobs of the workspace that are not archived, the newest first: {name, tags}."""

        def newest(ml: Any) -> list[Body]:
            # the SDK yields None for jobs that it cannot parse
            found = islice((job for job in ml.jobs.list() if job is not None), limit)
            return [{"name": job.name, "tags": dict(job.tags or {})} for job in found]

        return self._call("jobs", newest)

    def details(self, name: str) -> Body:
        """Return a job in the run history: status, times, error, and the addresses of its logs."""
        return self._call(f"job {name}", lambda ml: dict(ml.jobs._runs_operations.get_run_details(name).as_dict()))

    def children(self, name: str) -> list[Body]:
        """Return the trials of a sweep in the run history: runId, status, tags."""
        scope = self.workspace.subscription_id, *self._scope
        return self._list(f"trials of {name}", lambda ml: ml.jobs._runs_operations._operation.get_child(*scope, name))

    def put_schedule(self, name: str, body: Body) -> None:
        """Create or replace a schedule, and wait."""
        self._call(
            f"schedule {name}",
            lambda ml: ml.schedules.service_client.begin_create_or_update(*self._scope, name, body).result(),
        )

    def schedule(self, name: str) -> Body | None:
        """Return a schedule; None: it does not exist."""
        return self._get(f"schedule {name}", lambda ml: ml.schedules.service_client.get(*self._scope, name))

    def delete_schedule(self, name: str) -> None:
        """Delete a schedule, and wait; without an error if it does not exist."""
        found = self.schedule(name)
        if found is None:
            return
        properties = {key: value for key, value in found["properties"].items() if key not in _READ_ONLY}
        if properties.get("isEnabled"):  # Azure refuses to delete an enabled schedule
            self.put_schedule(name, {"properties": {**properties, "isEnabled": False}})
        with suppress(NotFoundError):
            self._call(
                f"schedule {name}", lambda ml: ml.schedules.service_client.begin_delete(*self._scope, name).result()
            )

    def archive_job(self, name: str) -> None:
        """Remove a job from the workspace's lists."""
        self._call(f"job {name}", lambda ml: ml.jobs.archive(name))

    def endpoint(self, name: str) -> Body | None:
        """Return an online endpoint."""
        return self._get(f"endpoint {name}", lambda ml: ml.online_endpoints._online_operation.get(*self._scope, name))

    def endpoints(self) -> list[Body]:
        """Return all online endpoints."""
        return self._list("endpoints", lambda ml: ml.online_endpoints._online_operation.list(*self._scope))

    def deployments(self, endpoint: str) -> list[Body]:
        """Return the deployments of an online endpoint."""
        return self._list(
            f"deployments of endpoint {endpoint}",
            lambda ml: ml.online_deployments._online_deployment.list(*self._scope, endpoint),
        )

    def put_endpoint(self, name: str, body: Body) -> None:
        """Create or change an online endpoint, and wait."""
        self._call(
            f"endpoint {name}",
            lambda ml: ml.online_endpoints._online_operation.begin_create_or_update(*self._scope, name, body).result(),
        )

    def put_deployment(self, endpoint: str, name: str, body: Body) -> None:
        """Create or change a deployment of an endpoint, and wait; its machine takes about 10 minutes to start.

        Args:
            endpoint: name of the endpoint.
            name: of the deployment.
            body: with the `properties` of Azure's REST API.
        """
        scope = *self._scope, endpoint, name
        self._call(
            f"deployment {endpoint}/{name}",
            lambda ml: ml.online_deployments._online_deployment.begin_create_or_update(*scope, body).result(),
        )

    def delete_deployment(self, endpoint: str, name: str) -> None:
        """Delete a deployment that gets no traffic, and wait."""
        scope = *self._scope, endpoint, name
        self._call(
            f"deployment {endpoint}/{name}",
            lambda ml: ml.online_deployments._online_deployment.begin_delete(*scope).result(),
        )

    def delete_endpoint(self, name: str) -> None:
        """Delete an endpoint with its deployments, and wait."""
        self._call(
            f"endpoint {name}",
            lambda ml: ml.online_endpoints._online_operation.begin_delete(*self._scope, name).result(),
        )

    def _get(self, what: str, ask: Callable[[Any], Any]) -> Body | None:
        with suppress(NotFoundError):
            return dict(self._call(what, ask).as_dict())
        return None

    def _list(self, what: str, ask: Callable[[Any], Any]) -> list[Body]:
        return self._call(what, lambda ml: [dict(one.as_dict()) for one in ask(ml)])

    def _call(self, what: str, ask: Callable[[Any], T]) -> T:
        """Call the SDK; if the token was not accepted, again with a new client, which signs in again."""
        from azure.core.exceptions import HttpResponseError

        with translated_errors(what):
            try:
                return ask(self._ml())
            except HttpResponseError as problem:
                if problem.status_code != 401:
                    raise
            # A follower runs for weeks, and the SDK caches a token until it expires: one that was revoked earlier would
            # fail every request. Once only: with a new token, a 401 is final.
            self._client = None
            return ask(self._ml())

    def _ml(self) -> Any:
        """Return the SDK's client, which prints nothing: stdout and stderr are ours."""
        if self._client is None:
            self.workspace.require()
            load_quietly()
            from azure.ai.ml import MLClient  # takes more than a second and 100 MB: only before the first request

            quiet()
            self._client = MLClient(
                SignIn(os.environ),
                self.workspace.subscription_id,
                *self._scope,
                enable_telemetry=False,
                show_progress=False,
                polling_interval=POLLING_SECONDS,
            )
        return self._client


def _datastore_info(operations: Any, name: str) -> Body:
    """Return address and credential of a datastore.

    Raises:
        HttpResponseError: Azure is busy, or failed.
    """
    from azure.ai.ml._artifacts._artifact_utilities import get_datastore_info
    from azure.core.exceptions import HttpResponseError

    errors: list[HttpResponseError] = []

    def list_secrets(**options: Any) -> Any:
        try:
            return operations._list_secrets(**options)
        except HttpResponseError as problem:
            errors.append(problem)
            raise

    watched = copy(operations)
    watched._list_secrets = list_secrets
    found: Body = get_datastore_info(watched, name)
    # The SDK takes the user's token after any error, which the storage refuses later: right only after a refusal.
    if errors and is_transient(errors[-1]):
        raise errors[-1]
    return found


def quiet() -> None:
    """Silence Azure's SDK, which warns of each experimental class through logging. Call this once it is loaded."""
    for name in ("azure", "azure.ai.ml", "azure.ai.ml._utils._experimental", "msal"):
        logging.getLogger(name).setLevel(logging.ERROR)


def content_hash(path: Path) -> str:
    """Return the hash by which the SDK recognises code that it has uploaded; without files that .amlignore names."""
    from azure.ai.ml._utils._asset_utils import get_content_hash, get_ignore_file

    return str(get_content_hash(path, get_ignore_file(path)))


def rest_body(job: Any) -> Body:
    """Return the body that the SDK sends for one of its own jobs, except for ids that only the workspace gives."""
    from azure.ai.ml.entities._job.to_rest_functions import to_rest_job_object

    return dict(to_rest_job_object(job).as_dict())


def writable(body: Body) -> Body:
    """Return a cluster without the fields that only Azure writes, so that it can be sent back."""
    kept = {key: body[key] for key in ("location", "identity", "tags", "sku") if body.get(key)}
    outer = {key: value for key, value in body["properties"].items() if key not in _READ_ONLY and value is not None}
    inner = (outer.get("properties") or {}).items()
    outer["properties"] = {key: value for key, value in inner if key not in _READ_ONLY_INNER and value is not None}
    return {**kept, "properties": outer}


def duration(seconds: int) -> str:
    """Return seconds in ISO 8601, as Azure's SDK writes them: PT30M, P1DT2H."""
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    time = "".join(f"{value}{unit}" for value, unit in ((hours, "H"), (minutes, "M"), (left, "S")) if value)
    return "P" + (f"{days}D" if days else "") + (f"T{time}" if time or not days else "")


def duration_seconds(text: str) -> int:
    """Return the seconds of an ISO 8601 duration of days, hours, minutes and seconds."""
    units = {"D": 86_400, "H": 3600, "M": 60, "S": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([DHMS])", text))
