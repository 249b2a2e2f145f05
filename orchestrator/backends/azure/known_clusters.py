"""Machine sizes of existing clusters, so that a spec without a size can be planned: asked once, then known offline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator.backends.azure.catalogue import today
from orchestrator.backends.azure.options import Workspace
from orchestrator.backends.azure.places import read_cache, write_cache
from orchestrator.backends.azure.wire.control_plane import Body, Wire

CLUSTERS_FILE = Path("cache", "azure-clusters.json")  # below the home folder: id of a cluster -> {size, date}


def cluster_size(home: Path, wire: Wire, name: str) -> str | None:
    """Return the machine size of an existing cluster: the last known one, else by one request.

    Args:
        home: the user's orchestrator folder.
        wire: the workspace.
        name: of the cluster.

    Returns:
        Azure's name of the size; None: the cluster does not exist.

    Raises:
        UserError: it is not known here, and Azure cannot be asked.
    """
    known = read_cache(home / CLUSTERS_FILE).get(_id(wire.workspace, name))
    if known is not None:
        return str(known["size"])
    found = wire.compute(name)
    return None if found is None else remember_cluster(home, wire.workspace, name, found)


def remember_cluster(home: Path, workspace: Workspace, name: str, body: Body) -> str:
    """Record the size of a cluster, and return it.

    Args:
        home: the user's orchestrator folder.
        workspace: of the cluster.
        name: of the cluster.
        body: the cluster as Azure returned it.
    """
    size = str(body["properties"]["properties"]["vmSize"])
    _change(home, {_id(workspace, name): {"size": size, "date": today().isoformat()}})
    return size


def forget_cluster(home: Path, workspace: Workspace, name: str) -> None:
    """Delete the recorded size of a cluster that has another one by now."""
    _change(home, {_id(workspace, name): None})


def _change(home: Path, changes: Mapping[str, Body | None]) -> None:
    """Change the known clusters: id -> entry; None deletes it."""
    found = {**read_cache(home / CLUSTERS_FILE), **changes}
    write_cache(home / CLUSTERS_FILE, {key: entry for key, entry in found.items() if entry is not None})


def _id(workspace: Workspace, name: str) -> str:
    return f"{workspace.id}/computes/{name}"
