"""Job files of the `az ml` command line: command jobs and sweeps are read and checked, command jobs also written.

Azure's SDK checks the schema. What the SDK accepts and the service refuses is refused here, with line and reason.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.backends.azure.wire.control_plane import Body, duration_seconds, quiet
from orchestrator.support.errors import SpecError
from train_jobs.artifacts.layers import ConfigLayer, KeyPath, dotted, read_file

SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"
MODES = {"ReadOnlyMount": "ro_mount", "ReadWriteMount": "rw_mount", "Download": "download", "Upload": "upload"}
IDENTITIES = {"Managed": "managed", "UserIdentity": "user_identity"}
KINDS = ("command", "sweep")
MAX_NAME_LENGTH = 40
_ASSET = re.compile(r".*/(codes|environments|data|computes)/([^/]+)(?:/versions/([^/]+))?$")
_BINDING = re.compile(r"\${{\s*(?P<kind>inputs|outputs|search_space)\.(?P<name>\w+)\s*}}")
_SHARED = re.compile(r"[1-9]\d*[bkmgBKMG]?")
_CONTINUOUS = ("uniform", "loguniform", "normal", "lognormal", "quniform", "qloguniform", "qnormal", "qlognormal")
Problem = tuple[KeyPath, str]
"""Key of a job file, and the problem with its value."""


@dataclass(frozen=True)
class JobFile:
    """A valid job file."""

    path: Path
    document: dict[str, Any]
    job: Any
    """The job as an object of Azure's SDK."""

    @property
    def name(self) -> str:
        """The file's own name for the job, else its display name with a hash of its content."""
        if self.document.get("name"):
            return str(self.document["name"])
        slug = re.sub(r"[^a-z0-9]+", "-", str(self.document.get("display_name") or self.path.stem).lower()).strip("-")
        return f"{slug[:MAX_NAME_LENGTH].strip('-') or 'job'}-{self.digest}"

    @property
    def digest(self) -> str:
        """Hash of the document, 8 hex digits."""
        return hashlib.sha256(json.dumps(self.document, sort_keys=True, default=str).encode()).hexdigest()[:8]

    @property
    def work(self) -> dict[str, Any]:
        """The section with the command: of a sweep its trial."""
        return dict(self.document.get("trial", self.document))

    @property
    def nodes(self) -> int:
        """Number of machines."""
        own = self.document.get("resources") or {}
        return int((self.work.get("resources") or own).get("instance_count") or 1)

    @property
    def processes(self) -> int:
        """Number of ranks on each machine."""
        return int((self.work.get("distribution") or {}).get("process_count_per_instance") or 1)


def read_job_file(path: Path) -> JobFile:
    """Read and check a job file.

    Raises:
        SpecError: all problems, each with its line.
    """
    layer = read_file(path)
    problems = [f"{layer.origin(key)}: {dotted(key)}: {what}" for key, what in _problems(layer.tree)]
    if problems:
        raise SpecError(f"{path} has {len(problems)} problem{'s' if len(problems) > 1 else ''}", problems=problems)
    file = JobFile(path, layer.tree, _load(path, layer))
    # The SDK would draw random words for the name, so that submitting the file twice would start two jobs, and take the
    # experiment from the name of the current folder.
    file.job.name = file.name
    file.job.display_name = layer.tree.get("display_name") or file.name
    file.job.experiment_name = layer.tree.get("experiment_name") or path.stem
    return file


def _load(path: Path, layer: ConfigLayer) -> Any:
    from azure.ai.ml import load_job

    quiet()
    try:
        return load_job(path)
    except Exception as problem:  # errors of marshmallow, PyYAML, the SDK and the file system, without a common base
        first = next((line.strip() for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
        raise SpecError(
            f"invalid job file {path}",
            problems=list(_messages(str(problem), layer)) or [f"{path}: {first}"],
        ) from problem


def _messages(text: str, layer: ConfigLayer) -> Iterator[str]:
    """Yield the SDK's message about each key, which it nests in a document inside a document inside its message."""
    found = _first_object(text)
    errors = found.get("errors")
    if isinstance(errors, list):
        for error in errors:
            yield from _messages(str(error.get("message", "")), layer)
        return
    first: dict[KeyPath, str] = {}
    for key, what in _leaves(found, ()):
        first.setdefault(key, what)  # a section may have several forms; the message about the first is enough
    yield from (f"{layer.origin(key)}: {dotted(key)}: {what}" for key, what in first.items())


def _first_object(text: str) -> dict[str, Any]:
    """Return the first JSON object inside a text; empty without one."""
    for brace in re.finditer(r"{", text):
        with suppress(ValueError):
            return dict(json.JSONDecoder().raw_decode(text, brace.start())[0])
    return {}


def _leaves(tree: Any, path: KeyPath) -> Iterator[Problem]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, (*path, key) if not str(key).startswith("_") else path)
    elif isinstance(tree, list):
        for value in tree:
            yield from _leaves(value, path)
    elif path:
        yield path, str(tree).rstrip(".")


def _problems(tree: Mapping[str, Any]) -> Iterator[Problem]:
    kind = tree.get("type", "command")
    if kind not in KINDS:
        yield ("type",), f"unknown type of job {kind!r} (known: {', '.join(KINDS)})"
        return
    if not tree.get("compute"):
        yield ("compute",), "missing: the service accepts no job without a cluster (compute: azureml:NAME)"
    if kind == "command":
        yield from _work_problems(tree, tree, ())
    elif isinstance(work := tree.get("trial"), Mapping):
        yield from _resource_problems(tree, ())
        yield from _work_problems(tree, work, ("trial",))
        yield from _sweep_problems(tree)
    else:
        yield ("trial",), "missing: the job of each trial"


def _work_problems(tree: Mapping[str, Any], work: Mapping[str, Any], at: KeyPath) -> Iterator[Problem]:
    yield from _resource_problems(work, at)
    yield from _below_one(work, at, "distribution", "process_count_per_instance")
    command = work.get("command")
    for found in _BINDING.finditer(command) if isinstance(command, str) else ():
        if found["name"] not in {**_mapping(tree, found["kind"]), **_mapping(work, found["kind"])}:
            yield (*at, "command"), f"{found[0]} names none of the {found['kind'].replace('_', ' ')}"


def _resource_problems(section: Mapping[str, Any], at: KeyPath) -> Iterator[Problem]:
    yield from _below_one(section, at, "resources", "instance_count")
    shared = _mapping(section, "resources").get("shm_size")
    if shared is not None and not _SHARED.fullmatch(str(shared)):
        yield (*at, "resources", "shm_size"), f"{shared} is not a number with b, k, m or g"


def _below_one(section: Mapping[str, Any], at: KeyPath, name: str, key: str) -> Iterator[Problem]:
    count = _mapping(section, name).get(key, 1)
    if isinstance(count, int) and count < 1:
        yield (*at, name, key), f"{count} is less than 1"


def _mapping(section: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a section inside a section; empty if it is missing or has another type, which the SDK refuses."""
    value = section.get(key)
    return value if isinstance(value, Mapping) else {}


def _sweep_problems(tree: Mapping[str, Any]) -> Iterator[Problem]:
    sampling, policy = tree.get("sampling_algorithm"), _mapping(tree, "early_termination")
    name = sampling.get("type") if isinstance(sampling, Mapping) else sampling
    if name == "bayesian" and tree.get("early_termination"):
        yield ("early_termination",), "bayesian sampling allows no early termination"
    if name == "grid":
        for key, values in _mapping(tree, "search_space").items():
            if isinstance(values, Mapping) and values.get("type") in _CONTINUOUS:
                yield ("search_space", key), "grid sampling allows only choice"
    if policy.get("type") == "bandit" and policy.get("slack_factor") and policy.get("slack_amount"):
        yield ("early_termination", "slack_amount"), "slack_factor is given too: give one of them"


def job_file(name: str, job: Body) -> dict[str, Any]:
    """Return a command job in the form of `az ml job create -f`; the assets that it names must exist."""
    body = job["properties"]
    document = {
        "$schema": SCHEMA,
        "type": "command",
        "name": name,
        "display_name": body["displayName"],
        "experiment_name": body["experimentName"],
        "compute": _short(body["computeId"]),
        "code": _short(body["codeId"]),
        "environment": _short(body["environmentId"]),
        "command": body["command"],
        "distribution": {
            "type": "pytorch",
            "process_count_per_instance": body["distribution"]["processCountPerInstance"],
        },
        "resources": {
            "instance_count": body["resources"]["instanceCount"],
            "shm_size": body["resources"]["shmSize"],
        },
        "environment_variables": body["environmentVariables"],
        "inputs": {name: _binding(value) for name, value in body["inputs"].items()},
        "outputs": {name: _binding(value) for name, value in body["outputs"].items()},
        "tags": body["tags"],
    }
    if "limits" in body:
        document["limits"] = {"timeout": duration_seconds(body["limits"]["timeout"])}
    if "identity" in body:
        document["identity"] = {"type": IDENTITIES[body["identity"]["identityType"]]}
    return document


def _short(arm_id: str) -> str:
    """`azureml:NAME[:VERSION]` for one of Azure's ids; any other text stays as it is."""
    match = _ASSET.fullmatch(arm_id)
    return ":".join(["azureml", *filter(None, match.groups()[1:])]) if match else arm_id


def _binding(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": value.get("jobInputType") or value["jobOutputType"],
        "path": _short(value["uri"]),
        "mode": MODES[value["mode"]],
    }
