"""skus: machine sizes of Azure, with what they cost."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.backends.azure.machines.sizes import Size


def add_verbs(verbs: Any) -> None:
    """Adds the verb to the parser."""
    from orchestrator.cli.ui.arguments import add_output, add_verb

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


def run_skus(arguments: argparse.Namespace) -> int:
    """Prints the sizes."""
    from orchestrator.backends.azure.machines.prices import read_prices, refresh_prices
    from orchestrator.backends.azure.machines.sizes import SIZES, parse_gpus, sizes_with
    from orchestrator.cli.ui.render import hint, print_document
    from orchestrator.cli.ui.terminal import table
    from orchestrator.support.home import home_folder

    home = home_folder(os.environ)
    sizes = sizes_with(*parse_gpus(arguments.gpus)) if arguments.gpus else list(SIZES)
    names = [size.name for size in SIZES]
    prices = refresh_prices(home, names, arguments.region) if arguments.refresh else read_prices(home)
    rows = [_row(size, prices) for size in sizes]
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


def _row(size: Size, prices: dict[str, dict[str, Any]]) -> dict[str, Any]:
    from orchestrator.backends.azure.machines.sizes import price_of_size

    price = price_of_size(size, low_priority=False, refreshed=prices)
    low = price_of_size(size, low_priority=True, refreshed=prices)
    return {
        **size._asdict(),
        "price": price.usd if price else None,
        "price_date": price.date if price else None,
        "price_region": price.region if price else None,
        "low_priority_price": low.usd if low and not low.bound else None,
    }


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
