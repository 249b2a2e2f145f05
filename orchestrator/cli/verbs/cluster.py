"""cluster create, list, show, scale, delete: machines that jobs run on; skus: their sizes."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.backends.capabilities import Clusters

NAMES = ("subscription_id", "resource_group", "workspace")


def add_verbs(verbs: Any) -> None:
    """Adds the verb and what it does to the parser."""
    from orchestrator.cli.ui import completers
    from orchestrator.cli.ui.arguments import add_group, add_output, add_verb, positive

    actions = add_group(
        verbs,
        "cluster",
        summary="machines of Azure ML",
        description="Make, change and look at clusters of Azure ML. A cluster without running jobs has no machines and"
        " costs nothing, unless --min-nodes says otherwise.",
        example="cluster create --name t4 --sku Standard_NC4as_T4_v3 --max-nodes 2",
    )

    def add(name: str, run: Any, summary: str, example: str, *, more: str = "") -> argparse.ArgumentParser:
        parser = add_verb(
            actions,
            name,
            run,
            summary=summary,
            description=f"{summary.capitalize()}.{more}",
            example=f"cluster {name}{example}",
        )
        if name != "list":
            parser.add_argument("--name", required=True, metavar="NAME", help="its name")
        parser.add_argument("--subscription", dest="subscription_id", metavar="ID", help="Azure subscription")
        parser.add_argument("--resource-group", metavar="NAME", help="resource group of the workspace")
        parser.add_argument("--workspace", metavar="NAME", help="workspace (default: variables, then config.json)")
        add_output(parser)
        return parser

    create = add(
        "create",
        run_create,
        "make a cluster, change one to fit, or leave it alone: it says which",
        " --name t4 --sku Standard_NC4as_T4_v3 --max-nodes 2",
        more=" Size and tier of one that is there cannot be changed; how many machines it has, and how long idle ones"
        " are kept, can. Asks first, unless -y is given.",
    )
    sku = create.add_argument("--sku", required=True, metavar="SIZE", help="machine size, see: orchestrator skus")
    completers.attach(sku, completers.sizes)
    create.add_argument("--tier", choices=["dedicated", "low-priority"], default="dedicated", help="default: dedicated")
    add("list", run_list, "list clusters, with what they cost while idle", "")
    add("show", run_show, "show a cluster, with what it costs while idle", " --name t4")
    scale = add("scale", run_scale, "change how many machines a cluster has", " --name t4 --max-nodes 8")
    for parser in (create, scale):
        unset = parser is scale
        parser.add_argument("--min-nodes", type=_count, default=None if unset else 0, metavar="N", help="machines kept")
        parser.add_argument(
            "--max-nodes", type=positive, default=None if unset else 1, metavar="N", help="machines at most"
        )
        parser.add_argument(
            "--idle-seconds",
            type=_idle,
            default=None if unset else 1800,
            metavar="S",
            help="how long an idle machine is kept",
        )
    delete = add("delete", run_delete, "delete a cluster with its machines; jobs on it end", " --name t4")
    for parser in (create, scale, delete):
        parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    skus = add_verb(
        verbs,
        "skus",
        run_skus,
        summary="machine sizes of Azure and their prices",
        description="List machine sizes of Azure: GPUs, memory, InfiniBand, list price with its date. Offline, unless"
        " the prices are refreshed.",
        example="skus --gpus H100:8",
    )
    skus.add_argument("--gpus", metavar="MODEL[:N]", help="only sizes with at least N GPUs of this model")
    skus.add_argument(
        "--refresh", action="store_true", help="ask Azure's price service for today's prices, and keep them"
    )
    skus.add_argument("--region", default="eastus", help="whose prices --refresh asks for (default: eastus)")
    add_output(skus)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"not a whole number: {text}")
    return int(text)


def _idle(text: str) -> int:
    seconds = _count(text)
    if seconds < 60:
        raise argparse.ArgumentTypeError(f"less than 60 seconds: {text}")
    return seconds


def _clusters(arguments: argparse.Namespace) -> Clusters:
    from orchestrator.backends import backend_with
    from orchestrator.backends.capabilities import Provisions
    from orchestrator.support.home import home_folder

    backend = backend_with(Provisions, home_folder(os.environ))
    return backend.clusters({name: getattr(arguments, name) for name in NAMES})


def _confirmed(arguments: argparse.Namespace, what: str) -> None:
    """Asks on a terminal; elsewhere -y has to be there.

    Raises:
        UsageError: nobody to ask, or the answer is not yes.
    """
    from orchestrator.support.errors import UsageError

    if arguments.yes:
        return
    again = f"orchestrator cluster {arguments.action} --name {arguments.name} ... -y"
    if not sys.stdin.isatty():
        raise UsageError(f"to {what} has to be confirmed", fix=again)
    print(f"{what}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise UsageError("not confirmed: nothing was done", fix=again)


def run_create(arguments: argparse.Namespace) -> int:
    """Makes or changes a cluster."""
    from orchestrator.cli.ui.render import hint

    clusters = _clusters(arguments)
    change = clusters.created(
        arguments.name,
        sku=arguments.sku,
        tier=arguments.tier,
        min_nodes=arguments.min_nodes,
        max_nodes=_most(arguments.min_nodes, arguments.max_nodes),
        idle_seconds=arguments.idle_seconds,
    )
    for warning in change.warnings:
        hint(f"warning: {warning}")
    _confirmed(arguments, f"create or change cluster {arguments.name} to {change.shape}")
    return _print_done(clusters, arguments, change.apply())


def run_scale(arguments: argparse.Namespace) -> int:
    """Changes a cluster's scale, and nothing else of it."""
    clusters = _clusters(arguments)
    change = clusters.scaled(arguments.name, arguments.min_nodes, arguments.max_nodes, arguments.idle_seconds)
    _confirmed(arguments, f"scale cluster {arguments.name} to {change.shape}")
    return _print_done(clusters, arguments, change.apply())


def _print_done(clusters: Clusters, arguments: argparse.Namespace, done: str) -> int:
    from orchestrator.cli.ui.render import print_document

    if arguments.output != "text":
        print_document({**clusters.row(arguments.name), "done": done}, arguments.output)
    else:
        print(done)
    return 0


def run_list(arguments: argparse.Namespace) -> int:
    """Prints all clusters."""
    from orchestrator.cli.ui.render import hint, money, print_document
    from orchestrator.cli.ui.terminal import table

    rows = _clusters(arguments).rows()
    if arguments.output != "text":
        print_document(rows, arguments.output)
        return 0
    if not rows:
        hint("there are no clusters; next\n  orchestrator cluster create --name gpu --sku Standard_NC4as_T4_v3")
        return 0
    cells = [
        (
            row["name"],
            str(row["size"]).removeprefix("Standard_"),
            row["tier"],
            f"{row['nodes']} of {row['min_nodes']}-{row['max_nodes']}",
            "?" if row["idle_cost_per_day"] is None else money(row["idle_cost_per_day"]),
        )
        for row in rows
    ]
    print(table(cells, ("CLUSTER", "SIZE", "TIER", "NODES", "IDLE/DAY")))
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """Prints one cluster."""
    from orchestrator.cli.ui.render import print_document

    row = _clusters(arguments).row(arguments.name)
    if arguments.output != "text":
        print_document(row, arguments.output)
        return 0
    width = max(map(len, row))
    print(
        "\n".join(f"{key.replace('_', ' '):<{width}}  {'' if value is None else value}" for key, value in row.items())
    )
    return 0


def run_delete(arguments: argparse.Namespace) -> int:
    """Deletes a cluster."""
    from orchestrator.cli.ui.render import print_document

    clusters = _clusters(arguments)
    clusters.row(arguments.name)
    _confirmed(arguments, f"delete cluster {arguments.name}, its machines and the jobs on it")
    clusters.delete(arguments.name)
    if arguments.output != "text":
        print_document({"name": arguments.name, "done": "deleted"}, arguments.output)
    else:
        print(f"cluster {arguments.name}: deleted")
    return 0


def run_skus(arguments: argparse.Namespace) -> int:
    """Prints machine sizes."""
    from orchestrator.cli.ui.render import hint, print_document
    from orchestrator.cli.ui.terminal import table
    from orchestrator.specs.site import our_sites
    from orchestrator.support.home import home_folder

    home, region = home_folder(os.environ), arguments.region if arguments.refresh else None
    sites = [site for site in our_sites() if site.size_names()]
    rows = [row for site in sites for row in site.sizes(home, arguments.gpus, region)]
    if arguments.output != "text":
        print_document(rows, arguments.output)
        return 0
    if rows:
        print(table([_cells(row) for row in rows], ("SIZE", "GPUS", "GPU GB", "CORES", "RAM GB", "IB GBIT/S", "$/H")))
        dates = sorted({f"{row['price_date']} in {row['price_region']}" for row in rows if row["price"] is not None})
        hint(f"list prices, dedicated, of {', '.join(dates)}\n  today's  orchestrator skus --refresh")
    else:
        hint(f"no size has {arguments.gpus} on one machine; more machines: compute.nodes")
    return 0


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["name"],
        f"{row['gpus']} {row['gpu']}" if row["gpus"] else "-",
        f"{row['gpus']}x{row['gpu_memory_gb']}" if row["gpus"] else "-",
        str(row["cores"]),
        str(row["memory_gb"]),
        str(row["infiniband_gbps"]) if row["infiniband_gbps"] else "-",
        "?" if row["price"] is None else f"{row['price']:.3f}",
    )


def _most(least: int, most: int) -> int:
    from orchestrator.support.errors import UsageError

    if most < least:
        raise UsageError(f"--max-nodes {most} is less than --min-nodes {least}", fix=f"--max-nodes {least}")
    return most
