"""cluster create, list, show, scale, delete: machines of Azure ML."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.backends.azure.wire.control_plane import Wire

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


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"not a whole number: {text}")
    return int(text)


def _idle(text: str) -> int:
    seconds = _count(text)
    if seconds < 60:
        raise argparse.ArgumentTypeError(f"less than 60 seconds: {text}")
    return seconds


def _wire(arguments: argparse.Namespace) -> Wire:
    from orchestrator.backends.azure.backend import AzureBackend
    from orchestrator.support.home import home_folder

    return AzureBackend(home_folder(os.environ)).wire({name: getattr(arguments, name) for name in NAMES})


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
    from orchestrator.backends.azure.machines.clusters import check_name, compute_body, shape_text
    from orchestrator.backends.azure.machines.sizes import check_runs_torch, find_size
    from orchestrator.cli.ui.render import hint
    from orchestrator.support.errors import SpecError

    check_name(arguments.name)
    if (size := find_size(arguments.sku, where="--sku")) is not None:
        try:
            check_runs_torch(size)
        except SpecError as problem:  # of jobs with our environment; others may run there
            hint(f"warning: {problem.message}; instead: {problem.fix}")
    body = compute_body(
        size=arguments.sku,
        tier=arguments.tier,
        min_nodes=arguments.min_nodes,
        max_nodes=_most(arguments.min_nodes, arguments.max_nodes),
        idle_seconds=arguments.idle_seconds,
    )
    _confirmed(arguments, f"create or change cluster {arguments.name} to {shape_text(body)}")
    return _provision(_wire(arguments), arguments, body)


def run_scale(arguments: argparse.Namespace) -> int:
    """Changes a cluster's scale, and nothing else of it."""
    from orchestrator.backends.azure.machines.clusters import scaled, shape_text

    wire = _wire(arguments)
    body = scaled(_existing(wire, arguments.name), arguments.min_nodes, arguments.max_nodes, arguments.idle_seconds)
    _confirmed(arguments, f"scale cluster {arguments.name} to {shape_text(body)}")
    return _provision(wire, arguments, body)


def _provision(wire: Wire, arguments: argparse.Namespace, body: dict[str, Any]) -> int:
    from orchestrator.backends.azure.machines.clusters import Cluster, provision
    from orchestrator.cli.ui.render import print_document

    done = provision(wire, Cluster(name=arguments.name, body=body), fewer="--max-nodes {0}")
    if arguments.output != "text":
        row = _rows([_existing(wire, arguments.name)])[0]
        print_document({**row, "done": done}, arguments.output)
    else:
        print(done)
    return 0


def run_list(arguments: argparse.Namespace) -> int:
    """Prints all clusters."""
    from orchestrator.cli.ui.render import hint, money, print_document
    from orchestrator.cli.ui.terminal import table

    rows = _rows(
        [body for body in _wire(arguments).computes() if body["properties"].get("computeType") == "AmlCompute"]
    )
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

    row = _rows([_existing(_wire(arguments), arguments.name)])[0]
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

    wire = _wire(arguments)
    _existing(wire, arguments.name)
    _confirmed(arguments, f"delete cluster {arguments.name}, its machines and the jobs on it")
    wire.delete_compute(arguments.name)
    if arguments.output != "text":
        print_document({"name": arguments.name, "done": "deleted"}, arguments.output)
    else:
        print(f"cluster {arguments.name}: deleted")
    return 0


def _existing(wire: Wire, name: str) -> dict[str, Any]:
    from orchestrator.support.errors import NotFoundError

    found = wire.compute(name)
    if found is None:
        raise NotFoundError(f"there is no cluster {name}", fix="orchestrator cluster list")
    return found


def _rows(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from orchestrator.backends.azure.machines.clusters import cluster_row
    from orchestrator.backends.azure.machines.prices import read_prices
    from orchestrator.backends.azure.machines.sizes import SIZES, price_of_size
    from orchestrator.support.home import home_folder

    refreshed = read_prices(home_folder(os.environ))
    sizes = {size.name.lower(): size for size in SIZES}

    def price(name: str, low: bool) -> float | None:
        size = sizes.get(name.lower())
        found = price_of_size(size, low_priority=low, refreshed=refreshed) if size else None
        return found.usd if found else None

    return [cluster_row(body, price) for body in bodies]


def _most(least: int, most: int) -> int:
    from orchestrator.support.errors import UsageError

    if most < least:
        raise UsageError(f"--max-nodes {most} is less than --min-nodes {least}", fix=f"--max-nodes {least}")
    return most
