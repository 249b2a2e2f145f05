"""cluster, skus: machines and their sizes; model: the registry and endpoints."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from orchestrator.backends import backend_with
from orchestrator.backends.capabilities import Provisions, RoutesTraffic
from orchestrator.cli.ui.targets import attach_run, run_or_best
from orchestrator.cli.ui.terminal import confirm, hint, print_result, table
from orchestrator.client import Orchestrator
from orchestrator.specs.site import builtin_sites
from orchestrator.specs.tiers import current_tier, old_tier_warning
from orchestrator.support.access import open_home
from orchestrator.support.errors import NotFoundError, UsageError
from orchestrator.support.formatting import money
from orchestrator.support.home import home_folder

if TYPE_CHECKING:
    from orchestrator.backends.capabilities import Clusters, Endpoints

WORKSPACE = ("subscription_id", "resource_group", "workspace")


def _clusters(arguments: argparse.Namespace) -> Clusters:
    backend = backend_with(Provisions, home_folder(os.environ))
    return backend.clusters({name: getattr(arguments, name) for name in WORKSPACE})


def _confirm(arguments: argparse.Namespace, action: str) -> None:
    """Ask for confirmation unless -y is given.

    Raises:
        UsageError: stdin is not a terminal, or the answer is not yes.
    """
    fix = "repeat the command with -y"
    if not (arguments.yes or confirm(action, fix=fix)):
        raise UsageError(f"cannot {action}: not confirmed", fix=fix)


def create_cluster(arguments: argparse.Namespace) -> None:
    """Create or update a cluster.

    Raises:
        UsageError: the minimum number of machines is above the maximum, or the user did not confirm.
    """
    least, most = arguments.min_nodes, arguments.max_nodes
    if most < least:
        raise UsageError(f"invalid --max-nodes {most}: less than --min-nodes {least}", fix=f"--max-nodes {least}")
    clusters = _clusters(arguments)
    change = clusters.created(
        arguments.name,
        sku=arguments.sku,
        tier=current_tier(arguments.tier),
        min_nodes=least,
        max_nodes=most,
        idle_seconds=arguments.idle_seconds,
    )
    for warning in filter(None, (old_tier_warning(arguments.tier), *change.warnings)):
        hint(f"warning: {warning}")
    _confirm(arguments, f"create or update cluster {arguments.name} to {change.shape}")
    _print_done(clusters, arguments, change.apply())


def scale_cluster(arguments: argparse.Namespace) -> None:
    """Change the scale of a cluster."""
    clusters = _clusters(arguments)
    change = clusters.scaled(arguments.name, arguments.min_nodes, arguments.max_nodes, arguments.idle_seconds)
    _confirm(arguments, f"scale cluster {arguments.name} to {change.shape}")
    _print_done(clusters, arguments, change.apply())


def _print_done(clusters: Clusters, arguments: argparse.Namespace, done: str) -> None:
    row = clusters.row(arguments.name) if arguments.output != "text" else {}
    print_result(arguments.output, {**row, "done": done}, done)


def list_clusters(arguments: argparse.Namespace) -> None:
    """Print all clusters."""
    rows = _clusters(arguments).rows()
    cells = [
        (
            row["name"],
            str(row["state"] or "unknown").lower(),
            str(row["size"]).removeprefix("Standard_"),
            row["tier"],
            f"{row['nodes']} of {row['min_nodes']}-{row['max_nodes']}",
            "?" if row["idle_cost_per_day"] is None else money(row["idle_cost_per_day"]),
        )
        for row in rows
    ]
    text = table(cells, ("CLUSTER", "STATE", "SIZE", "TIER", "NODES", "IDLE/DAY")) if rows else None
    print_result(arguments.output, rows, text)
    if not rows and arguments.output == "text":
        hint("no clusters yet\n  fix  orchestrator cluster create --name gpu --sku Standard_NC4as_T4_v3")


def show_cluster(arguments: argparse.Namespace) -> None:
    """Print one cluster."""
    row = _clusters(arguments).row(arguments.name)
    width = max(map(len, row))
    lines = [f"{key.replace('_', ' '):<{width}}  {'' if value is None else value}" for key, value in row.items()]
    print_result(arguments.output, row, "\n".join(lines))


def delete_cluster(arguments: argparse.Namespace) -> None:
    """Delete a cluster."""
    clusters = _clusters(arguments)
    clusters.row(arguments.name)  # fails for an unknown name before the user is asked for confirmation
    _confirm(arguments, f"delete cluster {arguments.name}, its machines and the jobs on it")
    clusters.delete(arguments.name)
    document = {"name": arguments.name, "done": "deleted"}
    print_result(arguments.output, document, f"cluster {arguments.name}: deleted")


def list_sizes(arguments: argparse.Namespace) -> None:
    """Print machine sizes."""
    home, region = home_folder(os.environ), arguments.region if arguments.refresh else None
    open_home(home)
    sites = [site for site in builtin_sites() if site.size_names()]
    rows = [row for site in sites for row in site.sizes(home, arguments.gpus, region)]
    header = ("SIZE", "GPUS", "GPU GB", "CORES", "RAM GB", "IB GBIT/S", "$/H", "SPOT $/H")
    print_result(arguments.output, rows, table([_cells(row) for row in rows], header) if rows else None)
    if arguments.output != "text":
        return
    if rows:
        dates = sorted({f"{row['price_date']} in {row['price_region']}" for row in rows if row["price"] is not None})
        hint(f"list prices, dedicated, of {', '.join(dates)}\n  today's  orchestrator skus --refresh")
    else:
        hint(f"no machine size has {arguments.gpus}; to use several machines, set compute.nodes")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["name"],
        f"{row['gpus']} {row['gpu'] or '?'}" if row["gpus"] else "-",
        f"{row['gpus']}x{row['gpu_memory_gb'] or '?'}" if row["gpus"] else "-",
        str(row["cores"]),
        str(row["memory_gb"]),
        str(row["infiniband_gbps"]) if row["infiniband_gbps"] else "-",
        "?" if row["price"] is None else f"{row['price']:.3f}",
        "?" if row["spot_price"] is None else f"{row['spot_price']:.3f}",
    )


def register_model(arguments: argparse.Namespace) -> None:
    """Register the model of a run or of the best trial of a sweep, and print its name and version."""
    run = run_or_best(Orchestrator(arguments.backend), arguments.name)
    document = run.register_model(arguments.model_name, alias=arguments.alias, checkpoints=arguments.checkpoints)
    if older := document.get("replaces"):
        hint(f"version {older} has no MLmodel file, so MLflow cannot load it: use version {document['version']}")
    print_result(arguments.output, document, f"{document['name']}:{document['version']}")


def deploy_model(arguments: argparse.Namespace) -> None:
    """Deploy a model, and print the address of its endpoint."""
    run = attach_run(arguments)
    if not run.deploys_here:
        _confirm(arguments, f"deploy {run.name}: the endpoint's machine is billed until it is deleted")
    document = run.deploy_model(
        arguments.endpoint, sku=arguments.sku, traffic=arguments.traffic, require_signature=arguments.require_signature
    )
    hint(f"  delete  orchestrator model delete {arguments.endpoint} -b {run.handle.backend} -y")
    print_result(arguments.output, document, document["uri"])


def _endpoints() -> Endpoints:
    return backend_with(RoutesTraffic, home_folder(os.environ)).endpoints()


def list_endpoints(arguments: argparse.Namespace) -> None:
    """Print the endpoints and their deployments."""
    rows = _endpoints().rows()
    print_result(arguments.output, rows, _deployments(rows) if rows else None)
    if not rows and arguments.output == "text":
        hint("no endpoints yet\n  fix  orchestrator model deploy RUN --endpoint NAME")


def _deployments(rows: list[dict[str, Any]]) -> str:
    """Return a table of the deployments of endpoints; an endpoint without any has one line."""
    cells = [
        (
            row["endpoint"],
            str(one.get("name", "-")),
            f"{one.get('traffic', 0)}%",
            f"{one['model'] or '?'}:{one['version'] or '?'}" if one else "-",
            str(one.get("state") or row["state"] or "unknown").lower(),
        )
        for row in rows
        for one in (row["deployments"] or [{}])
    ]
    return table(cells, ("ENDPOINT", "DEPLOYMENT", "TRAFFIC", "MODEL", "STATE"))


def shift_traffic(arguments: argparse.Namespace) -> None:
    """Divide the traffic of an endpoint."""
    traffic = _parse_traffic(arguments.traffic)
    _confirm(arguments, f"change the traffic of endpoint {arguments.endpoint} to {arguments.traffic}")
    row = _endpoints().shift(arguments.endpoint, traffic)
    print_result(arguments.output, row, _deployments([row]))


def _parse_traffic(text: str) -> dict[str, int]:
    """Parse NAME=PERCENT,NAME=PERCENT.

    Raises:
        UsageError: it has another form, a name twice, or a share outside 0 to 100.
    """
    parts = [part.partition("=") for part in text.split(",")]
    traffic = {name.strip(): int(share) for name, _, share in parts if share.isdecimal() and int(share) <= 100}
    if len(traffic) != len(parts) or not all(traffic):
        raise UsageError(
            f"invalid traffic {text!r}: expected NAME=PERCENT,..., each name once, from 0 to 100",
            fix="blue=90,green=10",
        )
    return traffic


def roll_back(arguments: argparse.Namespace) -> None:
    """Give all traffic of an endpoint to its former deployment."""
    _confirm(arguments, f"roll back endpoint {arguments.endpoint}")
    row = _endpoints().roll_back(arguments.endpoint, delete=arguments.delete)
    print_result(arguments.output, row, _deployments([row]))


def delete_endpoint(arguments: argparse.Namespace) -> None:
    """Delete an endpoint."""
    _confirm(arguments, f"delete endpoint {arguments.endpoint}")
    try:
        Orchestrator(arguments.backend).delete_endpoint(arguments.endpoint)
    except NotFoundError as problem:
        if arguments.backend is None:  # it may be one of a workspace, which `deploy` made
            other: Any = backend_with(RoutesTraffic, home_folder(os.environ))
            problem.fix = f"orchestrator model delete {arguments.endpoint} -b {other.name}"
        raise
    document = {"endpoint": arguments.endpoint, "done": "deleted"}
    print_result(arguments.output, document, f"endpoint {arguments.endpoint}: deleted")
