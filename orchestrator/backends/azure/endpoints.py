"""Online endpoints of a workspace: their deployments, the traffic between them, and the roll-back to the former one."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from orchestrator.backends.azure.assets import report
from orchestrator.backends.azure.wire.control_plane import Body, Wire
from orchestrator.backends.capabilities import Endpoints
from orchestrator.support.errors import ConflictError, NotFoundError, UsageError
from train_jobs.config.errors import did_you_mean

SLOTS = ("blue", "green")
"""Names of the deployments that this project makes."""
FORMER, NEW = "orchestrator.former", "orchestrator.new"
"""Tags of an endpoint: deployments before and after the last `model deploy --traffic`."""
READY = "Succeeded"
_WRITABLE = {"authMode", "compute", "description", "mirrorTraffic", "properties", "publicNetworkAccess", "traffic"}


class AzureEndpoints(Endpoints):
    """The online endpoints of a workspace.

    Args:
        wire: connection to the workspace.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def rows(self) -> list[dict[str, Any]]:
        """Return all endpoints with their deployments."""
        return [self._row(endpoint) for endpoint in self._wire.endpoints()]

    def shift(self, name: str, traffic: Mapping[str, int]) -> dict[str, Any]:
        """Change the traffic of an endpoint."""
        endpoint = self._existing(name)
        check_traffic(name, traffic, self._wire.deployments(name))
        self._wire.put_endpoint(name, changed(endpoint, traffic))
        return self._row(self._existing(name))

    def roll_back(self, name: str, *, delete: bool = False) -> dict[str, Any]:
        """Give all traffic to the former deployment."""
        endpoint = self._existing(name)
        tags = endpoint.get("tags") or {}
        deployments = {one["name"]: one for one in self._wire.deployments(name)}
        former, new = tags.get(FORMER), tags.get(NEW)
        if former is None or former not in deployments:
            raise ConflictError(
                f"cannot roll back endpoint {name}: it has no record of a former deployment",
                facts={"deployments": ", ".join(deployments) or "none"},
                fix=f"orchestrator model traffic {name} DEPLOYMENT=100",
            )
        wanted = {former: 100}
        check_traffic(name, wanted, list(deployments.values()))
        if traffic_of(endpoint) != wanted:
            self._wire.put_endpoint(name, changed(endpoint, wanted))
        if delete and new is not None and new in deployments:
            self._wire.delete_deployment(name, new)
            report(f"deployment {new} of endpoint {name}: deleted")
        return self._row(self._existing(name))

    def _existing(self, name: str) -> Body:
        if (endpoint := self._wire.endpoint(name)) is None:
            raise NotFoundError(f"endpoint {name} does not exist", fix="orchestrator model endpoints")
        return endpoint

    def _row(self, endpoint: Body) -> dict[str, Any]:
        own, traffic = endpoint["properties"], traffic_of(endpoint)
        return {
            "endpoint": endpoint["name"],
            "uri": own.get("scoringUri"),
            "state": own.get("provisioningState"),
            "deployments": [
                {
                    "name": one["name"],
                    "traffic": traffic.get(one["name"], 0),
                    **_model(one["properties"].get("model")),
                    "size": one["properties"].get("instanceType"),
                    "state": one["properties"].get("provisioningState"),
                }
                for one in sorted(self._wire.deployments(endpoint["name"]), key=itemgetter("name"))
            ],
        }


def _model(identity: str | None) -> dict[str, str | None]:
    """Return name and version of a model's id, `.../models/NAME/versions/VERSION`; other ids are names."""
    name, marker, version = (identity or "").rpartition("/versions/")
    if not marker:
        return {"model": identity, "version": None}
    return {"model": name.rpartition("/")[2], "version": version}


def traffic_of(endpoint: Body) -> dict[str, int]:
    """Return the deployments that get traffic, and how much of it, in percent."""
    return {name: share for name, share in (endpoint["properties"].get("traffic") or {}).items() if share}


def changed(endpoint: Body, traffic: Mapping[str, int], tags: Mapping[str, str] | None = None) -> Body:
    """Return the body that changes the traffic of an endpoint, and keeps all else.

    A PUT, because the body of a PATCH has only identity and tags.

    Args:
        endpoint: as Azure has it.
        traffic: deployment -> percent.
        tags: tags to add.
    """
    identity = {
        key: value
        for key, value in (endpoint.get("identity") or {}).items()
        if key in {"type", "userAssignedIdentities"} and value
    }
    kept = {key: value for key, value in endpoint["properties"].items() if key in _WRITABLE and value is not None}
    return {
        "location": endpoint["location"],
        **({"identity": identity} if identity else {}),
        "tags": {**(endpoint.get("tags") or {}), **(tags or {})},
        "properties": {**kept, "traffic": {name: share for name, share in traffic.items() if share}},
    }


def check_traffic(endpoint: str, traffic: Mapping[str, int], deployments: list[Body]) -> None:
    """Check a division of an endpoint's traffic before anything is sent.

    Raises:
        ConflictError: a deployment that would get traffic is not ready.
        NotFoundError: a deployment does not exist.
        UsageError: the sum is not 100.
    """
    if (total := sum(traffic.values())) != 100:
        raise UsageError(
            f"invalid traffic of endpoint {endpoint}: its sum is {total}, not 100",
            facts={"traffic": ",".join(f"{name}={share}" for name, share in traffic.items())},
            fix=f"orchestrator model traffic {endpoint} blue=90,green=10",
        )
    states = {one["name"]: str(one["properties"].get("provisioningState")) for one in deployments}
    for name, share in traffic.items():
        if name not in states:
            raise NotFoundError(
                f"endpoint {endpoint} has no deployment {name!r}{did_you_mean(name, list(states))}",
                facts={"deployments": ", ".join(states) or "none"},
                fix="orchestrator model endpoints",
            )
        if share and states[name] != READY:
            raise ConflictError(
                f"deployment {name} of endpoint {endpoint} cannot get traffic: its state is {states[name]}",
                fix="orchestrator model endpoints",
            )


def next_split(endpoint: Body, deployments: list[Body], percent: int) -> tuple[str, str, dict[str, int]]:
    """Return the slot of another deployment, the deployment that has all traffic now, and the traffic afterwards.

    The slot is one of SLOTS that gets no traffic: its deployment, if it has one, is replaced.

    Args:
        endpoint: as Azure has it.
        deployments: of the endpoint.
        percent: traffic of the new deployment.

    Raises:
        ConflictError: the traffic is divided already, or no deployment gets any.
    """
    name, traffic = endpoint["name"], traffic_of(endpoint)
    if list(traffic.values()) != [100]:
        share = ",".join(f"{one}={part}" for one, part in traffic.items()) or "none"
        first = next(iter(traffic), next((one["name"] for one in deployments), "blue"))
        raise ConflictError(
            f"cannot add a deployment to endpoint {name}: its traffic must go to a single one first",
            facts={"traffic": share},
            fix=f"orchestrator model traffic {name} {first}=100",
        )
    (former,) = traffic
    slot = next(one for one in SLOTS if one != former)
    return slot, former, {former: 100 - percent, slot: percent}
