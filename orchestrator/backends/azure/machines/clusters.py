"""Clusters: made, changed or left alone, and asked for no more than the quota has."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from orchestrator.backends.azure.machines.sizes import SIZES, Size, find_size, fitting, same_family
from orchestrator.backends.azure.options import AzureSpec
from orchestrator.backends.azure.wire.control_plane import Body, Wire, writable
from orchestrator.specs.compute import CLUSTER_NAME
from orchestrator.support.errors import ConflictError, NotFoundError, QuotaError, SpecError, UsageError
from train_jobs.config.base import Config

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan

TIERS = {"dedicated": "Dedicated", "low-priority": "LowPriority"}
MOST_SHARED_GB = 64
DEFAULT_SHARED = "16g"  # on machines whose memory nobody here knows
SCALE = {"min_nodes": "minNodeCount", "max_nodes": "maxNodeCount", "idle_seconds": "nodeIdleTimeBeforeScaleDown"}

LOW_PRIORITY_QUOTA = re.compile(r"low.?priority", re.IGNORECASE)
FIXED = {"vmSize": "size", "vmPriority": "tier"}  # of a cluster once it is there
MOST = "maxNodeCount"
DEDICATED = "Dedicated"
FEWER = "--set compute.nodes={0} --set compute.max_nodes={0}"  # what a spec takes


def provision(wire: Wire, cluster: Cluster, *, fewer: str = FEWER) -> str:
    """Sees to it that a cluster is there as it should be; returns what was done, in one line.

    Args:
        wire: the workspace.
        cluster: what it should be.
        fewer: what asks for {0} machines, in a message to whoever asked for too many.

    Raises:
        NotFoundError: it is not there, and nobody said of what machines to make it.
        ConflictError: there is one of that name with other machines.
        QuotaError: the subscription may not have so many.
        UserError: Azure could not make it.
    """
    name, wanted = cluster.name, cluster.body
    found = wire.compute(name)
    if found is None and wanted is None:
        raise NotFoundError(
            f"there is no cluster {name}",
            facts={"where": f"workspace {wire.workspace.workspace}"},
            fix=f"orchestrator cluster create --name {name} --sku Standard_NC4as_T4_v3 --max-nodes 1",
        )
    if wanted is None:
        return f"cluster {name}: there, left as it is"
    if found is None:
        location = wire.location()
        check_quota(wire, location, wanted, held=0, fewer=fewer)
        wire.put_compute(name, {"location": location, **wanted})
        return f"cluster {name}: created, {shape_text(wanted)}"
    wanted = _grown(found, wanted, cluster.silent)
    changes = differences(name, found, wanted)
    if not changes:
        return f"cluster {name}: there, {shape_text(found)}"
    if _grows(found, wanted):
        running = found["properties"]["properties"].get("currentNodeCount") or 0
        held = max(_scale(found).get("minNodeCount") or 0, running)
        check_quota(wire, str(found.get("location") or wire.location()), wanted, held=held, fewer=fewer)
    body = writable(found)
    body["properties"]["properties"]["scaleSettings"] = dict(_scale(wanted))
    wire.put_compute(name, body)
    return f"cluster {name}: updated, {', '.join(changes)}"


def _grown(found: Body, wanted: Body, silent: Sequence[str]) -> Body:
    """What a cluster that is there should be: what nobody asked for stays, and the most is no less for it."""
    before, scale = _scale(found), dict(_scale(wanted))
    for key in silent:
        there = before.get(key)
        if there is not None:
            scale[key] = max(there, scale[key]) if key == MOST else there
    scale[MOST] = max(scale[MOST], scale["minNodeCount"])
    inner = {**wanted["properties"]["properties"], "scaleSettings": scale}
    return {**wanted, "properties": {**wanted["properties"], "properties": inner}}


def _grows(found: Body, wanted: Body) -> bool:
    """Whether a cluster would keep, or may have, more machines than now: only these need room in the quota."""
    before, after = _scale(found), _scale(wanted)
    return any((before.get(key) or 0) < (after.get(key) or 0) for key in ("minNodeCount", MOST))


def differences(name: str, found: Body, wanted: Body) -> list[str]:
    """How a cluster has to change: `maxNodeCount 2 -> 4`.

    Raises:
        ConflictError: it would have to be of another size or tier, which no cluster changes.
    """
    there, asked = found["properties"]["properties"], wanted["properties"]["properties"]
    for key, what in FIXED.items():
        if str(there.get(key)).lower() != str(asked[key]).lower():
            raise ConflictError(
                f"cluster {name} is of another {what}",
                facts={"have": there.get(key), "need": asked[key]},
                fix=f"--cluster with another name, or orchestrator cluster delete --name {name}",
            )
    before, after = _scale(found), _scale(wanted)
    return [
        f"{key} {before.get(key)} -> {after[key]}"
        for key in SCALE.values()
        if _comparable(before.get(key)) != _comparable(after[key])
    ]


def check_quota(wire: Wire, location: str, wanted: Body, *, held: int, fewer: str) -> None:
    """Holds a cluster at its largest against the quota of its family.

    Args:
        wire: the workspace.
        location: its region.
        wanted: the cluster.
        held: machines of it that count as used already.
        fewer: as of `provision`.

    Raises:
        QuotaError: it does not fit; names sizes that do.
    """
    properties = wanted["properties"]["properties"]
    size, nodes = find_size(properties["vmSize"]), properties["scaleSettings"]["maxNodeCount"]
    if size is None:
        return  # nobody here knows its cores: Azure will say
    low = properties["vmPriority"] != DEDICATED
    usages = wire.usages(location)
    usage = next((one for one in usages if _is_quota_of(one["name"], size, low)), None)
    if usage is None:
        return
    need, free = size.cores * nodes, usage["limit"] - usage["used"] + size.cores * held
    if need <= free:
        return
    others = [one for one in SIZES if (one.gpu is None) == (size.gpu is None) and not one.legacy and one != size]
    fit = fitting(others, free, nodes) if low else [one for one in others if _fits(one, nodes, usages)]
    most = int(free // size.cores)
    raise QuotaError(
        f"not enough cores for {nodes} x {size.name} in {location}",
        facts={
            "need": f"{need} cores of {usage['name']}, limit {usage['limit']}, used {usage['used']}",
            "fits": ", ".join(one.name for one in fit[:5]) or "nothing of the same kind",
            "or": "request quota: https://ml.azure.com/quota",
        },
        fix=fewer.format(most) if most > 0 else "orchestrator skus",
    )


def _is_quota_of(name: str, size: Size, low: bool) -> bool:
    return bool(LOW_PRIORITY_QUOTA.search(name)) if low else same_family(name, size.family)


def _fits(size: Size, nodes: int, usages: list[Body]) -> bool:
    usage = next((one for one in usages if same_family(one["name"], size.family)), None)
    return usage is not None and size.cores * nodes <= usage["limit"] - usage["used"]


def check_name(name: str) -> None:
    """Raises SpecError where Azure would take no cluster of that name."""
    if not re.fullmatch(CLUSTER_NAME, name):
        raise SpecError(
            f"no cluster can be called {name!r}",
            facts={"rule": "3 to 24 letters, digits and hyphens, with a letter first"},
            fix="--name gpu-t4",
        )


def scaled(found: Body, least: int | None, most: int | None, idle_seconds: int | None) -> Body:
    """A cluster as it is, with another scale; None: as before.

    Raises:
        UsageError: it would keep more machines than it may have.
    """
    before = _scale(found)
    least = before.get("minNodeCount") or 0 if least is None else least
    most = before.get("maxNodeCount") or 0 if most is None else most
    if most < least:
        raise UsageError(f"at most {most} machines are less than the {least} that are kept", fix=f"--max-nodes {least}")
    idle = before.get("nodeIdleTimeBeforeScaleDown") if idle_seconds is None else duration(idle_seconds)
    body = writable(found)
    scale = {"minNodeCount": least, "maxNodeCount": most, "nodeIdleTimeBeforeScaleDown": idle}
    body["properties"]["properties"]["scaleSettings"] = scale
    return body


def _scale(body: Body) -> Body:
    found: Body = body["properties"]["properties"].get("scaleSettings") or {}
    return found


def _comparable(value: Any) -> Any:
    """Azure may write an idle time in another form than it got it in: PT1800S and PT30M are the same."""
    if isinstance(value, str) and (
        parts := re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", value)
    ):
        days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
        return days * 86_400 + hours * 3600 + minutes * 60 + seconds
    return value


def shape_text(body: Body) -> str:
    """`0 to 4 x Standard_NC4as_T4_v3, low-priority`."""
    properties = body["properties"]["properties"]
    scale = _scale(body)
    tier = "" if properties.get("vmPriority") == DEDICATED else ", low-priority"
    return f"{scale.get('minNodeCount', 0)} to {scale.get('maxNodeCount', 0)} x {properties.get('vmSize')}{tier}"


def cluster_row(body: Body, price: Callable[[str, bool], float | None]) -> dict[str, Any]:
    """A cluster as `orchestrator cluster list` tells of it.

    Args:
        body: as Azure has it.
        price: USD an hour of a size, on low priority or not; None: unknown.
    """
    outer = body["properties"]
    inner, scale = outer["properties"], _scale(body)
    low = inner.get("vmPriority") != DEDICATED
    hourly = price(str(inner.get("vmSize")), low)
    kept, current = scale.get("minNodeCount") or 0, inner.get("currentNodeCount") or 0
    return {
        "name": body["name"],
        "state": outer.get("provisioningState"),
        "size": inner.get("vmSize"),
        "tier": "low-priority" if low else "dedicated",
        "min_nodes": kept,
        "max_nodes": scale.get("maxNodeCount"),
        "nodes": current,
        "idle_seconds": _comparable(scale.get("nodeIdleTimeBeforeScaleDown")),
        "price_per_hour": hourly,
        "idle_cost_per_day": None if hourly is None else round(kept * hourly * 24, 2),
        "cost_per_hour_now": None if hourly is None else round(current * hourly, 2),
        "errors": [one.get("error", {}).get("message") for one in outer.get("provisioningErrors") or []],
    }


class Cluster(Config):
    """The cluster that a run needs."""

    name: str
    """Its name."""
    body: Body | None = None
    """What is sent if there is none, or another one, of that name. None: it has to be there, and is left as it is."""
    silent: list[str] = Field(default=[])
    """Scale settings of the body that nobody asked for: where the cluster is there they stay as they are, and of the
    most machines there are never less for it."""


def cluster_body(plan: Plan) -> Body | None:
    """The cluster of a plan that says of what machines; None for one that only names it."""
    compute = plan.spec.compute
    if compute.sku is None:
        return None
    return compute_body(
        size=compute.sku,
        tier=compute.tier,
        min_nodes=compute.min_nodes,
        max_nodes=compute.max_nodes or max(compute.nodes, compute.min_nodes),
        idle_seconds=compute.idle_seconds,
    )


def _silent(plan: Plan) -> list[str]:
    """Scale settings that the spec leaves as presets and defaults have them: others may use the cluster, too."""
    return [name for key, name in SCALE.items() if f"compute.{key}" not in plan.changes]


def compute_body(*, size: str, tier: str, min_nodes: int, max_nodes: int, idle_seconds: int) -> Body:
    """A cluster of Azure ML. Its machines are reached through Azure ML alone: no SSH, no keys."""
    found = find_size(size)
    return {
        "properties": {
            "computeType": "AmlCompute",
            "disableLocalAuth": True,
            "properties": {
                "vmSize": found.name if found else size,
                "vmPriority": TIERS[tier],
                "osType": "Linux",
                "enableNodePublicIp": True,
                "remoteLoginPortPublicAccess": "NotSpecified",
                "scaleSettings": {
                    "minNodeCount": min_nodes,
                    "maxNodeCount": max_nodes,
                    "nodeIdleTimeBeforeScaleDown": duration(idle_seconds),
                },
            },
        }
    }


def duration(seconds: int) -> str:
    """Seconds in ISO 8601, as Azure's SDK writes them: PT30M, P1DT2H."""
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    time = "".join(f"{value}{unit}" for value, unit in ((hours, "H"), (minutes, "M"), (left, "S")) if value)
    return "P" + (f"{days}D" if days else "") + (f"T{time}" if time or not days else "")


def _shared_memory(plan: Plan) -> str:
    asked = plan.spec.settings_of(AzureSpec).shm_size
    if asked != "auto":
        return asked
    size = find_size(plan.compute.size) if plan.compute.size else None
    return DEFAULT_SHARED if size is None else f"{max(1, min(size.memory_gb // 2, MOST_SHARED_GB))}g"
