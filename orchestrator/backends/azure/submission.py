"""The exact request: every body that is sent for a run, derived from the plan alone, without Azure or its SDK.

`${{inputs.NAME}}` and `${{outputs.NAME}}` in a job's command become paths on the machine that runs it.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import shlex
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import Field

from orchestrator.backends.azure import places
from orchestrator.backends.azure.assets import Asset, asset_id, data_name, plan_assets
from orchestrator.backends.azure.clusters import Cluster, plan_cluster
from orchestrator.backends.azure.options import MAX_HOURS, SERVERLESS, AzureSpec, Workspace
from orchestrator.backends.azure.serverless import target_sections
from orchestrator.backends.azure.sizes import Size, check_runs_torch, find_size
from orchestrator.backends.azure.supervision import Supervisor, plan_supervisor
from orchestrator.backends.azure.wire.control_plane import Body, duration
from orchestrator.backends.base import CONFIG, PLAN, REQUEST, SPEC, TAGS, Request
from orchestrator.jobs.inputs import START, At
from orchestrator.jobs.registry import run_kind
from orchestrator.runs.status import SWEEP_TAG
from orchestrator.specs.compute import MachineChoice
from orchestrator.specs.job import TrackingSpec
from orchestrator.specs.notification import NotifySpec
from orchestrator.support.errors import SpecError
from orchestrator.support.secret_sources import KEY_VAULT, SecretReference, look_up
from train_jobs.artifacts.host import METADATA_VARIABLE, MLFLOW
from train_jobs.artifacts.redaction import SECRETS_VARIABLE
from train_jobs.config.fields import Config

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan

MODES = {"ro_mount": "ReadOnlyMount", "download": "Download"}
IDENTITIES = {"managed": "Managed", "user": "UserIdentity"}
MAX_SHARED_GB = 64
PUBLIC_KEY = re.compile(r"(ssh-(rsa|ed25519)|ecdsa-sha2-nistp\d+) [A-Za-z0-9+/=]+( \S.*)?$")
DEFAULT_SHARED = "16g"  # on machines of unknown memory
SUFFIX = 6  # hex digits of size and region in the name of a cluster that is one of several
MAX_CLUSTER_NAME = 24 - 1 - SUFFIX  # characters left for the name itself
JOB = "job"  # input with the job's own documents and its small files
NAMED_BY_US = (START, "stores", JOB)  # paths below these need no quotes
METADATA = "http://169.254.169.254"  # every machine of Azure has its own there
# Limits of a run: learn.microsoft.com/azure/machine-learning/resource-limits-capacity
MAX_TAGS, MAX_TAG_KEY, MAX_TAG_VALUE = 50, 100, 1000
# at their most 11 of a job, 3 of its restart and 3 of a sweep's trial; the job itself adds its lineage; some to spare
OWN_TAGS = 20
MAX_SHOWN = 40  # characters of a key in a message
# Linux gives a process arguments of at most 131,072 bytes, and the command is one of them, with paths for its bindings
MAX_COMMAND = 100_000
BINDING, LONGEST_PATH = re.compile(r"\${{.*?}}"), 100  # bytes of a mounted folder; assumed
# Virtual machines hide the PCI topology, by which NCCL pairs GPUs with network cards. Azure's images contain this file
# for ND A100 v4; other sizes need none.
ND_A100_TOPOLOGY = "/opt/microsoft/ndv4-topo.xml"


class Alternative(Config):
    """Other machines for a job."""

    cluster: Cluster
    """The cluster."""
    job: Body
    """The job there."""
    compute: MachineChoice
    """Their size, region and price."""


class AzureRequest(Request):
    """Request to Azure ML. `{account}`, `{endpoint}` and `{container}` in it are the datastore's."""

    workspace: Workspace
    """The workspace."""
    cluster: Cluster
    """The cluster that it runs on."""
    alternatives: tuple[Alternative, ...] = ()
    """Other machines, tried in this order if quota or capacity do not suffice."""
    assets: tuple[Asset, ...]
    """Assets that it needs in the workspace: environment, code, text, start of the training."""
    datastore: str
    """Datastore of all its files."""
    job: Body
    """The job."""
    nodes: int
    """Machines; of an elastic job the fewest."""
    elastic_nodes: int | None = Field(default=None, exclude_if=lambda value: value is None)
    """Highest number of machines of an elastic job."""
    processes_per_node: int
    """Ranks on each machine."""
    max_restarts: int
    """How often a follower submits a failed attempt again."""
    secrets: dict[str, str] = Field(default={})
    """Secrets that each attempt's body gets as it is sent: name -> reference; see `with_secrets`."""
    notify: NotifySpec = Field(default_factory=NotifySpec)
    """Notification settings."""
    writes_result: bool = False
    """Whether the job writes result.json before it ends with 0; a run of an earlier version is not checked."""
    supervisor: Supervisor | None = Field(default=None, exclude_if=lambda value: value is None)
    """Schedule of Azure ML that restarts the run; None: commands that follow it do."""

    def attempt(self, number: int, former: Mapping[str, str] | None = None) -> Body:
        """Return the body of an attempt: the same job, with its number in tag and display name.

        Args:
            number: of the attempt, from 1.
            former: tags about the attempt before, for machines that find the run later.
        """
        if number == 1:
            return self.job
        properties = self.job["properties"]
        tags = {**properties["tags"], "orchestrator.attempt": str(number), **(former or {})}
        return {"properties": {**properties, "displayName": places.attempt_name(self.name, number), "tags": tags}}


def build_request(plan: Plan, run: str, workspace: Workspace) -> AzureRequest:
    """Return the request for a run of a plan: pure, offline.

    Args:
        plan: the plan.
        run: the run's name, which becomes the name of the first job.
        workspace: where it would be sent; may be a placeholder in a dry run.

    Raises:
        SpecError: the service would refuse it.
    """
    plans = [(choice, _plan_on(plan, choice)) for choice in plan.compute.choices]
    others, plan = plans[1:], plans[0][1] if plans else plan
    for _, one in [*others, (None, plan)]:
        _check(one)
    assets = plan_assets(plan)
    supervised = plan_supervisor(plan, run, workspace)
    return AzureRequest(
        name=run,
        workspace=workspace,
        cluster=plan_cluster(plan),
        alternatives=tuple(
            Alternative(cluster=plan_cluster(other), job=_job_body(other, run, workspace, assets), compute=choice)
            for choice, other in others
        ),
        assets=(*assets, *(supervised[1] if supervised else ())),
        datastore=plan.spec.settings_of(AzureSpec).datastore,
        job=_job_body(plan, run, workspace, assets),
        nodes=plan.compute.nodes,
        elastic_nodes=plan.spec.settings_of(AzureSpec).elastic_nodes,
        processes_per_node=plan.compute.processes_per_node,
        max_restarts=plan.spec.max_restarts,
        secrets=_split_secrets(plan)[0],
        notify=plan.spec.notify,
        writes_result=plan.writes_result,
        supervisor=supervised[0] if supervised else None,
    )


def _plan_on(plan: Plan, choice: MachineChoice) -> Plan:
    """Return the plan for one of its machines, on a cluster of their own."""
    spec, found = plan.spec, choice.model_dump(exclude_none=True)
    name = str(spec.compute.cluster)
    if name != SERVERLESS:
        digest = hashlib.sha256(f"{choice.size}@{choice.region}".lower().encode()).hexdigest()
        name = f"{name[:MAX_CLUSTER_NAME]}-{digest[:SUFFIX]}"
    compute = spec.compute.model_copy(update={"cluster": name, "sku": choice.size, "region": choice.region})
    resolved = plan.compute.model_copy(update={**found, "choices": ()})
    return plan.model_copy(update={"spec": spec.model_copy(update={"compute": compute}), "compute": resolved})


def with_secrets(body: Body, references: Mapping[str, str]) -> Body:
    """Return the body of a job or of a sweep with the values of its secrets, for the request alone: never store it.

    Args:
        body: of the job or the sweep.
        references: name -> reference.

    Raises:
        UsageError: a secret is not to be had.
    """
    if not references:
        return body
    properties = body["properties"]
    holder = properties.get("trial", properties)
    filled = {**holder, "environmentVariables": {**holder["environmentVariables"], **look_up(references, os.environ)}}
    return {"properties": {**properties, "trial": filled} if "trial" in properties else filled}


def _split_secrets(plan: Plan) -> tuple[dict[str, str], dict[str, str]]:
    """Return the references of the secrets in the job's body, and the VAULT/SECRET of those that the job reads."""
    parsed = {name: SecretReference.parse(text) for name, text in plan.spec.environment.secrets.items()}
    in_vault = {name: one.place for name, one in parsed.items() if one.source == KEY_VAULT}
    return {name: text for name, text in plan.spec.environment.secrets.items() if name not in in_vault}, in_vault


def _check_secrets(plan: Plan) -> None:
    in_body, in_vault = _split_secrets(plan)
    azure = plan.spec.settings_of(AzureSpec)
    names, fix = ", ".join(in_body), "--set environment.secrets.{}=keyvault:VAULT/SECRET --set azure.identity=managed"
    if in_body and azure.supervise == "cloud":
        raise SpecError(
            f"cannot supervise the run from Azure: a restart needs {names} of this machine",
            facts={"or": "--supervise here"},
            fix=fix.format(next(iter(in_body))),
        )
    if in_body and not azure.secrets_in_body:
        raise SpecError(
            f"cannot send {names}: all users of the workspace could read them in the job's definition",
            facts={"or": "--set azure.secrets_in_body=true"},
            fix=fix.format(next(iter(in_body))),
        )
    if in_vault and azure.identity != "managed":
        raise SpecError(
            f"cannot read {', '.join(in_vault)} from a Key Vault: the job has no managed identity",
            facts={"key": "azure.identity"},
            fix="--set azure.identity=managed",
        )


def _check(plan: Plan) -> None:
    _check_secrets(plan)
    _check_experiment(plan.spec.tracking.experiment)
    if SWEEP_TAG not in plan.spec.tags:  # the plan of a sweep checks those of its trials
        _check_tags(plan.spec.tags)
    if plan.needs.undeliverable:
        raise SpecError("some inputs cannot go to Azure", problems=list(plan.needs.undeliverable), fix="-b local")
    size = find_size(plan.compute.size)
    azure, tier = plan.spec.settings_of(AzureSpec), plan.spec.compute.tier
    if size is not None and azure.environment == "auto":
        check_runs_torch(size)
    _check_elastic(plan)
    _check_command(plan)
    hours = azure.timeout_hours
    if hours is not None and hours > MAX_HOURS[tier]:
        raise SpecError(
            f"invalid azure.timeout_hours {hours:g}: Azure ends jobs on {tier} machines earlier",
            facts={"limit": f"{MAX_HOURS[tier]:g} h"},
            fix=f"--set azure.timeout_hours={MAX_HOURS[tier]:g} --max-restarts 3",
        )


def _check_experiment(name: str) -> None:
    """Refuse an experiment that Azure would refuse, but only once cluster, code and data are there."""
    if places.EXPERIMENT.fullmatch(name):
        return
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    valid = re.sub(r"[^A-Za-z0-9_-]+", "-", plain).strip("-_")[:256] or TrackingSpec().experiment
    raise SpecError(
        f"invalid tracking.experiment {name!r}: Azure allows fewer characters",
        facts={"allowed": places.EXPERIMENT_RULE},
        fix=f"--set tracking.experiment={valid}",
    )


def _check_tags(tags: Mapping[str, str]) -> None:
    """Refuse tags that Azure would refuse, at the first attempt or at a restart, which adds some."""
    most = MAX_TAGS - OWN_TAGS
    problems = [f"{len(tags)} tags: at most {most}, since runs have {OWN_TAGS} others"] if len(tags) > most else []
    for key, value in tags.items():
        name = f"tag {key[:MAX_SHOWN]}{'...' * (len(key) > MAX_SHOWN)}"
        if len(key) > MAX_TAG_KEY:
            problems.append(f"{name}: a key of {len(key)} characters: at most {MAX_TAG_KEY}")
        if len(value) > MAX_TAG_VALUE:
            problems.append(f"{name}: a value of {len(value)} characters: at most {MAX_TAG_VALUE}")
    if problems:
        raise SpecError("cannot send the tags to Azure", problems=problems, fix="use fewer and shorter tags")


def _check_command(plan: Plan) -> None:
    """Refuse a command that the job could not start: one with the path of each of many files."""
    size = len(BINDING.sub("x" * LONGEST_PATH, job_command(plan)).encode())
    if size <= MAX_COMMAND:
        return
    of_text = "data.text" in plan.needs.placed
    raise SpecError(
        "cannot run the job on Azure: its command is too long",
        facts={
            "bytes": f"{size:,}",
            "limit": f"{MAX_COMMAND:,}",
            "reason": f"it names each file of the {'text' if of_text else 'input'}",
        },
        fix="--data FOLDER, or a pattern in quotes: --data 'FOLDER/*.txt'"
        if of_text
        else "merge the files, or submit several jobs",
    )


def _check_elastic(plan: Plan) -> None:
    most, least = plan.spec.settings_of(AzureSpec).elastic_nodes, plan.compute.nodes
    if most is None:
        return
    if not run_kind(plan.spec.kind).elastic:
        raise SpecError(
            f"invalid azure.elastic_nodes {most}: the number of machines of a {plan.spec.kind} job is fixed",
            facts={"reason": "its batch is divided among them, and its result depends on their number"},
            fix=f"--set compute.nodes={most} --set azure.elastic_nodes=null",
        )
    if most <= least:
        raise SpecError(
            f"invalid azure.elastic_nodes {most}: not more than compute.nodes {least}",
            fix=f"--set azure.elastic_nodes={least + 1}",
        )


def _job_body(plan: Plan, run: str, workspace: Workspace, assets: list[Asset]) -> Body:
    spec, compute, azure = plan.spec, plan.compute, plan.spec.settings_of(AzureSpec)
    ids = {asset.kind: asset_id(workspace, asset.kind, asset.name, asset.version) for asset in assets}
    folders = {True: places.TOKEN_STORES, False: places.outputs_folder(run)}
    target = target_sections(spec.compute, workspace)
    properties: Body = {
        **target,
        "jobType": "Command",
        "displayName": run,
        "experimentName": spec.tracking.experiment,
        "codeId": ids["codes"],
        "environmentId": ids["environments"],
        "command": job_command(plan),
        "distribution": {"distributionType": "PyTorch", "processCountPerInstance": compute.processes_per_node},
        "resources": {
            **target["resources"],
            "instanceCount": compute.nodes,
            "shmSize": _shared_memory(plan),
            "properties": {},
        },
        "environmentVariables": job_variables(plan),
        "inputs": {name: _folder("Input", *place) for name, place in _inputs(plan, run, workspace, assets)},
        "outputs": {
            output.name: _folder(
                "Output", places.datastore_uri(azure.datastore, folders[output.shared]), "ReadWriteMount"
            )
            for output in plan.makes
        },
        "tags": job_tags(plan, run, workspace),
        "properties": {},
    }
    if azure.elastic_nodes is not None:
        properties["resources"]["maxInstanceCount"] = azure.elastic_nodes
    if azure.ssh_public_key is not None:
        key = {"sshPublicKeys": read_public_key(azure.ssh_public_key)}
        nodes = {"nodesValueType": "All"}
        properties["services"] = {"ssh": {"jobServiceType": "SSH", "nodes": nodes, "properties": key}}
    if azure.timeout_hours is not None:
        properties["limits"] = {"jobLimitsType": "Command", "timeout": duration(round(azure.timeout_hours * 3600))}
    if azure.identity != "none":
        properties["identity"] = {"identityType": IDENTITIES[azure.identity]}
        if azure.identity == "managed" and azure.identity_client_id is not None:
            properties["identity"]["clientId"] = azure.identity_client_id
    # last, because it covers everything above: after a lost reply, the tag proves that the job on Azure is this one
    properties["tags"]["orchestrator.request"] = body_digest(properties)
    return {"properties": properties}


def read_public_key(text: str) -> str:
    """Return an SSH public key.

    Args:
        text: the key itself, or the path of its file.

    Raises:
        SpecError: the file does not exist, or holds something else, such as a private key.
    """
    key = text
    if not PUBLIC_KEY.match(text):
        try:
            key = Path(text).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as problem:
            raise SpecError(
                f"cannot read azure.ssh_public_key {text!r}", facts={"reason": problem}, fix="ssh-keygen -t ed25519"
            ) from None
    if not PUBLIC_KEY.match(key) or "\n" in key:
        raise SpecError(
            "azure.ssh_public_key must be one public key", fix="--set azure.ssh_public_key=~/.ssh/id_ed25519.pub"
        )
    return key


def body_digest(properties: Body) -> str:
    """Return the hash of a job's body, by which a job on Azure is recognised as this submission."""
    return hashlib.sha256(json.dumps(properties, sort_keys=True).encode()).hexdigest()[: places.DIGITS]


def _shared_memory(plan: Plan) -> str:
    # Azure's default of 2 GB is too little for 8 processes, whose data loaders and NCCL exchange data through it.
    if (given := plan.spec.settings_of(AzureSpec).shm_size) != "auto":
        return given
    size = find_size(plan.compute.size)
    return DEFAULT_SHARED if size is None else f"{max(1, min(size.memory_gb // 2, MAX_SHARED_GB))}g"


def _inputs(plan: Plan, run: str, workspace: Workspace, assets: list[Asset]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the name of each input with its address and mode."""
    azure = plan.spec.settings_of(AzureSpec)
    mode = MODES[azure.data_mode]
    ids = {one.name: asset_id(workspace, "data", one.name, one.version) for one in assets if one.kind == "data"}
    yield JOB, (places.datastore_uri(azure.datastore, places.job_folder(run)), "Download")
    for one in plan.needs.inputs:
        if one.remote is not None:
            uri = one.remote
            if not uri.startswith(("azureml://", "https://")):
                uri = asset_id(workspace, "data", *uri.split(":")[1:])
            yield one.name, (uri, mode)
        elif (known := ids.get(data_name(one))) is not None:
            yield one.name, (known, mode)


def _folder(direction: str, uri: str, mode: str) -> Body:
    return {"uri": uri, "mode": mode, f"job{direction}Type": "uri_folder"}


def job_tags(plan: Plan, run: str, workspace: Workspace) -> dict[str, str]:
    """Return the tags of a job: of its run, attempt, recipe, code and data, and the user's own.

    A machine that attaches later finds the run by them. The user's tags come first, so that none can replace ours.
    """
    commit = plan.snapshot.git.label if plan.snapshot.git else None
    return {
        **plan.spec.tags,
        "orchestrator.run": run,
        "orchestrator.handle": f"azure://{workspace.workspace}/{run}",
        "orchestrator.attempt": "1",
        "orchestrator.run_hash": plan.run_hash,
        "orchestrator.recipe": plan.spec.recipe,
        "orchestrator.snapshot": plan.snapshot.digest,
        "orchestrator.data": plan.data.sha256,
        "orchestrator.datastore": plan.spec.settings_of(AzureSpec).datastore,
        "orchestrator.user": _user(),
        **({"orchestrator.commit": commit} if commit else {}),
    }


def _user() -> str:
    """Return the name of the user, or the number of a user without an entry in passwd, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError: from Python 3.13 on
        return str(os.getuid())


def job_command(plan: Plan) -> str:
    """Return the command of each process, one line of shell."""
    words = [
        *("python", "-m", plan.spec.code.entry, "--config", f"${{{{inputs.{JOB}}}}}/{CONFIG}"),
        *(word for text in settings(plan) for word in ("--set", shlex.quote(text))),
        *("--output", "${{outputs.run}}"),
        *(("--cache", "${{outputs.stores}}") if plan.stores else ()),
        *("--device", plan.compute.device),
    ]
    # a broken GPU or network card shows after 10 s with the node's name, not after NCCL's timeout without it
    check = f"python -m train_jobs.tools.preflight --device {plan.compute.device} && "
    first = check if plan.spec.settings_of(AzureSpec).preflight else ""
    if in_vault := _split_secrets(plan)[1]:
        references = [f"{name}={place}" for name, place in in_vault.items()]
        words = ["python", "-m", "train_jobs.tools.with_secrets", *references, "--", *words]
    # exec replaces the shell: SIGTERM must reach the process that saves the checkpoint
    return f"export ORCHESTRATOR_RUN_TAGS=${{{{inputs.{JOB}}}}}/{TAGS}; {first}exec {' '.join(words)}"


def settings(plan: Plan) -> Iterator[str]:
    """Yield `path.to.key=value` for each value of the configuration whose path differs on the machine."""
    folders = {output.name: f"${{{{outputs.{output.name}}}}}" for output in plan.makes}
    folders |= {one.name: f"${{{{inputs.{JOB if one.inline else one.name}}}}}" for one in plan.needs.inputs}
    plain = {*NAMED_BY_US, *(one.name for one in plan.needs.inputs if one.inline)}
    for key, value in plan.needs.placed.items():
        if isinstance(value, At) and (value.name in plain or not value.below):
            yield f"{key}={_path(value, folders)}"
        else:
            yield f"{key}={_yaml(value, folders)}"


def _yaml(value: Any, folders: dict[str, str]) -> str:
    """Return a value in YAML's flow style."""
    if isinstance(value, At):
        return f'"{_path(value, folders)}"'
    if isinstance(value, list):
        return f"[{', '.join(_yaml(one, folders) for one in value)}]"
    if isinstance(value, dict):  # keys with paths come first and without quotes; JSON, the rest, is YAML too
        paths = [f"{key}: {_yaml(one, folders)}" for key, one in value.items() if _holds_path(one)]
        more = {key: one for key, one in value.items() if not _holds_path(one)}
        return f"{{{', '.join([*paths, *([json.dumps(more)[1:-1]] if more else [])])}}}"
    return json.dumps(value)


def _holds_path(value: Any) -> bool:
    return isinstance(value, At) or (isinstance(value, list) and any(_holds_path(one) for one in value))


def _path(at: At, folders: dict[str, str]) -> str:
    """Return the path below an input or output, escaped for YAML's quotation marks."""
    below = at.below.replace("\\", "\\\\").replace('"', '\\"')
    return folders[at.name] + (f"/{below}" if below else "")


def job_variables(plan: Plan) -> dict[str, str]:
    """Return the environment variables of each process: NCCL and InfiniBand by the machine's size, the user's last."""
    compute = plan.compute
    return {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(compute.threads_per_process),
        # Azure's launcher sets RANK, LOCAL_RANK, WORLD_SIZE and the address of the master, but not this one
        "LOCAL_WORLD_SIZE": str(compute.processes_per_node),
        "TOKENIZERS_PARALLELISM": "true",
        MLFLOW: "true",
        **(_network(find_size(compute.size), compute.nodes) if compute.device == "gpu" else {}),
        **({METADATA_VARIABLE: METADATA} if plan.spec.compute.tier == "spot" else {}),
        **({SECRETS_VARIABLE: ",".join(secrets)} if (secrets := plan.spec.environment.secrets) else {}),
        **plan.spec.environment.variables,
    }


def _network(size: Size | None, nodes: int) -> dict[str, str]:
    # settings that Azure's guides recommend for NCCL; PCI_BUS_ID gives GPUs the numbers that nvidia-smi shows
    common = {
        "NCCL_DEBUG": "WARN",
        "NCCL_SOCKET_IFNAME": "eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    if size is None:
        return common
    if not size.infiniband_gbps:
        return {**common, "NCCL_IB_DISABLE": "1"} if nodes > 1 else common
    rdma = {"NCCL_IB_PCI_RELAXED_ORDERING": "1", "UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0"}
    return {**common, **rdma, **({"NCCL_TOPO_FILE": ND_A100_TOPOLOGY} if size.gpu == "A100" else {})}


def job_documents(request: AzureRequest, plan: Plan) -> dict[str, str]:
    """Return the documents that the job, and any client that attaches to its run, reads: name -> text."""
    tags = {key: value for key, value in request.job["properties"]["tags"].items() if key != "orchestrator.attempt"}
    return {
        CONFIG: json.dumps(plan.portable(), indent=1),
        TAGS: json.dumps(tags),
        PLAN: json.dumps(plan.as_dict(), indent=1),
        SPEC: yaml.safe_dump(plan.spec.model_dump(mode="json"), sort_keys=False),
        REQUEST: request.model_dump_json(indent=1),
    }
