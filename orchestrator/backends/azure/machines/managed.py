"""The clusters of a workspace, as `orchestrator cluster` shows and changes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.backends.azure.machines.clusters import (
    Cluster,
    check_name,
    cluster_row,
    compute_body,
    provision,
    scaled,
    shape_text,
)
from orchestrator.backends.azure.machines.prices import read_prices
from orchestrator.backends.azure.machines.sizes import SIZES, check_runs_torch, find_size, price_of_size
from orchestrator.backends.azure.wire.control_plane import Body, Wire
from orchestrator.backends.capabilities import ClusterChange, Clusters
from orchestrator.support.errors import NotFoundError, SpecError


class AzureClusters(Clusters):
    """Clusters of one workspace.

    Args:
        connect: returns the workspace; called when Azure is first asked.
        home: the home folder, where refreshed prices lie.
    """

    def __init__(self, connect: Callable[[], Wire], home: Path) -> None:
        self._connect, self._home = connect, home

    @cached_property
    def _wire(self) -> Wire:
        return self._connect()

    def rows(self) -> list[dict[str, Any]]:
        """Return all clusters."""
        return self._rows(
            [body for body in self._wire.computes() if body["properties"].get("computeType") == "AmlCompute"]
        )

    def row(self, name: str) -> dict[str, Any]:
        """Return one cluster."""
        return self._rows([self._existing(name)])[0]

    def created(
        self, name: str, *, sku: str, tier: str, min_nodes: int, max_nodes: int, idle_seconds: int
    ) -> ClusterChange:
        """Return what makes a cluster, or changes one to fit."""
        check_name(name)
        warnings: tuple[str, ...] = ()
        if (size := find_size(sku, where="--sku")) is not None:
            try:
                check_runs_torch(size)
            except SpecError as problem:  # of jobs with our environment; others may run there
                warnings = (f"{problem.message}; instead: {problem.fix}",)
        body = compute_body(size=sku, tier=tier, min_nodes=min_nodes, max_nodes=max_nodes, idle_seconds=idle_seconds)
        return self._change(name, body, warnings)

    def scaled(
        self, name: str, min_nodes: int | None, max_nodes: int | None, idle_seconds: int | None
    ) -> ClusterChange:
        """Return what changes the scale of a cluster, and nothing else of it."""
        return self._change(name, scaled(self._existing(name), min_nodes, max_nodes, idle_seconds))

    def delete(self, name: str) -> None:
        """Delete a cluster with its machines."""
        self._wire.delete_compute(name)

    def _change(self, name: str, body: Body, warnings: tuple[str, ...] = ()) -> ClusterChange:
        def apply() -> str:
            return provision(self._wire, Cluster(name=name, body=body), fewer="--max-nodes {0}")

        return ClusterChange(shape_text(body), warnings, apply)

    def _existing(self, name: str) -> Body:
        found = self._wire.compute(name)
        if found is None:
            raise NotFoundError(f"there is no cluster {name}", fix="orchestrator cluster list")
        return found

    def _rows(self, bodies: list[Body]) -> list[dict[str, Any]]:
        refreshed = read_prices(self._home)
        sizes = {size.name.lower(): size for size in SIZES}

        def price(name: str, low: bool) -> float | None:
            size = sizes.get(name.lower())
            found = price_of_size(size, low_priority=low, refreshed=refreshed) if size else None
            return found.usd if found else None

        return [cluster_row(body, price) for body in bodies]
