"""The double: starts the services, hands out what a client needs to find them, and does harm on request."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestrator.testing.arm.all_routes import SUBSCRIPTION, WORKSPACE
from orchestrator.testing.arm.endpoints import score
from orchestrator.testing.arm.resource_manager import ResourceManager
from orchestrator.testing.blobs.blob_service import BlobService
from orchestrator.testing.blobs.containers import Storage
from orchestrator.testing.cloud_state import ARTIFACTS, DEFAULT, Document, Place, State
from orchestrator.testing.jobs.conductor import Conductor
from orchestrator.testing.jobs.execute import Executor
from orchestrator.testing.jobs.job_table import COMPLETED, CloudJob, Jobs
from orchestrator.testing.proxy.faults import Fault, Faults, Moment, refusal
from orchestrator.testing.proxy.login import LOGIN_HOST, METADATA_HOST, SECRET, Login
from orchestrator.testing.proxy.messages import Call, Reply
from orchestrator.testing.proxy.recording import Recorded, Recorder
from orchestrator.testing.proxy.server import Answer, Proxy
from orchestrator.testing.proxy.tls import server_context
from orchestrator.testing.services.mlflow_service import Tracking
from orchestrator.testing.services.price_list import PRICES_HOST, Prices
from orchestrator.testing.services.run_history import RunHistory

LONGEST_JOB = 21 * 24 * 3600.0
LOOPBACK = "127.0.0.1"
MANAGEMENT_HOST = "management.azure.com"


class AzureDouble:
    """A workspace of Azure ML on the loopback interface, for the unmodified clients of Azure.

    Within `with`, this process's environment leads Azure's clients to it; a subprocess gets `environment()`.

    Args:
        home: where everything is kept; None: a temporary folder, which goes when the double closes.
        place: names of the subscription, the workspace and so on.
        run_jobs: whether a command job's command is run, on this machine, and a sweep's trials. False: a job stays
            in its status until `move`.
    """

    def __init__(self, home: Path | None = None, *, place: Place | None = None, run_jobs: bool = True) -> None:
        self.place = place or Place()
        self._temporary = tempfile.mkdtemp(prefix="azure-double-") if home is None else None
        self.home = Path(self._temporary or home or "").resolve()
        self._context, self._authority = server_context(self.home / "tls", f"*.{self.place.scoring_domain}")
        self.state = State(self.place, self.home)
        self.login = Login(self.place)
        datastores = {DEFAULT: "azureml-blobstore-double", ARTIFACTS: "azureml"}
        self.storage = Storage(self.home / "blobs", datastores)
        self.faults = Faults()
        self._recorder = Recorder()
        executor = Executor(self.home / "jobs", self.state, self.storage, self._variables, self._launched)
        self.jobs = Jobs(executor if run_jobs else None, self._capacity)
        self.manager = ResourceManager(
            self.state, self.login, self.storage, self.jobs, routes=(SUBSCRIPTION, WORKSPACE)
        )
        self._runs = Tracking(self.state, self.jobs, self.login.check)
        self.jobs.conduct = Conductor(self.jobs, self._runs.reports)
        self._history = RunHistory(self.manager, self._runs)
        self.prices = Prices()
        self._blobs = BlobService(self.place, self.storage, self.login)
        self._proxy = Proxy(self._answer, self._knows, self._context, self.faults, self._recorder)
        self._environment_before: dict[str, str | None] = {}
        self._proxy.start()
        self._closed = False
        atexit.register(self.close)

    # life

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
        """Kills the jobs, ends every connection and thread, puts the environment back; once is enough.

        Raises:
            RuntimeError: the double itself made a mistake in an answer, or in running a job.
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
        _forget_tokens()
        self.jobs.close()
        self._proxy.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        if crashes := [*self._proxy.crashes, *self.jobs.crashes]:
            raise RuntimeError("the double itself crashed") from crashes[0]

    def environment(self) -> dict[str, str]:
        """Variables that lead Azure's clients in a process here: proxy, authority, one application's credential,
        and where the workspace is."""
        proxies = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), self._proxy.url)
        return {
            **proxies,
            "NO_PROXY": "localhost,127.0.0.1",
            "no_proxy": "localhost,127.0.0.1",
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

    # what was asked

    def requests(self, match: str = "*") -> list[Recorded]:
        """Requests so far whose `METHOD host/path` fits a pattern of `fnmatch`, without their secrets."""
        return self._recorder.find(match)

    @property
    def refused(self) -> list[str]:
        """Hosts that somebody wanted to reach and that are none of the double's, once for each try."""
        return list(self._proxy.refused)

    @property
    def violations(self) -> list[str]:
        """What was wrong with bodies, against Microsoft's schemas."""
        return list(self.manager.violations)

    @property
    def secrets(self) -> list[str]:
        """All tokens, keys and signatures that were given out: they belong in no log."""
        return [SECRET, self.manager.scoring_key, *self.login.issued, *self.storage.secrets]

    # what goes wrong

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
        """The next calls whose `METHOD host/path` fits are answered with an error, and do nothing.

        Args:
            match: a pattern of `fnmatch`, `PUT *.blob.*`.
            status: 429, 500, 503, 401, 403, ...
            retry_after: seconds, in `Retry-After`; less than one in `retry-after-ms`.
            times: how many calls.
            code: the service's name for the error; None: the usual one of that status.
            message: what it says.
        """
        self.faults.add(Fault(match, Moment.ANSWER, times, refusal(status, code, message, retry_after)))

    def reset_next(self, match: str, *, when: str = "connection", times: int = 1) -> None:
        """The next such calls find their connection reset.

        Args:
            match: as of `fail_next`.
            when: `connection`: before anything was read; `upload`: half-way through the body; `reply`: when
                everything was done and only the answer is missing.
            times: how many calls.
        """
        self.faults.add(Fault(match, Moment(when), times))

    def expire_tokens(self) -> None:
        """Every token given out so far is refused from now on, whatever its date says."""
        self.login.expire()

    def fail_compute(self, name: str, *, code: str, message: str) -> None:
        """The next creations of that cluster are accepted, and fail."""
        self.state.failing_computes[name] = {"code": code, "message": message}

    def without_capacity(self, name: str, missing: bool = True) -> None:
        """That cluster gets no machine: its jobs stay queued, and it says why."""
        (self.state.no_capacity.add if missing else self.state.no_capacity.discard)(name)

    def set_quota(self, family: str, cores: int) -> None:
        """How many cores of a family of sizes the subscription may use."""
        self.state.quotas[family] = cores

    def by_identity(self, wanted: bool = True) -> None:
        """Datastores have no secrets from now on: who signs in by a token is let in, and nobody else."""
        self.storage.by_identity = wanted

    def hold_queue(self, held: bool = True) -> None:
        """Jobs that do not run yet stay queued as long as this holds."""
        self.jobs.hold(held)

    def preempt(self, name: str, error: Document | None = None) -> None:
        """Takes a running job's machines away, without a warning.

        Args:
            name: of the job.
            error: {code, message} that the job ends with; None: that of a preemption.

        Raises:
            KeyError: there is no such job.
            ValueError: it does not run.
        """
        self.jobs.preempt(self.job(name), error)

    def move(self, name: str, status: str, error: Document | None = None) -> None:
        """Gives a job a status: `Queued`, `Running`, `Completed`, ..."""
        self.jobs.move(self.job(name), status, error)

    def score_with(self, endpoint: str, function: Callable[[Any], Any]) -> None:
        """What the endpoint answers to a request's document, once a deployment gets its traffic."""
        self.manager.scoring[endpoint] = function

    # what there is

    def job(self, name: str) -> CloudJob:
        """A job.

        Raises:
            KeyError: there is none.
        """
        if (found := self.jobs.get(name)) is None:
            raise KeyError(f"no job {name}")
        return found

    def wait(self, name: str, statuses: Sequence[str] = (COMPLETED,), seconds: float = 60) -> str:
        """Waits until a job has one of the statuses or has ended; returns which.

        Raises:
            TimeoutError: it took longer.
        """
        return self.jobs.wait(self.job(name), tuple(statuses), seconds)

    def folder(self, datastore: str = DEFAULT) -> Path:
        """What a datastore holds, as files: a test may read and write there."""
        return self.storage.path(self.storage.datastores[datastore])

    def logs(self, name: str) -> dict[str, str]:
        """What a job's processes wrote: file name -> text."""
        folder = self.folder(ARTIFACTS) / self.job(name).folder / "user_logs"
        return {path.name: path.read_text(errors="replace") for path in sorted(folder.glob("*"))}

    # inside

    def _knows(self, host: str) -> bool:
        return host in self._services or host.endswith(f".{self.place.scoring_domain}")

    def _answer(self, call: Call) -> Reply:
        if call.host.endswith(self.place.scoring_domain):
            return score(self.manager, call)
        return self._services[call.host](call)

    @property
    def _services(self) -> dict[str, Answer]:
        return {
            MANAGEMENT_HOST: self.manager.answer,
            LOGIN_HOST: self.login.answer,
            METADATA_HOST: self.login.metadata,
            self.place.data_plane: self._history.answer,
            PRICES_HOST: self.prices.answer,
            LOOPBACK: self._runs.answer,
            self.place.blob_host: self._blobs.answer,
        }

    def _launched(self, job: CloudJob, launch: Any) -> None:
        self.jobs.launched(job, launch)

    def _variables(self, job: CloudJob) -> dict[str, str]:
        """By which a job finds its MLflow run. The scheme is plain HTTP, where Azure has `azureml://`: the job's
        process is led to no proxy, so that it is as free as on a cluster."""
        experiment = job.properties.get("experimentName", "Default")
        return {
            "MLFLOW_TRACKING_URI": f"{self._proxy.url}/mlflow/v1.0{self.place.workspace_path}",
            "MLFLOW_TRACKING_TOKEN": self.login.issue("https://ml.azure.com", seconds=LONGEST_JOB),
            "MLFLOW_RUN_ID": job.name,
            "MLFLOW_EXPERIMENT_ID": self._runs.experiment(experiment),
            "MLFLOW_EXPERIMENT_NAME": experiment,
        }

    def _capacity(self, cluster: str) -> int | None:
        with self.state.lock:
            if cluster in self.state.no_capacity:
                return 0
            found = self.state.resources.get(f"computes/{cluster}")
        if found is None:
            return 0
        size: Document = found["properties"]["properties"]
        return int(size.get("scaleSettings", {}).get("maxNodeCount", 1))


def _forget_tokens() -> None:
    """MLflow keeps a client of each address for the life of the process, with a token that no other double knows."""
    if (registry := sys.modules.get("mlflow.tracking._tracking_service.registry")) is not None:
        registry.TrackingStoreRegistry._get_store_with_resolved_uri.cache_clear()
