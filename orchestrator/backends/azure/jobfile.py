"""A request as a job file of the `az ml` command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.backends.azure.submission import AzureRequest

SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"
MODES = {"ReadOnlyMount": "ro_mount", "ReadWriteMount": "rw_mount", "Download": "download", "Upload": "upload"}
IDENTITIES = {"Managed": "managed", "UserIdentity": "user_identity"}
_ASSET = re.compile(r".*/(codes|environments|data|computes)/([^/]+)(?:/versions/([^/]+))?$")


def job_file(request: AzureRequest) -> dict[str, Any]:
    """What `az ml job create -f` takes: the same job, its assets by name. Those have to be there already."""
    body = request.job["properties"]
    document = {
        "$schema": SCHEMA,
        "type": "command",
        "name": request.name,
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
