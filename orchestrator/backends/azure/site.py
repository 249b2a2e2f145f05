"""Azure ML as planning sees it: see `orchestrator.specs.site`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from orchestrator.backends.azure.options import AZURE, AzureSpec, is_remote
from orchestrator.specs.compute import ComputeSpec, ResolvedCompute
from orchestrator.specs.job import JobSpec
from orchestrator.specs.sections import PACKAGES
from orchestrator.specs.site import Rule, Site
from orchestrator.support.redact import SECRET
from train_jobs.config.base import Config

OF_CLUSTER = ("tier", "min_nodes", "max_nodes", "idle_seconds")  # keys of `compute` that shape a cluster


class AzureSite(Site):
    """Azure ML."""

    options: ClassVar[type[Config]] = AzureSpec
    compute_keys = ("cluster", "sku", *OF_CLUSTER)
    data_key = (AZURE, "data")
    this_python = False

    def machines(self, wanted: ComputeSpec, environ: Mapping[str, str], *, gpus: bool) -> ResolvedCompute:
        """Replace every `auto` by what machines of the cluster's size have."""
        from orchestrator.backends.azure.machines.placement import resolve_on_cluster

        return resolve_on_cluster(wanted)

    def price(self, compute: ResolvedCompute, home: Path, *, low_priority: bool) -> ResolvedCompute:
        """Add the list price of the machines, unless the user gave a price."""
        if compute.size is None or compute.price_per_hour is not None:
            return compute
        from orchestrator.backends.azure.machines.prices import read_prices
        from orchestrator.backends.azure.machines.sizes import find_size, price_of_size

        size = find_size(compute.size)
        price = price_of_size(size, low_priority=low_priority, refreshed=read_prices(home)) if size else None
        if price is None:
            return compute
        bound = ", of a dedicated machine: low priority costs about a fifth" if price.bound else ""
        origin = f"list price of {price.date} in {price.region}{bound}"
        return compute.model_copy(update={"price_per_hour": price.usd, "price_origin": origin})

    def size_names(self) -> Sequence[str]:
        """Return the names of Azure's machine sizes."""
        from orchestrator.backends.azure.machines.sizes import SIZES

        return [size.name for size in SIZES]

    def sizes(self, home: Path, gpus: str | None, region: str | None) -> list[dict[str, Any]]:
        """Return machine sizes, each with its GPUs, memory and list price."""
        from orchestrator.backends.azure.machines.prices import read_prices, refresh_prices
        from orchestrator.backends.azure.machines.sizes import SIZES, parse_gpus, sizes_with

        chosen = sizes_with(*parse_gpus(gpus)) if gpus else SIZES
        prices = read_prices(home) if region is None else refresh_prices(home, self.size_names(), region)
        return [size.row(prices) for size in chosen]

    def environment(self, spec: JobSpec) -> dict[str, str]:
        """Return the versions pinned by the environment on Azure, or the name of the user's own environment."""
        named = spec.settings_of(AzureSpec).environment
        if named != "auto":
            return {"environment": named}
        from orchestrator.backends.azure.assets.images import pinned_versions

        return pinned_versions(PACKAGES)

    def remote_data(self, spec: JobSpec) -> str | None:
        """Return `azure.data`."""
        return spec.settings_of(AzureSpec).data

    def is_remote(self, text: str) -> bool:
        """Return whether `text` names an asset, a path in a datastore, or a blob."""
        return is_remote(text)

    def ignored(self, spec: JobSpec) -> Iterable[Rule]:
        """Return keys that have no effect on Azure."""
        return [
            ("compute.master_port", True, "Azure chooses the port"),
            ("notify.on", True, "a job on Azure does not know the webhook"),
            ("tracking.uri", True, "the workspace keeps the MLflow runs"),
            *((f"compute.{key}", spec.compute.sku is None, "the cluster is left as it is") for key in OF_CLUSTER),
        ]

    def warnings(self, spec: JobSpec) -> Iterator[str]:
        """Warn about secrets among the job's variables."""
        if secrets := [name for name in spec.environment.variables if SECRET.search(name)]:
            yield f"{', '.join(secrets)}: variables of a job can be read by everybody in the workspace"
