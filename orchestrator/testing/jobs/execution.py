"""Run a command job as a cluster does: its code in a folder of its own, data mounted, logs in the artifact store.

A mount is a link to the container's own folder, so both sides see every write immediately.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from orchestrator.testing.blob_service import Storage
from orchestrator.testing.cloud_state import ARTIFACTS, Document, State
from orchestrator.testing.jobs.job_table import CloudJob
from orchestrator.testing.jobs.processes import JOB_VARIABLE, Launch
from orchestrator.testing.proxy.messages import Refusal
from train_jobs.artifacts.host import METADATA_VARIABLE

DATASTORE_URI = re.compile(r"azureml://(?:subscriptions/.*/)?datastores/(?P<store>[^/]+)/paths/(?P<path>.*)")
BINDING = re.compile(r"\${{\s*(?P<kind>inputs|outputs)\.(?P<name>\w+)\s*}}")
OPTIONAL = re.compile(r"\$\[\[(.*?)\]\]")
DROPPED_PREFIXES = ("AZURE_", "AZUREML_", "MLFLOW_", "ORCHESTRATOR_", "PYTEST_")
DROPPED = ("http_proxy", "https_proxy", "no_proxy", "requests_ca_bundle", "ssl_cert_file", "curl_ca_bundle")
"""Variables of this process that jobs do not inherit: those of the client and those that lead to the double."""
THREADS = "OMP_NUM_THREADS"


class MountError(Exception):
    """A missing input, or a reference to an input or output that the job does not have."""


def path_of(uri: str, state: State, storage: Storage) -> Path:
    """Return the path of data.

    Args:
        uri: of a datastore path or a blob, or the ARM id of a data, model or code version.

    Raises:
        MountError: it is not in this workspace.
    """
    parts = urlsplit(uri)
    if matched := DATASTORE_URI.fullmatch(uri):
        container, name = storage.datastores.get(matched["store"], ""), matched["path"]
    elif parts.scheme in ("http", "https", "wasbs") and parts.hostname == state.place.blob_host:
        container, _, name = unquote(parts.path).lstrip("/").partition("/")
    elif (asset := state.by_id(uri)) is not None:
        properties = asset["properties"]
        return path_of(
            properties.get("dataUri") or properties.get("modelUri") or properties.get("codeUri"), state, storage
        )
    else:
        raise MountError(f"{uri} could not be found")
    try:
        return storage.path(container, name.rstrip("/"))
    except Refusal as refusal:
        raise MountError(f"{uri}: {refusal.message}") from None


@dataclass
class Mounts:
    """Inputs and outputs of one job.

    Args:
        folder: the job's own, which gets links and copies.
        name: of the job.
    """

    folder: Path
    name: str
    state: State
    storage: Storage
    values: dict[tuple[str, str], str] = field(default_factory=dict)
    """("inputs" or "outputs", name) -> path or literal."""

    def add(self, inputs: Document, outputs: Document) -> None:
        """Mount all inputs and outputs.

        Raises:
            MountError: an input does not exist.
        """
        for name, described in inputs.items():
            self.values["inputs", name] = self._input(name, described)
        for name, described in outputs.items():
            uri = described.get("uri") or f"azureml://datastores/workspaceblobstore/paths/azureml/{self.name}/{name}/"
            source = path_of(uri, self.state, self.storage)
            source.mkdir(parents=True, exist_ok=True)
            target = self._target("outputs", name)
            target.symlink_to(source)  # a link, not a copy: a job that is killed has written its checkpoints
            self.values["outputs", name] = str(target)

    def _input(self, name: str, described: Document) -> str:
        if described["jobInputType"] == "literal":
            return str(described["value"])
        source = path_of(described["uri"], self.state, self.storage)
        if not source.exists():
            raise MountError(f"input {name}: {described['uri']} does not exist")
        target = self._target("inputs", f"{name}{source.suffix}" if source.is_file() else name)
        if described.get("mode") != "Download":
            target.symlink_to(source)
        elif source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
        return str(target)

    def _target(self, kind: str, name: str) -> Path:
        target = self.folder / "mounts" / kind / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def resolve(self, command: str) -> str:
        """Replace `${{inputs.x}}` and `${{outputs.y}}` in a command by paths and values.

        Raises:
            MountError: the job does not have one of them.
        """

        def optional(part: re.Match[str]) -> str:
            names = [(binding["kind"], binding["name"]) for binding in BINDING.finditer(part[1])]
            return part[1] if all(name in self.values for name in names) else ""

        def value(binding: re.Match[str]) -> str:
            if (named := (binding["kind"], binding["name"])) not in self.values:
                raise MountError(f"the command names {binding[0]}, which the job does not have")
            return self.values[named]

        return BINDING.sub(value, OPTIONAL.sub(optional, command))

    def variables(self) -> dict[str, str]:
        """Return `AZURE_ML_INPUT_x` and `AZURE_ML_OUTPUT_y`."""
        return {f"AZURE_ML_{kind[:-1].upper()}_{name}": value for (kind, name), value in self.values.items()}


@dataclass
class Executor:
    """Runs jobs below a folder.

    Args:
        folder: gets a folder for each job.
        tracking: returns the variables by which a job finds its MLflow run.
        launched: called with a job's processes, and with None after their end.
    """

    folder: Path
    state: State
    storage: Storage
    tracking: Callable[[CloudJob], Mapping[str, str]]
    launched: Callable[[CloudJob, Launch | None], None]

    def __call__(self, job: CloudJob) -> Document | None:
        """Run a job to its end; return the error that Azure would report, None for success."""
        folder = self.folder / job.name
        # an earlier run of the same job, which was requeued, left both
        for old in (folder, self.storage.path(self.storage.datastores[ARTIFACTS], f"{job.folder}/user_logs")):
            shutil.rmtree(old, ignore_errors=True)
        mounts = Mounts(folder, job.name, self.state, self.storage)
        try:
            code = self._code(job, folder)
            mounts.add(job.properties.get("inputs") or {}, job.properties.get("outputs") or {})
            command = mounts.resolve(job.properties["command"])
        except MountError as problem:
            return {"code": "UserError", "message": f"DataAccessError: {problem}"}
        variables = {**self._variables(job), **mounts.variables()}
        launch = Launch(command, code, self._processes(job), variables)
        self.launched(job, launch)
        try:
            failed = launch.wait()
        finally:
            self.launched(job, None)
        if failed is None:
            return None
        return {
            "code": "UserError",
            "message": f"Execution failed. User process '{failed[0]}' exited with status code {failed[1]}. "
            "Please check log file 'user_logs' for error details.",
        }

    def _code(self, job: CloudJob, folder: Path) -> Path:
        """Copy the code asset, so that a job that writes next to its code changes no asset."""
        target = folder / "code"
        if code := job.properties.get("codeId"):
            shutil.copytree(path_of(code, self.state, self.storage), target)
        else:
            target.mkdir(parents=True)
        return target

    def _processes(self, job: CloudJob) -> dict[Path, dict[str, str]]:
        """Return log -> variables of each process; every node is this machine."""
        logs = self.storage.path(self.storage.datastores[ARTIFACTS], f"{job.folder}/user_logs")
        distribution = job.properties.get("distribution") or {}
        if distribution.get("distributionType") != "PyTorch":
            return {logs / "std_log.txt": {"NODE_RANK": "0"}}
        per_node = distribution.get("processCountPerInstance") or 1
        with socket.socket() as probe:  # a free port: several jobs run on this machine at the same time
            probe.bind(("127.0.0.1", 0))
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        return {
            logs / f"std_log_process_{rank:02}.txt": {
                **address,
                "LOCAL_RANK": str(rank % per_node),
                "NODE_RANK": str(rank // per_node),
                "RANK": str(rank),
                "WORLD_SIZE": str(job.nodes * per_node),
            }
            for rank in range(job.nodes * per_node)
        }

    def _variables(self, job: CloudJob) -> dict[str, str]:
        """Return the environment of all processes: this process's, less what is the client's, and what Azure sets."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(DROPPED_PREFIXES) and name.lower() not in DROPPED
        }
        place, experiment = self.state.place, job.properties.get("experimentName", "Default")
        ours = {
            JOB_VARIABLE: str(self.folder / job.name),
            "AZUREML_ARM_PROJECT_NAME": experiment,
            "AZUREML_ARM_RESOURCEGROUP": place.resource_group,
            "AZUREML_ARM_SUBSCRIPTION": place.subscription,
            "AZUREML_ARM_WORKSPACE_NAME": place.workspace,
            "AZUREML_EXPERIMENT_NAME": experiment,
            "AZUREML_NODE_COUNT": str(job.nodes),
            "AZUREML_RUN_ID": job.name,
            "AZUREML_ROOT_RUN_ID": job.parent or job.name,
            "GLOO_SOCKET_IFNAME": "lo",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        wanted = {**(job.properties.get("environmentVariables") or {})}
        wanted.pop(METADATA_VARIABLE, None)  # this machine has no metadata service, or one that is not the double's
        if wanted.get(THREADS, "").isdigit():  # no more threads than this machine has for each process
            processes = job.nodes * ((job.properties.get("distribution") or {}).get("processCountPerInstance") or 1)
            cores = max(1, len(os.sched_getaffinity(0)) // processes)
            wanted[THREADS] = str(min(int(wanted[THREADS]), cores))
        return {**kept, **ours, **self.tracking(job), **wanted}
