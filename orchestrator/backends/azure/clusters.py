"""Clusters of a workspace: created or changed within the quota, and listed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from orchestrator.backends.azure.assets import report
from orchestrator.backends.azure.options import MAX_RDMA_NODES, SERVERLESS, AzureSpec
from orchestrator.backends.azure.prices import Prices, price_of_size, read_prices
from orchestrator.backends.azure.sizes import SIZES, Size, check_runs_torch, find_size, same_family
from orchestrator.backends.azure.wire.control_plane import Body, Wire, duration, duration_seconds, writable
from orchestrator.backends.capabilities import ClusterChange, Clusters
from orchestrator.specs.compute import CLUSTER_NAME, region_name
from orchestrator.support.errors import ConflictError, NotFoundError, QuotaError, SpecError, UsageError
from train_jobs.config.fields import Config

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan

# Azure ML still calls Spot machines by the name of the low-priority ones that they replaced
TIERS = {"dedicated": "Dedicated", "spot": "LowPriority"}
TIER_NAMES = {value: name for name, value in TIERS.items()}
MIN_NODES, MAX_NODES, IDLE_TIME = "minNodeCount", "maxNodeCount", "nodeIdleTimeBeforeScaleDown"
SCALE = {"min_nodes": MIN_NODES, "max_nodes": MAX_NODES, "idle_seconds": IDLE_TIME}
SPOT_QUOTA = re.compile(r"low.?priority|spot", re.IGNORECASE)
FIXED = {"vmSize": "size", "vmPriority": "tier"}  # cannot be changed once the cluster exists
UNUSABLE = {"Failed", "Canceled", "Deleting"}  # provisioningState of clusters that run no job
FEWER = "--set compute.nodes={0} --set compute.max_nodes={0}"  # flags of `submit`


class UnusableClusterError(ConflictError):
    """A cluster runs no job: its creation or change failed, or it is being deleted."""


class Cluster(Config):
    """The cluster that a run needs."""

    name: str
    """Its name."""
    body: Body | None = None
    """Body to send if the cluster does not exist or differs. None: it must exist, and is not changed; or serverless."""
    size: str | None = None
    """Size that the plan relies on; None: any."""
    tier: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Tier that the plan of a run on an existing cluster relies on; None: any."""
    silent: list[str] = Field(default=[])
    """Scale settings of the body that the user did not give: those of an existing cluster stay as they are, except
    that its maximum number of machines may grow."""
    least_nodes: int | None = Field(default=None, exclude_if=lambda value: value is None)
    """Machines of one run, where the maximum of the body is for several runs of a sweep or for an elastic job: a quota
    that suffices for fewer of them lowers the maximum."""


def plan_cluster(plan: Plan) -> Cluster:
    """Return the cluster of a plan; without a body if the plan gives no machine size."""
    compute = plan.spec.compute
    body = None
    if compute.sizes and compute.cluster != SERVERLESS:
        body = compute_body(
            size=compute.sizes[0],
            tier=compute.tier,
            min_nodes=compute.min_nodes,
            max_nodes=compute.max_nodes or max(machines_at_a_time(plan), compute.min_nodes),
            idle_seconds=compute.idle_seconds,
        )
        body = _with_network(body, plan.spec.settings_of(AzureSpec))
        if (region := compute.regions[0]) is not None:
            body = {"location": region, **body}
    # a key from a preset or a default is silent: others may use the cluster too
    silent = [name for key, name in SCALE.items() if f"compute.{key}" not in plan.changes]
    several = body is not None and compute.max_nodes is None and machines_at_a_time(plan) > compute.nodes
    least = compute.nodes if several else None
    tier = compute.tier if body is None and compute.cluster != SERVERLESS else None
    wanted = {"size": plan.compute.size, "tier": tier, "silent": silent, "least_nodes": least}
    return Cluster(name=str(compute.cluster), body=body, **wanted)


def machines_at_a_time(plan: Plan) -> int:
    """Return the most machines that a job, or the concurrent runs of a sweep, use at the same time."""
    compute, elastic = plan.compute, plan.spec.settings_of(AzureSpec).elastic_nodes
    most, size = (elastic or compute.nodes) * compute.concurrent_runs, find_size(compute.size)
    if plan.spec.compute.max_nodes is not None:
        return min(most, plan.spec.compute.max_nodes)
    return min(most, MAX_RDMA_NODES) if size is not None and size.infiniband_gbps else most


def _with_network(body: Body, azure: AzureSpec) -> Body:
    """Return the body of a new cluster with the network and the identity of the spec."""
    properties = body["properties"]
    machines = {**properties["properties"], "enableNodePublicIp": azure.node_public_ip}
    if azure.subnet is not None:
        machines["subnet"] = {"id": azure.subnet}
    found: Body = {"properties": {**properties, "properties": machines}}
    if azure.cluster_identity == "system":
        found["identity"] = {"type": "SystemAssigned"}
    elif azure.cluster_identity != "none":
        found["identity"] = {"type": "UserAssigned", "userAssignedIdentities": {azure.cluster_identity: {}}}
    return found


def compute_body(*, size: str, tier: str, min_nodes: int, max_nodes: int, idle_seconds: int) -> Body:
    """Return the body of a cluster. Its machines are reached through Azure ML alone: no SSH, no keys.

    Args:
        size: name of the machine size, in any case of letters.
        tier: dedicated or spot.
        min_nodes: machines that stay on without a job.
        max_nodes: highest number of machines.
        idle_seconds: time without a job after which a machine is released.

    Raises:
        SpecError: the size is retired, or its name is invalid.
    """
    found = find_size(size)  # its canonical name: Azure's answer has it, and the bodies are compared
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
                "scaleSettings": {MIN_NODES: min_nodes, MAX_NODES: max_nodes, IDLE_TIME: duration(idle_seconds)},
            },
        }
    }


def provision(wire: Wire, cluster: Cluster, *, fix_template: str = FEWER) -> str:
    """Create or change a cluster if it is needed; return a one-line report.

    Args:
        wire: the workspace.
        cluster: the wanted cluster.
        fix_template: flags that ask for {0} machines, for the fix of a QuotaError.

    Raises:
        NotFoundError: it does not exist, and no machine size is given.
        ConflictError: a cluster of that name has other machines, or is unusable.
        QuotaError: the subscription does not allow that many machines.
        UserError: Azure could not create it.
    """
    name, wanted = cluster.name, cluster.body
    found = wire.compute(name)
    if found is not None:
        _check_usable(name, found)
    if wanted is None:
        if found is None:
            raise NotFoundError(
                f"cluster {name} does not exist",
                facts={"where": f"workspace {wire.workspace.workspace}"},
                fix=f"orchestrator cluster create --name {name} --sku Standard_NC4as_T4_v3 --max-nodes 1",
            )
        have = {"size": inner(found).get("vmSize"), "tier": tier_of(found)}
        for what, planned in (("size", cluster.size), ("tier", cluster.tier)):
            if planned is not None and str(have[what]).lower() != planned.lower():
                raise ConflictError(
                    f"cluster {name} has {what} {have[what]}, and the plan was made for {planned}",
                    fix="the same command again",
                )
        return f"cluster {name}: exists, left as it is, {shape_text(found)}"
    if found is None:
        location = str(wanted.get("location") or wire.location())
        nodes = check_quota(wire, location, wanted, held=0, fix_template=fix_template, least=cluster.least_nodes)
        wanted = _with_scale(wanted, {**_scale(wanted), MAX_NODES: nodes})
        wire.put_compute(name, {"location": location, **wanted})
        return f"cluster {name}: created, {shape_text(wanted)}"
    if "location" in wanted and region_name(str(found.get("location"))) != wanted["location"]:
        raise ConflictError(
            f"cluster {name} is in region {found.get('location')}, not {wanted['location']}",
            fix=f"--cluster with another name, or orchestrator cluster delete --name {name}",
        )
    before, after = _scale(found), _merged_scale(_scale(found), _scale(wanted), cluster.silent)
    changes = differences(name, found, wanted, after)
    if not changes:  # the SDK's own operation would send the PUT, and wait for it, all the same
        return f"cluster {name}: exists, {shape_text(found)}"
    if any((before.get(key) or 0) < (after.get(key) or 0) for key in (MIN_NODES, MAX_NODES)):  # only growth needs quota
        # machines that already run count as used in the quota: counting them again would refuse a change that fits
        held = max(before.get(MIN_NODES) or 0, inner(found).get("currentNodeCount") or 0)
        wanted, location = _with_scale(wanted, after), str(found.get("location") or wire.location())
        nodes = check_quota(wire, location, wanted, held=held, fix_template=fix_template, least=cluster.least_nodes)
        after[MAX_NODES] = max(nodes, before.get(MAX_NODES) or 0)
        changes = differences(name, found, wanted, after)
        if not changes:
            return f"cluster {name}: exists, {shape_text(found)}"
    # from the cluster as it is: a PUT replaces it, and would drop its network, identity and tags
    wire.put_compute(name, _with_scale(writable(found), after))
    return f"cluster {name}: updated, {', '.join(changes)}"


def is_unusable(found: Body) -> bool:
    """Return whether a cluster runs no job: its creation or change failed, or it is being deleted."""
    return found["properties"].get("provisioningState") in UNUSABLE


def _check_usable(name: str, found: Body) -> None:
    """Refuse a cluster that runs no job: one whose creation or change failed, or that is being deleted.

    Raises:
        UnusableClusterError: its provisioningState is one of `UNUSABLE`.
    """
    if is_unusable(found):
        state = found["properties"]["provisioningState"]
        reasons = [text for text in _provisioning_errors(found) if text]
        raise UnusableClusterError(
            f"cannot use cluster {name}: its state is {state}",
            facts={"reason": "; ".join(reasons)} if reasons else None,
            fix=f"orchestrator cluster delete --name {name}, or --cluster with another name",
        )


def _provisioning_errors(body: Body) -> list[str | None]:
    return [one.get("error", {}).get("message") for one in body["properties"].get("provisioningErrors") or []]


def _merged_scale(before: Body, wanted: Body, silent: Sequence[str]) -> Body:
    """Return the scale of an existing cluster after a change: silent settings stay, but the maximum may grow."""
    after = dict(wanted)
    for key in silent:
        if (there := before.get(key)) is not None:
            after[key] = max(there, after[key]) if key == MAX_NODES else there
    after[MAX_NODES] = max(after[MAX_NODES], after[MIN_NODES])
    return after


def differences(name: str, found: Body, wanted: Body, scale: Body) -> list[str]:
    """Return the changes that give a cluster a scale: `maxNodeCount 2 -> 4`.

    Args:
        name: of the cluster.
        found: the cluster as it is.
        wanted: the cluster as it should be, apart from its scale.
        scale: its scale afterwards.

    Raises:
        ConflictError: its size or tier would have to change, which Azure does not allow.
    """
    for key, what in FIXED.items():
        have, need = inner(found).get(key), inner(wanted)[key]
        if str(have).lower() != str(need).lower():
            have, need = (TIER_NAMES.get(str(value), value) for value in (have, need))
            raise ConflictError(
                f"cluster {name} has {what} {have}, not {need}",
                facts={"have": have, "need": need},
                fix=f"--cluster with another name, or orchestrator cluster delete --name {name}",
            )
    before = _scale(found)
    return [
        f"{key} {before.get(key)} -> {scale[key]}"
        for key in SCALE.values()
        if _comparable(before.get(key)) != _comparable(scale[key])
    ]


def check_quota(
    wire: Wire, location: str, wanted: Body, *, held: int, fix_template: str, least: int | None = None
) -> int:
    """Compare a cluster at its largest with the quota of its family; return its machines that fit.

    Args:
        wire: the workspace.
        location: its region.
        wanted: the cluster.
        held: its machines that already count as used.
        fix_template: see `provision`.
        least: machines that suffice for one run of a sweep, or for an elastic job; None: all are needed.

    Raises:
        QuotaError: it does not fit; names sizes that do.
    """
    size, nodes = find_size(inner(wanted)["vmSize"]), int(_scale(wanted)[MAX_NODES])
    if size is None:
        return nodes  # cores unknown: Azure checks it, and refuses later and less clearly
    spot = inner(wanted)["vmPriority"] != TIERS["dedicated"]
    usages = wire.usages(location)
    of_spot = (one for one in usages if SPOT_QUOTA.search(one["name"]))  # all families share one quota
    usage = next(of_spot, None) if spot else _usage_of(size, usages)
    if usage is None:
        return nodes
    free = usage["limit"] - usage["used"] + size.cores * held
    most = int(free // size.cores)
    if nodes <= most:
        return nodes
    if least is not None and most >= max(least, _scale(wanted)[MIN_NODES], 1):
        report(f"warning: the quota allows {most} of {nodes} machines: the cluster gets {most}")
        return most
    others = [one for one in SIZES if (one.gpu is None) == (size.gpu is None) and not one.legacy and one != size]
    fit = [one.name for one in others if (one.cores * nodes <= free if spot else _fits(one, nodes, usages))]
    raise QuotaError(
        f"not enough cores for {nodes} x {size.name} in {location}",
        facts={
            "need": f"{size.cores * nodes} cores of {usage['name']}, limit {usage['limit']}, used {usage['used']}",
            "fits": ", ".join(fit[:5]) or "nothing of the same kind",
            "or": "request quota: https://ml.azure.com/quota",
        },
        fix=fix_template.format(most) if most > 0 else "orchestrator skus",
    )


def _usage_of(size: Size, usages: list[Body]) -> Body | None:
    return next((one for one in usages if same_family(one["name"], size.family)), None)


def _fits(size: Size, nodes: int, usages: list[Body]) -> bool:
    usage = _usage_of(size, usages)
    return usage is not None and size.cores * nodes <= usage["limit"] - usage["used"]


def inner(body: Body) -> Body:
    """Return the properties of a cluster, inside the properties of every compute."""
    return dict(body["properties"]["properties"])


def tier_of(body: Body) -> str:
    """Return the tier of a cluster: dedicated or spot."""
    return TIER_NAMES.get(str(inner(body).get("vmPriority")), "spot")


def _scale(body: Body) -> Body:
    return dict(inner(body).get("scaleSettings") or {})


def _with_scale(body: Body, scale: Body) -> Body:
    return {**body, "properties": {**body["properties"], "properties": {**inner(body), "scaleSettings": scale}}}


def _comparable(value: Any) -> Any:
    """Return a scale setting, an idle time in seconds: Azure may return PT1800S for PT30M."""
    return duration_seconds(value) if isinstance(value, str) else value


def shape_text(body: Body) -> str:
    """Return size and scale of a cluster: `0 to 4 x Standard_NC4as_T4_v3, spot`."""
    scale, tier = _scale(body), "" if tier_of(body) == "dedicated" else ", spot"
    return f"{scale.get(MIN_NODES, 0)} to {scale.get(MAX_NODES, 0)} x {inner(body).get('vmSize')}{tier}"


class AzureClusters(Clusters):
    """Clusters of one workspace, as `orchestrator cluster` shows and changes them.

    Args:
        connect: returns the workspace; called before the first request.
        home: the home folder, where refreshed prices are.
        settings: returns the section `azure` of the project, with network and identity of new clusters.
    """

    def __init__(self, connect: Callable[[], Wire], home: Path, settings: Callable[[], AzureSpec]) -> None:
        self._connect, self._home, self._settings = connect, home, settings

    @cached_property
    def _wire(self) -> Wire:
        return self._connect()

    def rows(self) -> list[dict[str, Any]]:
        """Return all clusters."""
        prices = read_prices(self._home)
        return [
            _row(body, prices)
            for body in self._wire.computes()
            if body["properties"].get("computeType") == "AmlCompute"
        ]

    def row(self, name: str) -> dict[str, Any]:
        """Return one cluster."""
        return _row(self._existing(name), read_prices(self._home))

    def created(
        self, name: str, *, sku: str, tier: str, min_nodes: int, max_nodes: int, idle_seconds: int
    ) -> ClusterChange:
        """Return the change that creates a cluster, or makes an existing one fit, see `Clusters.created`.

        Raises:
            SpecError: the name or the size is invalid, the size is retired, or the project's defaults are not valid.
        """
        if not re.fullmatch(CLUSTER_NAME, name):
            raise SpecError(
                f"invalid cluster name {name!r}",
                facts={"rule": "3 to 24 letters, digits and hyphens, with a letter first"},
                fix="--name gpu-t4",
            )
        warnings: tuple[str, ...] = ()
        if (size := find_size(sku, where="--sku")) is not None:
            try:
                check_runs_torch(size)
            except SpecError as problem:  # only jobs with our environment are affected
                warnings = (f"{problem.message}; instead: {problem.fix}",)
        body = compute_body(size=sku, tier=tier, min_nodes=min_nodes, max_nodes=max_nodes, idle_seconds=idle_seconds)
        return self._change(name, _with_network(body, self._settings()), warnings)

    def scaled(
        self, name: str, min_nodes: int | None, max_nodes: int | None, idle_seconds: int | None
    ) -> ClusterChange:
        """Return the change of a cluster's scale, and only of that, see `Clusters.scaled`.

        Raises:
            NotFoundError: the cluster does not exist.
            UsageError: the minimum is above the maximum.
        """
        found = self._existing(name)
        before = _scale(found)
        least = before.get(MIN_NODES) or 0 if min_nodes is None else min_nodes
        most = before.get(MAX_NODES) or 0 if max_nodes is None else max_nodes
        if most < least:
            raise UsageError(f"cannot keep {least} machines in a cluster of at most {most}", fix=f"--max-nodes {least}")
        idle = before.get(IDLE_TIME) if idle_seconds is None else duration(idle_seconds)
        return self._change(name, _with_scale(writable(found), {MIN_NODES: least, MAX_NODES: most, IDLE_TIME: idle}))

    def delete(self, name: str) -> None:
        """Delete a cluster with its machines."""
        self._wire.delete_compute(name)

    def _change(self, name: str, body: Body, warnings: tuple[str, ...] = ()) -> ClusterChange:
        def apply() -> str:
            return provision(self._wire, Cluster(name=name, body=body), fix_template="--max-nodes {0}")

        return ClusterChange(shape_text(body), warnings, apply)

    def _existing(self, name: str) -> Body:
        if (found := self._wire.compute(name)) is None:
            raise NotFoundError(f"cluster {name} does not exist", fix="orchestrator cluster list")
        return found


def _row(body: Body, prices: Prices) -> dict[str, Any]:
    """Return a cluster as `orchestrator cluster list` prints it."""
    outer, machines, scale = body["properties"], inner(body), _scale(body)
    name, tier = machines.get("vmSize"), tier_of(body)
    size = next((one for one in SIZES if one.name.lower() == str(name).lower()), None)
    price = price_of_size(size, spot=tier == "spot", refreshed=prices) if size else None
    hourly = price.usd if price else None
    kept, current = scale.get(MIN_NODES) or 0, machines.get("currentNodeCount") or 0
    return {
        "name": body["name"],
        "state": outer.get("provisioningState"),
        "size": name,
        "tier": tier,
        "min_nodes": kept,
        "max_nodes": scale.get(MAX_NODES),
        "nodes": current,
        "idle_seconds": _comparable(scale.get(IDLE_TIME)),
        "price_per_hour": hourly,
        "idle_cost_per_day": None if hourly is None else round(kept * hourly * 24, 2),
        "cost_per_hour_now": None if hourly is None else round(current * hourly, 2),
        "errors": _provisioning_errors(body),
    }
