"""Cores: what the subscription may use, does use, and what sizes there are."""

from __future__ import annotations

from orchestrator.testing.arm.resource_manager import ResourceManager, Table
from orchestrator.testing.arm.vm_sizes import SIZES, VmSize
from orchestrator.testing.cloud_state import DEFAULT_QUOTA, PROVIDER, Document
from orchestrator.testing.proxy.messages import Call, Refusal, Reply

ROUTES = Table()
BASE = f"providers/{PROVIDER}/locations/{{region}}"


@ROUTES.add("GET", f"{BASE}/usages")
def list_usages(service: ResourceManager, call: Call, region: str) -> Reply:
    used = cores_in_use(service)
    families = sorted({size.family for size in SIZES.values()} | service.state.quotas.keys())
    return Reply.json({"value": [_usage(service, family, used.get(family, 0)) for family in families]})


@ROUTES.add("GET", f"{BASE}/quotas")
def list_quotas(service: ResourceManager, call: Call, region: str) -> Reply:
    families = sorted({size.family for size in SIZES.values()} | service.state.quotas.keys())
    return Reply.json({"value": [_quota(service, family) for family in families]})


@ROUTES.add("GET", f"{BASE}/vmSizes")
def list_sizes(service: ResourceManager, call: Call, region: str) -> Reply:
    return Reply.json({"value": [_size(size) for size in SIZES.values()]})


def check(service: ResourceManager, name: str, wanted: Document) -> None:
    """Raises Refusal where the cluster, full, would need more cores than are left."""
    size = SIZES.get(wanted["vmSize"].lower())
    if size is None:
        said = f"VM size {wanted['vmSize']} is not supported in {service.state.place.region}."
        raise Refusal(400, "InvalidPropertyValue", said)
    nodes = wanted.get("scaleSettings", {}).get("maxNodeCount", 0)
    limit = service.state.quotas.get(size.family, DEFAULT_QUOTA)
    if nodes * size.cores > limit:
        need, used = nodes * size.cores, cores_in_use(service).get(size.family, 0)
        said = (
            f"The specified subscription has a total vCPU quota of {limit} for {size.family}, of which {used} are in "
            f"use; {name} needs {need}."
        )
        raise Refusal(400, "ClusterCoreQuotaReached", said)


def cores_in_use(service: ResourceManager) -> dict[str, int]:
    """VM family -> cores of all nodes that run."""
    found: dict[str, int] = {}
    for cluster in service.state.below("computes"):
        wanted = cluster["properties"]["properties"]
        size = SIZES[wanted["vmSize"].lower()]
        nodes = max(service.jobs.nodes_of(cluster["name"]), wanted.get("scaleSettings", {}).get("minNodeCount", 0))
        found[size.family] = found.get(size.family, 0) + nodes * size.cores
    return found


def _usage(service: ResourceManager, family: str, used: int) -> Document:
    name = {"value": family, "localizedValue": family}
    path = f"{service.state.place.locations_path}/usages/{family}"
    limit = service.state.quotas.get(family, DEFAULT_QUOTA)
    kind = f"{PROVIDER}/usages"
    return {"id": path, "type": kind, "unit": "Count", "currentValue": used, "limit": limit, "name": name}


def _quota(service: ResourceManager, family: str) -> Document:
    name = {"value": family, "localizedValue": family}
    path = f"{service.state.place.locations_path}/quotas/{family}"
    limit = service.state.quotas.get(family, DEFAULT_QUOTA)
    return {"id": path, "type": f"{PROVIDER}/quotas", "unit": "Count", "limit": limit, "name": name}


def _size(size: VmSize) -> Document:
    return {
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
