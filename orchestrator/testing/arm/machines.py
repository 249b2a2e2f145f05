"""Machines: sizes, prices, quotas, and clusters."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from orchestrator.testing.arm.resource_manager import REGION, ResourceManager
from orchestrator.testing.cloud_state import DEFAULT_QUOTA, PROVIDER, Document, now
from orchestrator.testing.proxy.messages import Call, Refusal, Reply, Routes, parse_filter

ROUTES = Routes()
PRICES_HOST = "prices.azure.com"
PRICE_REGIONS = {"eastus": "US East", "westeurope": "EU West"}
EQUALITY = r"\w+\s+eq\s+'[^']*'"
CLAUSE = re.compile(rf"\s*(?:\(\s*(?P<any>{EQUALITY}(?:\s+or\s+{EQUALITY})*)\s*\)|(?P<one>{EQUALITY}))\s*")
TIERS = {"": 1.0, " Spot": 0.3, " Low Priority": 0.2}
"""Suffix of a meter's name -> fraction of the dedicated price."""


@dataclass(frozen=True)
class VmSize:
    """One size of machine."""

    name: str
    family: str
    cores: int
    memory: float
    """GiB."""
    gpus: int = 0
    price: float = 1.0
    """US dollars an hour, dedicated: a test value, not Azure's current price."""


_ALL = (
    VmSize("Standard_DS3_v2", "standardDSv2Family", 4, 14, price=0.23),
    VmSize("Standard_D16s_v5", "standardDSv5Family", 16, 64, price=0.77),
    VmSize("Standard_F32s_v2", "standardFSv2Family", 32, 64, price=1.35),
    VmSize("Standard_NC4as_T4_v3", "standardNCASv3_T4Family", 4, 28, 1, 0.526),
    VmSize("Standard_NC24ads_A100_v4", "StandardNCADSA100v4Family", 24, 220, 1, 3.673),
    VmSize("Standard_NC48ads_A100_v4", "StandardNCADSA100v4Family", 48, 440, 2, 7.346),
    VmSize("Standard_NC96ads_A100_v4", "StandardNCADSA100v4Family", 96, 880, 4, 14.692),
    VmSize("Standard_NC40ads_H100_v5", "standardNCADSH100v5Family", 40, 320, 1, 6.98),
    VmSize("Standard_NC80adis_H100_v5", "standardNCADSH100v5Family", 80, 640, 2, 13.96),
    VmSize("Standard_ND40rs_v2", "standardNDSv2Family", 40, 672, 8, 22.032),
    VmSize("Standard_ND96asr_v4", "standardNDASv4_A100Family", 96, 900, 8, 27.197),
    VmSize("Standard_ND96amsr_A100_v4", "standardNDAMSv4_A100Family", 96, 1900, 8, 32.77),
    VmSize("Standard_ND96isr_H100_v5", "standardNDSH100v5Family", 96, 1900, 8, 98.32),
    VmSize("Standard_ND96isr_H200_v5", "standardNDSH200v5Family", 96, 1850, 8, 110.24),
)
SIZES = {size.name.lower(): size for size in _ALL}


@dataclass
class Prices:
    """The public price service: meters of every size in two regions, for Linux and Windows, in three tiers.

    It needs no sign-in, and supports pages and filters of equalities: joined by `and`, in parentheses by `or`.
    """

    page_size: int = 100
    dedicated: dict[str, float] = field(default_factory=dict)
    """Size -> dedicated price in US dollars an hour, where a test set another one."""

    def set(self, size: str, price: float) -> None:
        """Set the dedicated price of a size, in US dollars an hour."""
        self.dedicated[size] = price

    def answer(self, call: Call) -> Reply:
        """Answer one call.

        Raises:
            Refusal: unknown path, or a filter of more than equalities.
        """
        if call.path.rstrip("/") != "/api/retail/prices":
            raise Refusal(404, "NotFound", call.path)
        wanted = parse_filter(call.query.get("$filter", ""), CLAUSE, "BadRequest")
        items = [item for item in self._items() if all(_matches(item, clause) for clause in wanted)]
        shown, following = call.page(items, self.page_size)
        return Reply.json({"BillingCurrency": "USD", "Count": len(shown), "Items": shown, "NextPageLink": following})

    def _items(self) -> list[Document]:
        return [
            self._item(size, region, system, tier)
            for size in SIZES.values()
            for region in PRICE_REGIONS
            for system in ("", " Windows")
            for tier in TIERS
        ]

    def _item(self, size: VmSize, region: str, system: str, tier: str) -> Document:
        meter = size.name.removeprefix("Standard_").replace("_", " ") + tier
        price = round(self.dedicated.get(size.name, size.price) * TIERS[tier] * (1.5 if system else 1.0), 6)
        return {
            "armRegionName": region,
            "armSkuName": size.name,
            "currencyCode": "USD",
            "effectiveStartDate": "2026-01-01T00:00:00Z",
            "isPrimaryMeterRegion": True,
            "location": PRICE_REGIONS[region],
            "meterName": meter,
            "productName": f"Virtual Machines {size.family} Series{system}",
            "retailPrice": price,
            "serviceFamily": "Compute",
            "serviceName": "Virtual Machines",
            "skuName": meter,
            "tierMinimumUnits": 0.0,
            "type": "Consumption",
            "unitOfMeasure": "1 Hour",
            "unitPrice": price,
        }


def _matches(item: Document, clause: dict[str, str]) -> bool:
    """Return whether a meter fulfils one of the equalities of a clause."""
    equalities = re.findall(r"(\w+)\s+eq\s+'([^']*)'", clause["any"] or clause["one"])
    return any(item[field] == value for field, value in equalities)


@ROUTES.add("GET", f"{REGION}/{{kind:usages|quotas}}")
def list_limits(service: ResourceManager, call: Call, region: str, kind: str) -> Reply:
    """List the quota of each VM family, in cores, and for `usages` the cores in use."""
    used, quotas = cores_in_use(service), service.state.quotas
    families = sorted({size.family for size in SIZES.values()} | quotas.keys())
    return Reply.json(
        {
            "value": [
                {
                    "id": f"{service.state.place.locations_path}/{kind}/{family}",
                    "type": f"{PROVIDER}/{kind}",
                    "unit": "Count",
                    "limit": quotas.get(family, DEFAULT_QUOTA),
                    "name": {"value": family, "localizedValue": family},
                    **({"currentValue": used[family]} if kind == "usages" else {}),
                }
                for family in families
            ]
        }
    )


@ROUTES.add("GET", f"{REGION}/vmSizes")
def list_sizes(service: ResourceManager, call: Call, region: str) -> Reply:
    """List the machine sizes of the region."""
    return Reply.json(
        {
            "value": [
                {
                    "name": size.name,
                    "family": size.family,
                    "vCPUs": size.cores,
                    "gpus": size.gpus,
                    "memoryGB": size.memory,
                    "osVhdSizeMB": 1047552,
                    "maxResourceVolumeMB": 262144,
                    "lowPriorityCapable": True,
                    "premiumIO": True,
                    "supportedComputeTypes": ["AmlCompute"],
                }
                for size in SIZES.values()
            ]
        }
    )


@ROUTES.add("GET", "computes")
def list_computes(service: ResourceManager, call: Call) -> Reply:
    """List the clusters."""
    return service.page(call, [_with_nodes(service, cluster) for cluster in service.state.below("computes")])


@ROUTES.add("GET", "computes/{name}")
def get_compute(service: ResourceManager, call: Call, name: str) -> Reply:
    """Return a cluster with its nodes."""
    return Reply.json(_with_nodes(service, service.get(f"computes/{name}")))


@ROUTES.add("PUT", "computes/{name}")
def put_compute(service: ResourceManager, call: Call, name: str) -> Reply:
    """Create or change a cluster, as a long-running operation."""
    body = service.body(call, "computes")
    wanted = body["properties"]["properties"]
    _check_change(service.state.resources.get(f"computes/{name}"), wanted)
    _check_quota(service, name, wanted)
    error = service.state.failing_computes.get(name)
    properties = {
        **body["properties"],
        "provisioningState": "Failed" if error else "Succeeded",
        "createdOn": now(),
        "modifiedOn": now(),
        **({"provisioningErrors": [{"error": error}]} if error else {}),
    }
    # Azure returns its own name of a region, whatever the request has
    location = "".join(body.get("location", service.state.place.region).split()).lower()
    document = {**body, "properties": properties, "location": location}
    cluster, new = service.state.put(f"computes/{name}", "computes", document)
    # The reply shows the beginning of the operation, a later GET its result: clients must poll the operation, as on
    # Azure.
    shown = _with_nodes(service, cluster)
    shown["properties"]["provisioningState"] = "Creating"
    return service.accepted("compute", 201 if new else 200, shown, error)


@ROUTES.add("DELETE", "computes/{name}")
def delete_compute(service: ResourceManager, call: Call, name: str) -> Reply:
    """Delete a cluster, as a long-running operation; one that does not exist counts as deleted.

    Raises:
        Refusal: the call does not state what happens to the machines.
    """
    if f"computes/{name}" not in service.state.resources:
        return Reply(204)
    if call.query.get("underlyingResourceAction") not in ("Delete", "Detach"):
        raise Refusal(400, "UserError", "underlyingResourceAction is required: Delete or Detach")
    del service.state.resources[f"computes/{name}"]
    return service.accepted("compute")


def _check_change(before: Document | None, wanted: Document) -> None:
    """Refuse to change the size or the tier of a cluster."""
    had = before["properties"]["properties"] if before else wanted
    for key in ("vmSize", "vmPriority"):
        if had.get(key, "Dedicated").lower() != wanted.get(key, "Dedicated").lower():
            raise Refusal(
                400, "BadRequest", f"Cannot change {key} of a compute from {had.get(key)} to {wanted.get(key)}."
            )


def _check_quota(service: ResourceManager, name: str, wanted: Document) -> None:
    """Refuse a cluster that needs more cores, with all of its nodes, than the quota allows."""
    if (size := SIZES.get(wanted["vmSize"].lower())) is None:
        raise Refusal(
            400, "InvalidPropertyValue", f"VM size {wanted['vmSize']} is not supported in {service.state.place.region}."
        )
    # the maximum counts, whether the machines run or not
    need = wanted.get("scaleSettings", {}).get("maxNodeCount", 0) * size.cores
    limit = service.state.quotas.get(size.family, DEFAULT_QUOTA)
    if need > limit:
        raise Refusal(
            400,
            "ClusterCoreQuotaReached",
            f"The specified subscription has a total vCPU quota of {limit} for {size.family}, of which "
            f"{cores_in_use(service)[size.family]} are in use; {name} needs {need}.",
        )


def check_serverless(service: ResourceManager, resources: Document) -> None:
    """Refuse a serverless job of an unknown size, or of more cores than the quota of its size.

    Without a size, the service chooses one by the quota.
    """
    if (name := resources.get("instanceType")) is None:
        return
    if (size := SIZES.get(name.lower())) is None:
        raise Refusal(400, "UserError", f"Instance type {name} is not supported in {service.state.place.region}.")
    limit = service.state.quotas.get(size.family, DEFAULT_QUOTA)
    if resources.get("instanceCount", 1) * size.cores > limit:
        raise Refusal(
            400,
            "UserError",
            f"The quota of {limit} cores for {size.family} allows fewer than {resources['instanceCount']} instances.",
        )


def cores_in_use(service: ResourceManager) -> Counter[str]:
    """Return VM family -> cores of all running nodes."""
    used: Counter[str] = Counter()
    for cluster in service.state.below("computes"):
        wanted = cluster["properties"]["properties"]
        size = SIZES[wanted["vmSize"].lower()]
        nodes = max(service.jobs.nodes_of(cluster["name"]), wanted.get("scaleSettings", {}).get("minNodeCount", 0))
        used[size.family] += nodes * size.cores
    return used


def _with_nodes(service: ResourceManager, cluster: Document) -> Document:
    """Return a cluster as a GET shows it: with its nodes."""
    properties, name = cluster["properties"], cluster["name"]
    busy, without_capacity = service.jobs.nodes_of(name), name in service.state.no_capacity
    target = max(busy, properties["properties"].get("scaleSettings", {}).get("minNodeCount", 0))
    nodes = 0 if without_capacity else target
    counts = {"idleNodeCount": max(0, nodes - busy), "runningNodeCount": min(busy, nodes), "leavingNodeCount": 0}
    live: Document = {
        **properties["properties"],
        "allocationState": "Steady",
        "allocationStateTransitionTime": properties["modifiedOn"],
        "currentNodeCount": nodes,
        "targetNodeCount": target,
        "nodeStateCounts": {**counts, "preemptedNodeCount": 0, "preparingNodeCount": 0, "unusableNodeCount": 0},
    }
    if without_capacity:
        live["errors"] = [
            {
                "error": {
                    "code": "AllocationFailed",
                    "message": "Allocation failed: there is not enough capacity of this size in the region.",
                }
            }
        ]
    return {**cluster, "properties": {**properties, "properties": live}}
