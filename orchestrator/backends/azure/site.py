"""Azure ML as a site of jobs: its settings, machines, prices and data, see `orchestrator.specs.site`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.backends.azure.options import (
    AZURE,
    MAX_RDMA_NODES,
    SERVERLESS,
    AzureSpec,
    Workspace,
    find_workspace,
    is_remote,
)
from orchestrator.specs.compute import ComputeSpec, Gpu, MachineChoice, ResolvedCompute, region_name
from orchestrator.specs.job import PACKAGES, JobSpec
from orchestrator.specs.site import Rule, Site
from orchestrator.support.errors import SpecError, UserError
from orchestrator.support.home import home_folder
from orchestrator.support.redact import SECRET
from train_jobs.config.fields import Config

if TYPE_CHECKING:
    from orchestrator.backends.azure.sizes import Size

SCALE_KEYS = ("min_nodes", "max_nodes", "idle_seconds")
GB = 10**9
THREADS_UNKNOWN = 4  # of each process on machines whose cores are unknown


class AzureSite(Site):
    """Azure ML."""

    options: ClassVar[type[Config]] = AzureSpec
    compute_keys = ("cluster", "sku", "region", "tier", *SCALE_KEYS)
    data_key = (AZURE, "data")
    this_python = False
    own_tracking = True

    def machines(self, wanted: ComputeSpec, environ: Mapping[str, str], *, gpus: bool) -> ResolvedCompute:
        """Return the compute settings with every `auto` resolved by the cluster's machine size. Offline.

        Args:
            wanted: the section `compute` of a spec.
            environ: environment variables; without effect on Azure.
            gpus: whether the job can use GPUs; without effect on Azure, where the machine size decides.

        Raises:
            SpecError: no cluster is given; its size is retired, has too few GPUs, or is unknown where it decides.
        """
        from orchestrator.backends.azure.sizes import find_size, read_sizes

        if wanted.cluster is None:
            raise SpecError(
                "no cluster to run on",
                facts={"key": "compute.cluster"},
                fix="--cluster NAME --sku Standard_NC4as_T4_v3 (see orchestrator skus)",
            )
        if wanted.cluster == SERVERLESS and wanted.sku is None:
            raise SpecError(
                "serverless compute needs a machine size",
                facts={"key": "compute.sku"},
                fix="--sku Standard_NC4as_T4_v3 (see orchestrator skus)",
            )
        # of sizes that only a refresh has shown, unless the spec decides alone: other homes must plan the same run
        refreshed = read_sizes(home_folder(environ)) if wanted.processes_per_node == "auto" else None
        sizes = [find_size(name, refreshed=refreshed) for name in wanted.sizes] or [None]
        return _common_machines(wanted, [_machines(wanted, size) for size in sizes])

    def completed(self, spec: JobSpec, environ: Mapping[str, str], *, gpus: bool) -> ComputeSpec:
        """Return the section `compute` with the tier of an existing cluster, and its size where that decides.

        The size decides the number of processes, if the spec does not. A cluster that this machine has not seen yet is
        asked for by one request.

        Raises:
            SpecError: Azure cannot be asked for a size that decides.
        """
        compute = spec.compute
        if compute.sku is not None or compute.cluster in {None, SERVERLESS}:
            return compute
        workspace = find_workspace(spec.settings_of(AzureSpec).model_dump(), environ, Path.cwd())
        if workspace.missing:
            return compute
        decides = compute.processes_per_node == "auto" and compute.device != "cpu"
        return compute.model_copy(update=_machines_of_cluster(workspace, str(compute.cluster), environ, sized=decides))

    def price(self, compute: ResolvedCompute, home: Path, *, spot: bool) -> ResolvedCompute:
        """Return the compute settings with the list price of one machine, in USD an hour, unless the user gave a price.

        Args:
            compute: resolved settings.
            home: the user's orchestrator folder, which has the prices of the last `skus --refresh`.
            spot: for machines that Azure may evict. Without a refreshed Spot rate, the price of a dedicated machine is
                returned as an upper bound.
        """
        from orchestrator.backends.azure.prices import read_prices

        if compute.price_per_hour is None and compute.size is not None and not compute.choices:
            prices = read_prices(home)
            return compute.model_copy(update=_price_fields(compute.size, compute.region, home, prices, spot=spot))
        if not compute.choices:
            return compute
        priced = compute.choices
        if compute.price_per_hour is None:
            prices = read_prices(home)
            fields = [_price_fields(one.size, one.region, home, prices, spot=spot) for one in priced]
            copies = [one.model_copy(update=found) for one, found in zip(priced, fields, strict=True)]
            priced = tuple(sorted(copies, key=lambda one: (one.price_per_hour is None, one.price_per_hour or 0.0)))
        first = priced[0].model_dump(exclude_none=True)
        return compute.model_copy(update={**first, "choices": priced})

    def stale_facts(self, compute: ResolvedCompute, home: Path) -> Iterator[str]:
        """Yield a warning for the price and the size of the machines if they are older than half a year."""
        from orchestrator.backends.azure.catalogue import shipped_facts, stale_text
        from orchestrator.backends.azure.prices import dated_price
        from orchestrator.backends.azure.sizes import read_sizes

        if compute.size is None:
            return
        listed = read_sizes(home).get(compute.size, {}).get("date") or shipped_facts("sizes").date
        price = dated_price(compute.size, home) if compute.price_origin else None
        found = [("the prices", price), ("the machine sizes", listed)]
        texts = [stale_text(what, dated, "orchestrator skus --refresh") for what, dated in found if dated]
        yield from filter(None, texts)

    def size_names(self) -> Sequence[str]:
        """Return the names of Azure's machine sizes."""
        from orchestrator.backends.azure.sizes import SIZES

        return [size.name for size in SIZES]

    def sizes(self, home: Path, gpus: str | None, region: str | None) -> list[dict[str, Any]]:
        """Return machine sizes, each with its GPUs, memory and list price.

        Args:
            home: the user's orchestrator folder, which keeps refreshed prices.
            gpus: only sizes with these GPUs, such as `H100:8`. None: all sizes.
            region: fetch the prices of this region first, and its sizes if a workspace is given. None: use those of
                the last refresh, or the shipped ones.

        Raises:
            UsageError: unknown GPU, or an invalid region.
            ServiceError: the price service cannot be reached.
        """
        from orchestrator.backends.azure.prices import price_columns, read_prices, refresh_prices
        from orchestrator.backends.azure.sizes import SIZES, all_sizes, parse_gpus, sizes_with

        region = region_name(region) if region else None
        if region is not None:
            _refresh_sizes(home, region)
        chosen = sizes_with(*parse_gpus(gpus)) if gpus else all_sizes(home)
        names = {size.name for size in (*SIZES, *chosen)}
        prices = read_prices(home) if region is None else refresh_prices(home, names, region)
        return [{**size._asdict(), **price_columns(size, prices)} for size in chosen]

    def environment(self, spec: JobSpec) -> dict[str, str]:
        """Return the versions pinned by the environment on Azure, or the name of the user's own environment."""
        named = spec.settings_of(AzureSpec).environment
        if named != "auto":
            return {"environment": named}
        from orchestrator.backends.azure.assets import pinned_versions

        return pinned_versions(PACKAGES)

    def remote_data(self, spec: JobSpec) -> str | None:
        """Return `azure.data`."""
        return spec.settings_of(AzureSpec).data

    def is_remote(self, text: str) -> bool:
        """Return whether `text` names an asset, a path in a datastore, or a blob."""
        return is_remote(text)

    def address_problem(self, text: str) -> str | None:
        """Return the problem of an `azureml:` address that `is_remote` does not accept."""
        _, found, rest = text.partition("azureml:")  # the spec has made a path of it
        text = found + re.sub(r"^/(?!/)", "//", rest)
        if not found or is_remote(text):
            return None
        return f"incomplete address {text}: must be azureml:NAME:VERSION or azureml://datastores/NAME/paths/PATH"

    def ignored(self, spec: JobSpec) -> Iterable[Rule]:
        """Return keys that have no effect on Azure."""
        serverless, existing = spec.compute.cluster == SERVERLESS, spec.compute.sku is None
        return [
            ("compute.master_port", True, "Azure chooses the port"),
            ("notify.on", True, "a job on Azure does not know the webhook"),
            *((f"tracking.{key}", True, "the workspace keeps the MLflow runs") for key in ("uri", "artifacts")),
            *((f"compute.{key}", serverless, "serverless compute has no cluster") for key in SCALE_KEYS),
            ("compute.region", serverless, "serverless jobs run in the region of the workspace"),
            *((f"compute.{key}", existing, "the cluster is left as it is") for key in ("region", *SCALE_KEYS)),
            ("compute.tier", existing and spec.compute.tier == "dedicated", "the cluster's machines are dedicated"),
        ]

    def warnings(self, spec: JobSpec) -> Iterator[str]:
        """Warn about secrets among the job's variables, and about an identity that serverless machines lack."""
        azure = spec.settings_of(AzureSpec)
        only = "serverless machines have only a user-assigned identity of the workspace"
        if spec.compute.cluster == SERVERLESS and azure.identity == "managed":
            yield f"azure.identity managed: {only}"
        supervisor = azure.supervise == "cloud" and azure.supervise_cluster == SERVERLESS
        if supervisor and azure.identity_client_id is None:
            yield (
                f"azure.supervise cloud: {only}, and without one the supervisor cannot sign in:"
                " set azure.identity_client_id, or azure.supervise_cluster to a cluster with an identity"
            )
        if secrets := [name for name in spec.environment.variables if SECRET.search(name)]:
            yield f"{', '.join(secrets)}: variables of a job can be read by all users of the workspace"


def _machines_of_cluster(workspace: Workspace, name: str, environ: Mapping[str, str], *, sized: bool) -> dict[str, str]:
    """Return the keys of `compute` that an existing cluster decides: the tier, and the size if it is needed."""
    from orchestrator.backends.azure.known_clusters import known_cluster
    from orchestrator.backends.azure.wire.control_plane import Wire

    try:
        found = known_cluster(home_folder(environ), Wire(workspace), name)
    except UserError as problem:
        if not sized:  # a plan needs no network; submission compares the tier
            return {}
        raise SpecError(
            f"cannot choose the number of processes: the size of cluster {name} is not known here",
            facts={"key": "compute.cluster", "reason": problem.message},
            fix="--processes N, or --sku SIZE of orchestrator skus",
        ) from problem
    if found is None:
        return {}
    return {"tier": found.tier, **({"sku": found.size} if sized else {})}


def _refresh_sizes(home: Path, region: str) -> None:
    """Store the sizes that Azure lists for a region; report why not, where no workspace is given."""
    from orchestrator.backends.azure.assets import report
    from orchestrator.backends.azure.sizes import store_sizes
    from orchestrator.backends.azure.wire.control_plane import Wire

    workspace = find_workspace({}, os.environ, Path.cwd())
    if workspace.missing:
        report(f"sizes are not refreshed: no workspace is given ({', '.join(workspace.missing)})")
        return
    report(f"{store_sizes(home, Wire(workspace).sizes(region), region)} machine sizes listed in {region}")


def _price_fields(
    name: str, region: str | None, home: Path, prices: Mapping[str, Any], *, spot: bool
) -> dict[str, Any]:
    """Return the price of a size and the model of its GPUs, as far as they are known."""
    from orchestrator.backends.azure.prices import price_of_size
    from orchestrator.backends.azure.sizes import find_size, read_sizes

    size = find_size(name, refreshed=read_sizes(home))
    price = price_of_size(size, spot=spot, refreshed=prices, region=region) if size else None
    model = {"gpu": size.gpu} if size and size.gpu else {}
    if price is None:
        return model
    most = price.most if price.most > price.usd else None
    found = {"price_per_hour": price.usd, "highest_price_per_hour": most, "price_origin": price.origin}
    return {**model, **found}


def _common_machines(wanted: ComputeSpec, found: Sequence[ResolvedCompute]) -> ResolvedCompute:
    """Return compute settings that are valid on each of several sizes: the least of their threads and memory.

    Raises:
        SpecError: they differ in the processes of a machine, and so in the run.
    """
    if len({(one.processes_per_node, one.device) for one in found}) > 1:
        counts = (f"{name} {one.processes_per_node}" for name, one in zip(wanted.sizes, found, strict=True))
        raise SpecError(
            "the sizes of compute.sku have different numbers of processes on a machine",
            facts={"key": "compute.sku", "processes": ", ".join(counts)},
            fix="--processes N, or sizes with equally many GPUs",
        )
    memory = [one.memory_bytes for one in found]
    choices = tuple(MachineChoice(size=name, region=region) for name in wanted.sizes for region in wanted.regions)
    least = {
        "threads_per_process": min(one.threads_per_process for one in found),
        "memory_bytes": None if None in memory else min(one for one in memory if one is not None),
        "region": None if wanted.cluster == SERVERLESS else wanted.regions[0],
        "choices": choices if len(choices) > 1 else (),
    }
    return found[0].model_copy(update=least)


def _machines(wanted: ComputeSpec, size: Size | None) -> ResolvedCompute:
    if size is None:
        return _unknown_machines(wanted)
    if size.infiniband_gbps and (wanted.max_nodes or wanted.nodes) > MAX_RDMA_NODES:
        raise SpecError(
            f"invalid number of machines: a cluster of {size.name} has at most {MAX_RDMA_NODES}",
            facts={"key": "compute.max_nodes" if wanted.max_nodes else "compute.nodes"},
            fix=f"--set compute.nodes={MAX_RDMA_NODES}",
        )
    device = wanted.device if wanted.device != "auto" else ("gpu" if size.gpus else "cpu")
    if device == "gpu" and not size.gpus:
        raise SpecError(
            f"compute.device is gpu, but {size.name} has no GPU",
            facts={"key": "compute.device"},
            fix="--set compute.device=cpu, or --sku Standard_NC4as_T4_v3",
        )
    limit, what = (size.gpus, "GPUs") if device == "gpu" else (size.cores, "cores")
    processes, threads = wanted.processes_per_node, wanted.threads_per_process
    if processes == "auto":
        processes = size.gpus if device == "gpu" else 1
    if processes > limit:
        raise SpecError(
            f"invalid compute.processes_per_node {processes}: {size.name} has {limit} {what}",
            facts={"key": "compute.processes_per_node"},
            fix=f"--set compute.processes_per_node={limit}",
        )
    return wanted.resolved(
        processes,
        device,
        max(1, size.cores // processes) if threads == "auto" else threads,
        size=size.name,
        gpu=Gpu(size.gpu, size.gpu_memory_gb * GB) if size.gpu else None,
        memory_bytes=size.memory_gb * GB,
    )


def _unknown_machines(wanted: ComputeSpec) -> ResolvedCompute:
    """Machines of a size that is not given, or not in the table of sizes."""
    processes, threads = wanted.processes_per_node, wanted.threads_per_process
    if processes == "auto" and wanted.device != "cpu":
        raise SpecError(
            f"cannot choose the number of processes: the GPUs of cluster {wanted.cluster} are unknown",
            facts={"key": "compute.sku" if wanted.sku else "compute.cluster"},
            fix="--processes N, or --sku SIZE of orchestrator skus",
        )
    return wanted.resolved(
        1 if processes == "auto" else processes,
        "cpu" if wanted.device == "cpu" else "gpu",
        THREADS_UNKNOWN if threads == "auto" else threads,
    )
