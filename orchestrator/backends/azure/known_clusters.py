"""Size and tier of existing clusters, so that a spec without a size can be planned: asked once, then known offline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from orchestrator.backends.azure.catalogue import today
from orchestrator.backends.azure.clusters import inner, tier_of
from orchestrator.backends.azure.options import Workspace
from orchestrator.backends.azure.places import read_cache, write_cache
from orchestrator.backends.azure.wire.control_plane import Body, Wire

CLUSTERS_FILE = Path("cache", "azure-clusters.json")  # below the home folder: id of a cluster -> {size, tier, date}


class KnownCluster(NamedTuple):
    """The machines of an existing cluster."""

    size: str
    """Azure's name of their size."""
    tier: str
    """dedicated or spot."""


def known_cluster(home: Path, wire: Wire, name: str) -> KnownCluster | None:
    """Return the machines of an existing cluster: the last known ones, else by one request.

    Args:
        home: the user's orchestrator folder.
        wire: the workspace.
        name: of the cluster.

    Returns:
        None: the cluster does not exist.

    Raises:
        UserError: it is not known here, and Azure cannot be asked.
    """
    known = read_cache(home / CLUSTERS_FILE).get(_id(wire.workspace, name), {})
    if "tier" in known:  # entries of earlier versions have only the size
        return KnownCluster(str(known["size"]), str(known["tier"]))
    body = wire.compute(name)
    if body is None:
        return None
    found = KnownCluster(str(inner(body)["vmSize"]), tier_of(body))
    _change(home, {_id(wire.workspace, name): {**found._asdict(), "date": today().isoformat()}})
    return found


def forget_cluster(home: Path, workspace: Workspace, name: str) -> None:
    """Delete the recorded machines of a cluster that has others by now."""
    _change(home, {_id(workspace, name): None})


def _change(home: Path, changes: Mapping[str, Body | None]) -> None:
    """Change the known clusters: id -> entry; None deletes it."""
    found = {**read_cache(home / CLUSTERS_FILE), **changes}
    write_cache(home / CLUSTERS_FILE, {key: entry for key, entry in found.items() if entry is not None})


def _id(workspace: Workspace, name: str) -> str:
    return f"{workspace.id}/computes/{name}"
