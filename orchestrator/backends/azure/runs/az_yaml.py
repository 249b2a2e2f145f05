"""Job files of the `az ml` command line: command jobs and sweeps, taken as they are, or refused with line and reason.

Azure's SDK judges the schema; what it lets pass and the service refuses is refused here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.backends.azure.wire.control_plane import Body, quiet
from orchestrator.support.errors import SpecError
from train_jobs.artifacts.layers import KeyPath, Layer, dotted, read_file

SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"
MODES = {"ReadOnlyMount": "ro_mount", "ReadWriteMount": "rw_mount", "Download": "download", "Upload": "upload"}
IDENTITIES = {"Managed": "managed", "UserIdentity": "user_identity"}
_ASSET = re.compile(r".*/(codes|environments|data|computes)/([^/]+)(?:/versions/([^/]+))?$")

KINDS = ("command", "sweep")
LONGEST_NAME = 40
_BINDING = re.compile(r"\${{\s*(?P<kind>inputs|outputs|search_space)\.(?P<name>\w+)\s*}}")
_SHARED = re.compile(r"[1-9]\d*[bkmgBKMG]?")
_CONTINUOUS = ("uniform", "loguniform", "normal", "lognormal", "quniform", "qloguniform", "qnormal", "qlognormal")


@dataclass(frozen=True)
class JobFile:
    """A job file that was found to be in order."""

    path: Path
    document: dict[str, Any]
    job: Any
    """As Azure's SDK has it."""

    @property
    def name(self) -> str:
        """The file's own name for the job, else one of its display name and its content."""
        if self.document.get("name"):
            return str(self.document["name"])
        slug = re.sub(r"[^a-z0-9]+", "-", str(self.document.get("display_name") or self.path.stem).lower()).strip("-")
        return f"{slug[:LONGEST_NAME].strip('-') or 'job'}-{self.digest}"

    @property
    def digest(self) -> str:
        """8 hex digits over the document."""
        text = json.dumps(self.document, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def work(self) -> dict[str, Any]:
        """The section that says what runs: of a sweep its trial."""
        found: dict[str, Any] = self.document.get("trial", self.document)
        return found

    @property
    def nodes(self) -> int:
        """Machines."""
        own = self.document.get("resources") or {}
        return int((self.work.get("resources") or own).get("instance_count") or 1)

    @property
    def processes(self) -> int:
        """Ranks on each."""
        return int((self.work.get("distribution") or {}).get("process_count_per_instance") or 1)


def is_job_file(word: str) -> bool:
    """Whether a word of the command line is a file and not a kind of job."""
    return word.endswith((".yml", ".yaml"))


def read_job_file(path: Path) -> JobFile:
    """Reads a job file and judges it.

    Raises:
        SpecError: all that is wrong with it, with its line.
    """
    layer = read_file(path)
    problems = [f"{layer.origin(key)}: {dotted(key)}: {what}" for key, what in _problems(layer.tree)]
    if problems:
        raise SpecError(f"{path} has {len(problems)} problem{'s' if len(problems) > 1 else ''}", problems=problems)
    file = JobFile(path, layer.tree, _load(path, layer))
    file.job.name = file.name  # or the SDK would draw random words
    file.job.display_name = layer.tree.get("display_name") or file.name
    file.job.experiment_name = layer.tree.get("experiment_name") or path.stem
    return file


def rest_body(file: JobFile) -> dict[str, Any]:
    """What Azure's SDK sends for it, but for ids that only the workspace gives."""
    from azure.ai.ml.entities._job.to_rest_functions import to_rest_job_object

    found: dict[str, Any] = to_rest_job_object(file.job).as_dict()
    return found


def _load(path: Path, layer: Layer) -> Any:
    from azure.ai.ml import load_job

    quiet()

    try:
        job = load_job(path)
    except Exception as problem:  # it raises whatever its schemas do
        told = list(_told(str(problem), layer)) or [f"{path}: {_first_line(problem)}"]
        raise SpecError(f"{path} is no job that Azure takes", problems=told) from problem
    return job


def _told(text: str, layer: Layer) -> Iterator[str]:
    """Azure's own words about each key, which it hides in a document inside a document inside its message."""
    for found in _documents(text):
        errors = found.get("errors")
        if isinstance(errors, list):
            for error in errors:
                yield from _told(str(error.get("message", "")), layer)
            return
        seen: set[KeyPath] = set()
        for key, what in _leaves(found, ()):
            if key not in seen:  # of several forms that a section may have, the first tells enough
                seen.add(key)
                yield f"{layer.origin(key)}: {dotted(key)}: {what}"
        return


def _documents(text: str) -> Iterator[dict[str, Any]]:
    start = text.find("{")
    while start >= 0:
        try:
            found, _ = json.JSONDecoder().raw_decode(text, start)
        except ValueError:
            start = text.find("{", start + 1)
            continue
        if isinstance(found, dict):
            yield found
        return


def _leaves(tree: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, (*path, key) if not str(key).startswith("_") else path)
    elif isinstance(tree, list):
        for value in tree:
            yield from _leaves(value, path)
    elif path:
        yield path, str(tree).rstrip(".")


def _first_line(problem: Exception) -> str:
    return next((line.strip() for line in str(problem).splitlines() if line.strip()), type(problem).__name__)


def _problems(tree: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    kind = tree.get("type", "command")
    if kind not in KINDS:
        yield ("type",), f"{kind} is not taken here (known: {', '.join(KINDS)})"
        return
    if not tree.get("compute"):
        yield ("compute",), "missing: the service takes no job without a cluster (compute: azureml:NAME)"
    prefix: KeyPath = ("trial",) if kind == "sweep" else ()
    work = tree.get("trial") if kind == "sweep" else tree
    if not isinstance(work, Mapping):
        yield ("trial",), "missing: what each trial runs"
        return
    yield from _work_problems(tree, work, prefix)
    if kind == "sweep":
        yield from _sweep_problems(tree)


def _work_problems(tree: Mapping[str, Any], work: Mapping[str, Any], prefix: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    for at, section in ((prefix, work), ((), tree)) if prefix else ((prefix, work),):
        resources = section.get("resources")
        if isinstance(resources, Mapping):
            count = resources.get("instance_count", 1)
            if isinstance(count, int) and count < 1:
                yield (*at, "resources", "instance_count"), f"{count} is less than 1"
            shared = resources.get("shm_size")
            if shared is not None and not _SHARED.fullmatch(str(shared)):
                yield (*at, "resources", "shm_size"), f"{shared} is no number with b, k, m or g"
    distribution = work.get("distribution")
    if isinstance(distribution, Mapping):
        each = distribution.get("process_count_per_instance", 1)
        if isinstance(each, int) and each < 1:
            yield (*prefix, "distribution", "process_count_per_instance"), f"{each} is less than 1"
    command = work.get("command")
    if isinstance(command, str):
        for found in _BINDING.finditer(command):
            there = {**(tree.get(found["kind"]) or {}), **(work.get(found["kind"]) or {})}
            if found["name"] not in there:
                yield (*prefix, "command"), f"{found[0]} names none of the {found['kind'].replace('_', ' ')}"


def _sweep_problems(tree: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    sampling = tree.get("sampling_algorithm")
    name = sampling.get("type") if isinstance(sampling, Mapping) else sampling
    policy = tree.get("early_termination")
    if name == "bayesian" and policy:
        yield ("early_termination",), "bayesian sampling takes no early termination"
    space = tree.get("search_space")
    if name == "grid" and isinstance(space, Mapping):
        for key, values in space.items():
            if isinstance(values, Mapping) and values.get("type") in _CONTINUOUS:
                yield ("search_space", key), "grid sampling takes choice alone"
    limits = policy if isinstance(policy, Mapping) and policy.get("type") == "bandit" else {}
    if limits.get("slack_factor") and limits.get("slack_amount"):
        yield ("early_termination", "slack_amount"), "slack_factor is given too: one of them"


def job_file(name: str, job: Body) -> dict[str, Any]:
    """Return a job as `az ml job create -f` takes it: its assets, by name, have to exist."""
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
        document["limits"] = {"timeout": _seconds(body["limits"]["timeout"])}
    if "identity" in body:
        document["identity"] = {"type": IDENTITIES[body["identity"]["identityType"]]}
    return document


def _short(arm_id: str) -> str:
    """`azureml:NAME[:VERSION]` of one of Azure's ids; what is none stays as it is."""
    match = _ASSET.fullmatch(arm_id)
    if match is None:
        return arm_id
    return f"azureml:{match[2]}" + (f":{match[3]}" if match[3] else "")


def _binding(value: dict[str, Any]) -> dict[str, Any]:
    kind = value.get("jobInputType") or value["jobOutputType"]
    return {"type": kind, "path": _short(value["uri"]), "mode": MODES[value["mode"]]}


def _seconds(duration: str) -> int:
    """Of an ISO 8601 duration as `request.duration` writes it."""
    units = {"D": 86_400, "H": 3600, "M": 60, "S": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([DHMS])", duration))
