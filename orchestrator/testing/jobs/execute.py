"""Runs a command job as a cluster does: its code in a folder of its own, data mounted, logs in the artifact store."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from orchestrator.testing.blobs.containers import Storage
from orchestrator.testing.cloud_state import ARTIFACTS, Document, State
from orchestrator.testing.jobs.job_table import CloudJob
from orchestrator.testing.jobs.mounts import MountError, Mounts, place_of
from orchestrator.testing.jobs.processes import JOB_VARIABLE, Launch, Process, ranks
from train_jobs.artifacts.host import METADATA_VARIABLE

NOT_PASSED_ON = ("AZURE_", "AZUREML_", "MLFLOW_", "ORCHESTRATOR_", "PYTEST_")
OF_THE_DOUBLE = ("http_proxy", "https_proxy", "no_proxy", "requests_ca_bundle", "ssl_cert_file", "curl_ca_bundle")
THREADS = "OMP_NUM_THREADS"


class Executor:
    """Runs jobs below a folder.

    Args:
        folder: each job gets a folder in it.
        tracking: variables by which a job finds its MLflow run.
        launched: told of a job's processes, and with None that they are gone.
    """

    def __init__(
        self,
        folder: Path,
        state: State,
        storage: Storage,
        tracking: Callable[[CloudJob], Mapping[str, str]],
        launched: Callable[[CloudJob, Launch | None], None],
    ) -> None:
        self.folder = folder
        self.state = state
        self.storage = storage
        self.tracking = tracking
        self.launched = launched

    def __call__(self, job: CloudJob) -> Document | None:
        """Runs a job to its end; returns the error that Azure would tell, None if it succeeded."""
        folder = self.folder / job.name
        mounts = Mounts(folder, job.name, self.state, self.storage)
        try:
            code = self._code(job, folder)
            mounts.add(job.properties.get("inputs") or {}, job.properties.get("outputs") or {})
            command = mounts.resolve(job.properties["command"])
        except MountError as problem:
            return {"code": "UserError", "message": f"DataAccessError: {problem}"}
        variables = {**self._variables(job), **mounts.variables()}
        launch = Launch(command, code, list(self._processes(job)), variables)
        self.launched(job, launch)
        try:
            failed = launch.wait()
        finally:
            self.launched(job, None)
        return self._failure(*failed) if failed else None

    def _code(self, job: CloudJob, folder: Path) -> Path:
        """A copy of the code asset: what the job writes beside its code changes no asset."""
        target = folder / "code"
        if code := job.properties.get("codeId"):
            shutil.copytree(place_of(code, self.state, self.storage), target)
        else:
            target.mkdir(parents=True)
        return target

    def _processes(self, job: CloudJob) -> Iterator[Process]:
        logs = self.storage.path(self.storage.datastores[ARTIFACTS], f"{job.folder}/user_logs")
        distribution = job.properties.get("distribution") or {}
        if distribution.get("distributionType") != "PyTorch":
            yield Process(logs / "std_log.txt", {"NODE_RANK": "0"})
            return
        per_node = distribution.get("processCountPerInstance") or 1
        for rank, variables in enumerate(ranks(job.nodes, per_node, _free_port())):
            yield Process(logs / f"std_log_process_{rank:02}.txt", variables)

    def _variables(self, job: CloudJob) -> dict[str, str]:
        """The environment of this process without what is the client's and the double's, and what Azure sets."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(NOT_PASSED_ON) and name.lower() not in OF_THE_DOUBLE
        }
        place = self.state.place
        binaries = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
        ours = {
            JOB_VARIABLE: str(self.folder / job.name),
            "AZUREML_ARM_PROJECT_NAME": job.properties.get("experimentName", "Default"),
            "AZUREML_ARM_RESOURCEGROUP": place.resource_group,
            "AZUREML_ARM_SUBSCRIPTION": place.subscription,
            "AZUREML_ARM_WORKSPACE_NAME": place.workspace,
            "AZUREML_EXPERIMENT_NAME": job.properties.get("experimentName", "Default"),
            "AZUREML_NODE_COUNT": str(job.nodes),
            "AZUREML_RUN_ID": job.name,
            "AZUREML_ROOT_RUN_ID": job.parent or job.name,
            "GLOO_SOCKET_IFNAME": "lo",
            "PATH": binaries,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        wanted = {**(job.properties.get("environmentVariables") or {})}
        wanted.pop(METADATA_VARIABLE, None)  # this machine has no such service, or one that is not ours to ask
        if wanted.get(THREADS, "").isdigit():
            wanted[THREADS] = str(min(int(wanted[THREADS]), _threads(job)))
        return {**kept, **ours, **self.tracking(job), **wanted}

    @staticmethod
    def _failure(rank: int, code: int) -> Document:
        said = f"Execution failed. User process '{rank}' exited with status code {code}."
        return {"code": "UserError", "message": f"{said} Please check log file 'user_logs' for error details."}


def _threads(job: CloudJob) -> int:
    """Threads that this machine has for each process of a job, however many cores its size would have."""
    distribution = job.properties.get("distribution") or {}
    processes = job.nodes * (distribution.get("processCountPerInstance") or 1)
    return max(1, len(os.sched_getaffinity(0)) // processes)


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
