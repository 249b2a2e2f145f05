"""cluster create, list, show, scale, delete: machines of Azure ML."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.backends.azure.wire import Wire

IDLE_SECONDS = 1800
NAMES = ("subscription_id", "resource_group", "workspace")


def add_verbs(verbs: Any) -> None:
    """Adds the verb to the parser."""
    from orchestrator.cli import completers
    from orchestrator.cli.arguments import add_output, add_verb, positive

    parser = add_verb(
        verbs,
        "cluster",
        run_cluster,
        summary="machines of Azure ML",
        description="Make, change and look at clusters of Azure ML. create makes a cluster, changes it, or leaves it"
        " alone if it is as asked, and says which. A cluster on which nothing runs has no machines and costs nothing,"
        " unless --min-nodes says otherwise.",
        example="cluster create --name gpu --sku Standard_NC4as_T4_v3",
    )
    parser.add_argument("action", choices=list(ACTIONS), metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument("--name", metavar="NAME", help="which cluster; not for list")
    sku = parser.add_argument("--sku", metavar="SIZE", help="machine size, see: orchestrator skus (create)")
    completers.attach(sku, completers.sizes)
    parser.add_argument("--tier", choices=["dedicated", "low-priority"], help="default: dedicated (create)")
    parser.add_argument("--min-nodes", type=_count, metavar="N", help="machines that are kept (create: 0; scale)")
    parser.add_argument("--max-nodes", type=positive, metavar="N", help="machines at most (create: 1; scale)")
    parser.add_argument(
        "--idle-seconds", type=_idle, metavar="S", help="how long an idle machine is kept (create: 1800; scale)"
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask (create, scale, delete)")
    parser.add_argument("--subscription", dest="subscription_id", metavar="ID", help="Azure subscription")
    parser.add_argument("--resource-group", metavar="NAME", help="resource group of the workspace")
    parser.add_argument("--workspace", metavar="NAME", help="workspace (default: variables, then config.json)")
    add_output(parser)


def run_cluster(arguments: argparse.Namespace) -> int:
    """One of the actions.

    Raises:
        UsageError: a flag is missing, or has no meaning for this action.
    """
    from orchestrator.errors import UsageError

    run, takes, needs = ACTIONS[arguments.action]
    flags = ("name", "sku", "tier", "min_nodes", "max_nodes", "idle_seconds")
    given = {flag for flag in flags if getattr(arguments, flag) is not None}
    if wrong := sorted(given - set(takes)):
        raise UsageError(
            f"cluster {arguments.action} does not take {', '.join(map(_flag, wrong))}",
            fix="orchestrator cluster --help",
        )
    if missing := [flag for flag in needs if flag not in given]:
        raise UsageError(
            f"cluster {arguments.action} needs {', '.join(map(_flag, missing))}", fix="orchestrator cluster --help"
        )
    return run(arguments)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


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
    from orchestrator.home import home_folder

    return AzureBackend(home_folder(os.environ)).wire({name: getattr(arguments, name) for name in NAMES})


def _confirmed(arguments: argparse.Namespace, what: str) -> None:
    """Asks on a terminal; elsewhere -y has to be there.

    Raises:
        UsageError: nobody to ask, or the answer is not yes.
    """
    from orchestrator.errors import UsageError

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
    from orchestrator.backends.azure.clusters import check_name, shape_text
    from orchestrator.backends.azure.request import compute_body

    check_name(arguments.name)
    body = compute_body(
        size=arguments.sku,
        tier=arguments.tier or "dedicated",
        min_nodes=arguments.min_nodes or 0,
        max_nodes=_most(arguments.min_nodes or 0, arguments.max_nodes),
        idle_seconds=arguments.idle_seconds or IDLE_SECONDS,
    )
    _confirmed(arguments, f"create or change cluster {arguments.name} to {shape_text(body)}")
    return _provision(_wire(arguments), arguments, body)


def run_scale(arguments: argparse.Namespace) -> int:
    """Changes a cluster's scale, and nothing else of it."""
    from orchestrator.backends.azure.clusters import scaled, shape_text

    wire = _wire(arguments)
    body = scaled(_existing(wire, arguments.name), arguments.min_nodes, arguments.max_nodes, arguments.idle_seconds)
    _confirmed(arguments, f"scale cluster {arguments.name} to {shape_text(body)}")
    return _provision(wire, arguments, body)


def _provision(wire: Wire, arguments: argparse.Namespace, body: dict[str, Any]) -> int:
    from orchestrator.backends.azure.clusters import provision
    from orchestrator.backends.azure.request import Cluster
    from orchestrator.cli.render import print_document

    done = provision(wire, Cluster(name=arguments.name, body=body))
    if arguments.output != "text":
        row = _rows([_existing(wire, arguments.name)])[0]
        print_document({**row, "done": done}, arguments.output)
    else:
        print(done)
    return 0


def run_list(arguments: argparse.Namespace) -> int:
    """Prints all clusters."""
    from orchestrator.cli.render import hint, money, print_document, table

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
    from orchestrator.cli.render import print_document

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
    from orchestrator.cli.render import print_document

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
    from orchestrator.errors import NotFoundError

    found = wire.compute(name)
    if found is None:
        raise NotFoundError(f"there is no cluster {name}", fix="orchestrator cluster list")
    return found


def _rows(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from orchestrator.backends.azure.clusters import cluster_row
    from orchestrator.estimates.prices import read_prices
    from orchestrator.estimates.sizes import SIZES, price_of_size
    from orchestrator.home import home_folder

    refreshed = read_prices(home_folder(os.environ))
    sizes = {size.name.lower(): size for size in SIZES}

    def price(name: str, low: bool) -> float | None:
        size = sizes.get(name.lower())
        found = price_of_size(size, low_priority=low, refreshed=refreshed) if size else None
        return found.usd if found else None

    return [cluster_row(body, price) for body in bodies]


def _most(least: int, most: int | None) -> int:
    from orchestrator.errors import UsageError

    if most is not None and most < least:
        raise UsageError(f"--max-nodes {most} is less than --min-nodes {least}", fix=f"--max-nodes {least}")
    return most or max(least, 1)


SCALE = ("min_nodes", "max_nodes", "idle_seconds")
ACTIONS: dict[str, tuple[Callable[[argparse.Namespace], int], tuple[str, ...], tuple[str, ...]]] = {
    "create": (run_create, ("name", "sku", "tier", *SCALE), ("name", "sku")),
    "list": (run_list, (), ()),
    "show": (run_show, ("name",), ("name",)),
    "scale": (run_scale, ("name", *SCALE), ("name",)),
    "delete": (run_delete, ("name",), ("name",)),
}  # what runs, the flags that it takes, those that it needs
