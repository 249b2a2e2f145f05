"""Job files of the `az ml` command line: command jobs and sweeps are read and checked, command jobs also written.

Azure's SDK checks the schema. What the SDK accepts and the service refuses is refused here, with line and reason.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator.backends.azure import places
from orchestrator.backends.azure.wire.control_plane import Body, content_hash, duration_seconds, quiet, rest_body
from orchestrator.support.errors import SpecError
from train_jobs.artifacts.layers import ConfigLayer, KeyPath, dotted, read_source
from train_jobs.artifacts.yaml_values import read_yaml

SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"
MODES = {"ReadOnlyMount": "ro_mount", "ReadWriteMount": "rw_mount", "Download": "download", "Upload": "upload"}
IDENTITIES = {"Managed": "managed", "UserIdentity": "user_identity"}
JOB_TYPES = ("command", "sweep")
MAX_NAME_LENGTH = 40
SERVERLESS = "serverless"  # machines of a job whose file names none
_ASSET = re.compile(r".*/(codes|environments|data|computes)/([^/]+)(?:/versions/([^/]+))?$")
_BINDING = re.compile(r"\${{\s*(?P<kind>inputs|outputs|search_space)\.(?P<name>\w+)\s*}}")
_OPTIONAL = re.compile(r"\[[\w.\s-]*\${{inputs\.[\w.-]+}}]")  # left out of the command if the job has no such input
_ALLOWED = re.compile(r"not in set (\[[^]]*\])")
_QUOTED = re.compile(r"'([^']*)'")
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
    name: str
    """The file's own name for the job, else its display name with a hash of its content."""
    digest: str
    """Hash of the document and of its local code, 8 hex digits."""
    warnings: tuple[str, ...] = ()
    """Duplicate keys, each with its line: Azure's SDK silently takes the last value."""

    @property
    def work(self) -> Any:
        """The part of the job that has the command: of a sweep its trial."""
        return self.job.trial if "trial" in self.document else self.job

    @property
    def compute(self) -> str:
        """Name or ARM id of the machines; `serverless` if the file names none."""
        return str(self.job.compute or SERVERLESS)

    @property
    def needs_cluster(self) -> bool:
        """Whether the machines are a compute target of the workspace, which must exist."""
        # an ARM id may name a cluster of another workspace; the SDK itself runs a job on `local`
        return "/" not in self.compute and self.compute.lower() not in {SERVERLESS, "local"}

    @property
    def nodes(self) -> int:
        """Number of machines."""
        work, whole = self._sections()
        return int((work.get("resources") or whole.get("resources") or {}).get("instanceCount") or 1)

    @property
    def processes(self) -> int:
        """Number of ranks on each machine."""
        return int((self._sections()[0].get("distribution") or {}).get("processCountPerInstance") or 1)

    def _sections(self) -> tuple[Body, Body]:
        """Return the part of the body that has the command, and the whole."""
        whole = self.body()["properties"]
        return whole.get("trial", whole), whole

    def body(self) -> Body:
        """Return the body that the SDK sends, except for ids that only the workspace gives.

        An environment that is part of the file has the name and version under which the SDK creates it first.

        Raises:
            AzureError: an input or a name is invalid.
        """
        body = rest_body(self.job)
        work = body["properties"].get("trial", body["properties"])
        if not isinstance(environment := work.get("environmentId"), str):
            work["environmentId"] = f"azureml:{environment.name}:{environment.version}"
        return body


def read_job_file(path: Path) -> JobFile:
    """Read and check a job file.

    Raises:
        SpecError: all problems, each with its line.
    """
    layer, warnings = _read(path)
    problems = [_problem(layer, key, what) for key, what in _problems(layer.tree)]
    if problems:
        raise SpecError(f"{path} has {len(problems)} problem{'s' if len(problems) > 1 else ''}", problems=problems)
    content = json.dumps(layer.tree, sort_keys=True, default=str)
    with _refusals(path, layer):
        job = _load(path)
        digest = hashlib.sha256(f"{content}{_code_hash(path, layer.tree)}".encode()).hexdigest()[:8]
        # The SDK would draw random words for the name, so that submitting the file twice would start two jobs.
        job.name = job.name or _name(str(job.display_name or path.stem), digest)
        file = JobFile(path, layer.tree, job, job.name, digest, warnings)
        file.body()  # checks inputs and names, which loading does not
    return file


def _code_hash(path: Path, tree: Mapping[str, Any]) -> str:
    """Return the hash of the local code that a job file names; empty without any."""
    code = _mapping(tree, "trial").get("code", tree.get("code"))
    folder = path.parent / str(code)
    return content_hash(folder) if code is not None and folder.exists() else ""


def _name(title: str, digest: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    return f"{slug[:MAX_NAME_LENGTH].strip('-') or 'job'}-{digest}"


def _read(path: Path) -> tuple[ConfigLayer, tuple[str, ...]]:
    """Return the values that Azure's SDK reads, with the lines of their keys, and warnings of duplicate keys.

    Raises:
        SpecError: the file is not YAML, or not a mapping.
    """
    text = read_source(path, str(path))
    values = read_yaml(text, str(path))
    try:
        tree = yaml.safe_load(text)  # unlike `read_yaml`, it merges `<<`
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as problem:
        mark = getattr(problem, "problem_mark", None)
        what = getattr(problem, "problem", None) or str(problem)
        problems = values.problems or [f"{path}:{mark.line + 1 if mark else 1}: {what}"]
        raise SpecError(f"{path} is not valid YAML", problems=problems) from None
    if not isinstance(tree, dict):
        raise SpecError(f"invalid {path}: not keys and values", problems=[f"{path}:1: not a mapping"])
    return ConfigLayer(str(path), _with_text_keys(tree), values.lines), tuple(values.problems)


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _with_text_keys(inner) for key, inner in value.items()}
    return [_with_text_keys(inner) for inner in value] if isinstance(value, list) else value


def _load(path: Path) -> Any:
    from azure.ai.ml import load_job

    quiet()
    return load_job(path)


@contextmanager
def _refusals(path: Path, layer: ConfigLayer) -> Iterator[None]:
    """Translate any error of the SDK into one that has the line of each problem."""
    try:
        yield
    except Exception as problem:  # errors of marshmallow, PyYAML, the SDK and the file system, without a common base
        text = str(problem)
        first = next((line.strip() for line in text.splitlines() if line.strip()), type(problem).__name__)
        raise SpecError(
            f"invalid job file {path}",
            problems=list(_messages(text, layer)) or [_placed(first, layer)],
        ) from problem


def _placed(message: str, layer: ConfigLayer) -> str:
    """Return a message with the place of the longest key that it names."""
    words = set(re.findall(r"[\w.-]+", message))
    named = [key for key in layer.lines if str(key[-1]) in words]
    return _problem(layer, max(named, key=lambda key: len(str(key[-1])), default=()), message)


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
        # marshmallow has an entry of its own between the name and the value of a dictionary
        written = tuple(part for at, part in enumerate(key) if part != "value" or key[: at + 1] in layer.lines)
        first.setdefault(written, what)
    outer = {key[:end] for key in first for end in range(1, len(key))}
    yield from (_problem(layer, key, what) for key, what in first.items() if key not in outer)


def _problem(layer: ConfigLayer, key: KeyPath, what: str) -> str:
    """Return a problem with its place; that of a missing key is line 1."""
    origin = layer.origin(key)
    line = "" if origin.line else ":1"
    return f"{origin}{line}: {dotted(key)}: {what}" if key else f"{origin}{line}: {what}"


def _first_object(text: str) -> dict[str, Any]:
    """Return the first JSON object inside a text; empty without one."""
    for brace in re.finditer(r"{", text):
        with suppress(ValueError):
            return dict(json.JSONDecoder().raw_decode(text, brace.start())[0])
    return {}


def _leaves(tree: Any, path: KeyPath) -> Iterator[Problem]:
    """Yield the messages about each key; of a section that may have several forms, those of the form of its type."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, (*path, key) if not str(key).startswith("_") else path)
    elif isinstance(tree, list):
        forms = [form for form in tree if not (isinstance(form, Mapping) and "type" in form)]
        known = [str(name) for form in tree for name in _ALLOWED.findall(str(_mapping({"": form}, "").get("type")))]
        if known and not forms:
            names = sorted({name for text in known for name in _QUOTED.findall(text)})
            yield (*path, "type"), f"unknown type (known: {', '.join(names)})"
        for value in forms[:1] if known else tree:
            yield from _leaves(value, path)
    elif path:
        yield path, " ".join(str(tree).split()).rstrip(".")


def _problems(tree: Mapping[str, Any]) -> Iterator[Problem]:
    job_type = tree.get("type", JOB_TYPES[0])
    if job_type not in JOB_TYPES:
        yield ("type",), f"unknown type of job {job_type!r} (known: {', '.join(JOB_TYPES)})"
        return
    experiment = tree.get("experiment_name")
    if isinstance(experiment, str) and experiment and not places.EXPERIMENT.fullmatch(experiment):
        yield ("experiment_name",), f"{experiment} is not {places.EXPERIMENT_RULE}"
    if job_type == JOB_TYPES[0]:
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
    for found in _BINDING.finditer(_OPTIONAL.sub("", command)) if isinstance(command, str) else ():
        known = {**_mapping(tree, found["kind"]), **_mapping(work, found["kind"])}
        if found["name"] not in known and (found["kind"], found["name"]) != ("outputs", "default"):
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
    if "maxInstanceCount" in body["resources"]:
        document["resources"]["max_instance_count"] = body["resources"]["maxInstanceCount"]
    if "services" in body:
        document["services"] = {name: _ssh(service) for name, service in body["services"].items()}
    if "identity" in body:
        identity = body["identity"]
        client = {"client_id": identity["clientId"]} if "clientId" in identity else {}
        document["identity"] = {"type": IDENTITIES[identity["identityType"]], **client}
    return document


def _ssh(service: Body) -> dict[str, Any]:
    """Return the one service that our jobs have."""
    nodes, keys = service["nodes"]["nodesValueType"].lower(), service["properties"]["sshPublicKeys"]
    return {"type": "ssh", "nodes": nodes, "ssh_public_keys": keys}


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
