"""The double: it starts the services, gives clients the variables to find them, and injects faults on request."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestrator.testing.arm import assets, endpoints, job_resources, machines, resource_manager, schedules
from orchestrator.testing.arm.resource_manager import ResourceManager
from orchestrator.testing.blob_service import BlobService, Storage
from orchestrator.testing.cloud_state import ARTIFACTS, DEFAULT, Document, State, WorkspaceAddress
from orchestrator.testing.jobs.execution import Executor
from orchestrator.testing.jobs.job_table import COMPLETED, CloudJob, Jobs
from orchestrator.testing.jobs.sweep_jobs import SweepJob
from orchestrator.testing.proxy.login import JOB_IDENTITY, LOGIN_HOST, METADATA_HOST, SECRET, Login
from orchestrator.testing.proxy.messages import Call, Refusal, Reply, Routes
from orchestrator.testing.proxy.server import Answer, Fault, Faults, Moment, Proxy, Recorded, server_context
from orchestrator.testing.services.key_vault import VAULT_DOMAIN, KeyVaults
from orchestrator.testing.services.mlflow_service import Tracking
from orchestrator.testing.services.run_history import RunHistory

MAX_JOB_SECONDS = 21 * 24 * 3600.0
LOOPBACK = "127.0.0.1"
MANAGEMENT_HOST = "management.azure.com"
RESOURCES = (resource_manager, machines, assets, endpoints, job_resources, schedules)
NO_PROXY = "localhost,127.0.0.1"


class AzureDouble:
    """A workspace of Azure ML on the loopback interface, for the unmodified clients of Azure.

    Within `with`, this process's environment leads Azure's clients to it; a subprocess gets `environment()`.

    Args:
        home: where everything is kept; None: a temporary folder, which goes when the double closes.
        place: names of the subscription, the workspace and so on.
        run_jobs: whether a command job's command is run, on this machine, and a sweep's trials. False: a job stays
            in its status until `move`.
        faults: decides which calls fail; None: those of `fail_next` and `reset_next`.
    """

    def __init__(
        self,
        home: Path | None = None,
        *,
        place: WorkspaceAddress | None = None,
        run_jobs: bool = True,
        faults: Faults | None = None,
    ) -> None:
        self.place = place or WorkspaceAddress()
        self._temporary = tempfile.mkdtemp(prefix="azure-double-") if home is None else None
        self.home = Path(self._temporary or home or "").resolve()
        context, self._authority = server_context(self.home / "tls", f"*.{self.place.scoring_domain}")
        self.state = State(self.place)
        self.login = Login(self.place)
        datastores = {DEFAULT: "azureml-blobstore-double", ARTIFACTS: "azureml"}
        self.storage = Storage(self.home / "blobs", datastores)
        self.jobs = Jobs(self._capacity)
        if run_jobs:
            folder = self.home / "jobs"
            self.jobs.execute = Executor(folder, self.state, self.storage, self._variables, self.jobs.launched)
        routes = Routes(route for part in RESOURCES for route in part.ROUTES)
        self.manager = ResourceManager(self.state, self.login, self.storage, self.jobs, routes)
        self.vaults = KeyVaults(self.login)
        self._runs = Tracking(self.state, self.jobs, self.login.check)
        self.jobs.run_sweep = self._run_sweep
        self.prices = machines.Prices()
        self._services: dict[str, Answer] = {
            MANAGEMENT_HOST: self.manager.answer,
            LOGIN_HOST: self.login.answer,
            METADATA_HOST: self.login.metadata,
            self.place.data_plane: RunHistory(self.manager, self._runs).answer,
            machines.PRICES_HOST: self.prices.answer,
            LOOPBACK: self._runs.answer,
            self.place.blob_host: BlobService(self.place, self.storage, self.login).answer,
        }
        self._proxy = Proxy(self._answer, self._is_known_host, context, faults)
        self.faults = self._proxy.faults
        self._environment_before: dict[str, str | None] = {}
        self._closed = False
        # a test that forgets `close` must not leave processes of jobs behind
        atexit.register(self.close)

    def __enter__(self) -> AzureDouble:
        wanted = self.environment()
        self._environment_before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the jobs, close every connection, join every thread and restore the environment. Idempotent.

        Raises:
            RuntimeError: the double itself crashed while it answered a call or ran a job. A client may have handled the
                resulting error, so that the test would pass.
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        for name, value in self._environment_before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if (registry := sys.modules.get("mlflow.tracking._tracking_service.registry")) is not None:
            # MLflow caches a client for each address until the process ends, with a token of this double: the next
            # double at the same address would refuse it
            registry.TrackingStoreRegistry._get_store_with_resolved_uri.cache_clear()
        # jobs first: they report to MLflow through the proxy
        self.jobs.close()
        self._proxy.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        if crashes := [*self._proxy.crashes, *self.jobs.crashes]:
            raise RuntimeError("the double itself crashed") from crashes[0]

    def environment(self) -> dict[str, str]:
        """Return the variables that route Azure's clients of a process to the double.

        They name the proxy, the authority to trust, the credential of an application, and the workspace.
        """
        # both cases, because clients differ in the one that they read
        proxies = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), self._proxy.url)
        return {
            **proxies,
            "NO_PROXY": NO_PROXY,
            "no_proxy": NO_PROXY,
            "REQUESTS_CA_BUNDLE": str(self._authority),
            "SSL_CERT_FILE": str(self._authority),
            "AZURE_TENANT_ID": self.place.tenant,
            "AZURE_CLIENT_ID": self.place.client,
            "AZURE_CLIENT_SECRET": SECRET,
            "AZUREML_CURRENT_CLOUD": "AzureCloud",
            "ORCHESTRATOR_AZURE_SUBSCRIPTION_ID": self.place.subscription,
            "ORCHESTRATOR_AZURE_RESOURCE_GROUP": self.place.resource_group,
            "ORCHESTRATOR_AZURE_WORKSPACE": self.place.workspace,
        }

    def requests(self, match: str = "*") -> list[Recorded]:
        """Return the requests so far whose `METHOD host/path` matches a pattern of `fnmatch`, without secrets."""
        return [call for call in list(self._proxy.recorded) if fnmatchcase(call.line, match)]

    @property
    def refused(self) -> list[str]:
        """Hosts outside the double that a client tried to reach, once for each try."""
        return list(self._proxy.refused)

    @property
    def violations(self) -> list[str]:
        """Errors in request bodies, against Microsoft's schemas."""
        return list(self.manager.violations)

    @property
    def secrets(self) -> list[str]:
        """All issued tokens, keys and signatures: they belong in no log."""
        vaults = self.vaults.values.values()
        return [SECRET, self.manager.scoring_key, *list(self.login.expiry), *self.storage.secrets, *vaults]

    def fail_next(
        self,
        match: str,
        *,
        status: int = 503,
        retry_after: float | None = None,
        times: int = 1,
        code: str | None = None,
        message: str | None = None,
    ) -> None:
        """Answer the next calls whose `METHOD host/path` matches with an error, and do nothing.

        Args:
            match: a pattern of `fnmatch`, `PUT *.blob.*`.
            status: 429, 500, 503, 401, 403, ...
            retry_after: seconds, in `Retry-After`; less than one in `retry-after-ms`.
            times: number of calls.
            code: the service's name for the error; None: the usual one of that status.
            message: its text; None: the usual one.
        """
        self.faults.append(Fault(match, Moment.ANSWER, times, Refusal.usual(status, code, message, retry_after)))

    def reset_next(self, match: str, *, when: str = "connection", times: int = 1) -> None:
        """Reset the connection of the next calls that match.

        Args:
            match: see `fail_next`.
            when: `connection`: before anything was read; `upload`: half-way through the body; `reply`: after the call
                was carried out, instead of the answer; `cut`: likewise, after half of the answer.
            times: number of calls.
        """
        self.faults.append(Fault(match, Moment(when), times))

    def expire_tokens(self) -> None:
        """Refuse every token issued so far, whatever its expiry date."""
        self.login.expire()

    def fail_compute(self, name: str, *, code: str, message: str) -> None:
        """Accept the next creations of a cluster, and make them fail later, as a long-running operation.

        Args:
            name: of the cluster.
            code: Azure's name for the error, such as AllocationFailed.
            message: its text.
        """
        self.state.failing_computes[name] = {"code": code, "message": message}

    def fail_deployment(self, name: str, *, code: str, message: str) -> None:
        """Accept the next creations of an endpoint's deployment, and make them fail later, as `fail_compute` does."""
        self.state.failing_deployments[name] = {"code": code, "message": message}

    def without_capacity(self, name: str, missing: bool = True) -> None:
        """Give a cluster no machine: its jobs stay queued, and its errors show the reason."""
        (self.state.no_capacity.add if missing else self.state.no_capacity.discard)(name)

    def set_quota(self, family: str, cores: int) -> None:
        """Set the quota of a VM family, in cores."""
        self.state.quotas[family] = cores

    def by_identity(self, enabled: bool = True) -> None:
        """Make datastores identity-based from now on: without keys, readable only with a token."""
        self.storage.by_identity = enabled

    def hold_queue(self, held: bool = True) -> None:
        """Keep jobs that do not run yet in the queue while `held`."""
        self.jobs.hold(held)

    def preempt(self, name: str, error: Document | None = None) -> None:
        """Take a running job's machines away, without a warning.

        Args:
            name: of the job.
            error: {code, message} that the job ends with; None: that of a preemption.

        Raises:
            KeyError: no such job.
            ValueError: it is not running.
        """
        self.jobs.preempt(self.job(name), error)

    def trigger(self, schedule: str) -> str:
        """Start a job of a schedule, as Azure does each time; return its name. The double has no clock for schedules.

        Raises:
            KeyError: no such schedule, or it is disabled.
        """
        return schedules.start_job(self.manager, schedule).name

    def requeue(self, name: str) -> None:
        """Take a running job's machines away, and run the same job again in place: its logs are overwritten.

        A job that the double does not run is running again immediately; its logs are the test's.

        Raises:
            KeyError: no such job.
            ValueError: it is not running.
        """
        self.jobs.requeue(self.job(name))

    def move(self, name: str, status: str, error: Document | None = None, *, result: bool = True) -> None:
        """Set the status of a job that the double does not run.

        Args:
            name: of the job.
            status: `Queued`, `Running`, `Completed`, ...; a finished job keeps its own.
            error: {code, message} that the job shows.
            result: whether a run that completes has a result.json; an existing one stays.

        Raises:
            KeyError: no such job.
        """
        if status == COMPLETED and result:
            self._write_result(self.job(name))
        self.jobs.move(self.job(name), status, error)

    def _write_result(self, job: CloudJob) -> None:
        """Write an empty result.json into the outputs of a job of a run."""
        run = (job.properties.get("tags") or {}).get("orchestrator.run")
        uri = ((job.properties.get("outputs") or {}).get("run") or {}).get("uri") or ""
        if run is None or "/paths/" not in uri:
            return
        path = self.folder() / uri.partition("/paths/")[2] / "result.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text("{}")

    def score_with(self, endpoint: str, function: Callable[[Any], Any]) -> None:
        """Set the function from request to answer of an endpoint, used once a deployment gets its traffic."""
        self.manager.scoring[endpoint] = function

    def job(self, name: str) -> CloudJob:
        """Return a job.

        Raises:
            KeyError: no such job.
        """
        if (job := self.jobs.get(name)) is None:
            raise KeyError(f"no job {name}")
        return job

    def wait(self, name: str, statuses: Sequence[str] = (COMPLETED,), seconds: float = 60) -> str:
        """Wait until a job has one of the statuses or has finished; return its status.

        Args:
            name: of the job.
            statuses: to wait for.
            seconds: time limit.

        Raises:
            KeyError: no such job.
            TimeoutError: it took longer.
        """
        return self.jobs.wait(self.job(name), tuple(statuses), seconds)

    def folder(self, datastore: str = DEFAULT) -> Path:
        """Return the folder of a datastore's blobs, where a test may read and write."""
        return self.storage.path(self.storage.datastores[datastore])

    def logs(self, name: str) -> dict[str, str]:
        """Return the logs of a job's processes: file name -> text."""
        folder = self.folder(ARTIFACTS) / self.job(name).folder / "user_logs"
        return {path.name: path.read_text(errors="replace") for path in sorted(folder.glob("*"))}

    def _is_known_host(self, host: str) -> bool:
        return host in self._services or host.endswith((f".{self.place.scoring_domain}", f".{VAULT_DOMAIN}"))

    def _answer(self, call: Call) -> Reply:
        if call.host.endswith(self.place.scoring_domain):
            return endpoints.score(self.manager, call)
        if call.host.endswith(VAULT_DOMAIN):
            return self.vaults.answer(call)
        return self.login.metadata(call) if call.path == JOB_IDENTITY else self._services[call.host](call)

    def _run_sweep(self, job: CloudJob) -> tuple[str, Document | None]:
        return SweepJob(job, self.jobs, self._runs.reports).run()

    def _variables(self, job: CloudJob) -> dict[str, str]:
        """Return the variables by which a job finds its MLflow run.

        The scheme is plain HTTP, not Azure's `azureml://`: a job gets no proxy, so that it reaches every host.
        """
        # valid as long as Azure lets a job run: on Azure, the service renews the token of a job
        experiment = job.properties.get("experimentName", "Default")
        managed = (job.properties.get("identity") or {}).get("identityType") == "Managed"
        by_identity = managed and (self.vaults.values or job.schedule)
        return {
            **(self._identity_variables() if by_identity else {}),
            "MLFLOW_TRACKING_URI": f"{self._proxy.url}/mlflow/v1.0{self.place.workspace_path}",
            "MLFLOW_TRACKING_TOKEN": self.login.issue("https://ml.azure.com", seconds=MAX_JOB_SECONDS),
            "MLFLOW_RUN_ID": job.name,
            "MLFLOW_EXPERIMENT_ID": self._runs.experiment(experiment),
            "MLFLOW_EXPERIMENT_NAME": experiment,
        }

    def _identity_variables(self) -> dict[str, str]:
        """Return the variables by which a job finds its identity and the Key Vaults."""
        return {
            "MSI_ENDPOINT": f"{self._proxy.url}{JOB_IDENTITY}",
            "MSI_SECRET": self.login.job_secret,
            "https_proxy": self._proxy.url,
            "no_proxy": NO_PROXY,
            "REQUESTS_CA_BUNDLE": str(self._authority),
            "SSL_CERT_FILE": str(self._authority),
        }

    def _capacity(self, cluster: str) -> int:
        with self.state.lock:
            document = self.state.resources.get(f"computes/{cluster}")
            if document is None or cluster in self.state.no_capacity:
                return 0
            return int(document["properties"]["properties"].get("scaleSettings", {}).get("maxNodeCount", 1))
