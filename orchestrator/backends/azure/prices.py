"""Prices of Azure's machines: the shipped ones, and those of Azure's public price service, which needs no sign-in.

A dedicated machine has one list price in a region. A Spot machine has a rate that changes with region and demand, up to
the price of a dedicated one: its price is a range from the Spot meter of a date to that upper bound.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from orchestrator.backends.azure.catalogue import shipped_facts
from orchestrator.backends.azure.places import read_cache, write_cache
from orchestrator.backends.azure.sizes import Size, listed_price
from orchestrator.support.errors import ServiceError, UsageError

PRICES_FILE = Path("cache", "azure-prices.json")  # below the home folder
SERVICE = "https://prices.azure.com/api/retail/prices"
SECONDS = 30.0  # time limit of one request to the price service
MAX_NAMES = 8  # in one request: the service refuses long filters

Prices = dict[str, dict[str, Any]]
"""Size, and SIZE@REGION -> {dedicated, spot, region, date}."""


class Price(NamedTuple):
    """Price of one machine."""

    usd: float
    """USD an hour; of Spot machines the rate of the Spot meter, or the upper bound if that is unknown."""
    most: float
    """USD an hour at most: of Spot machines the price of a dedicated one."""
    date: str
    """Date of the price."""
    region: str
    """Azure's name of the region."""
    spot: bool = False
    """Whether it is the rate of a Spot meter."""
    bound: bool = False
    """Whether `usd` is only the upper bound of an unknown Spot rate."""

    @property
    def origin(self) -> str:
        """Source of the price, as plans print it."""
        dated = f"of {self.date} in {self.region}"
        if self.bound:
            return f"list price {dated}, of a dedicated machine: upper bound of the unknown Spot rate"
        if self.spot:
            return f"Spot rate {dated}, which varies, up to ${self.most:,.2f} for a dedicated machine"
        return f"list price {dated}"


def price_of_size(
    size: Size, *, spot: bool, refreshed: Mapping[str, Mapping[str, Any]], region: str | None = None
) -> Price | None:
    """Return the price of a machine in USD an hour; None: it is unknown.

    Args:
        size: of the machine.
        spot: whether Azure may evict it. Without a Spot rate, the dedicated price is an upper bound.
        refreshed: prices of the last refresh, see `read_prices`; the shipped ones are used for other sizes.
        region: Azure's name of the region; None, or without a price of its own: that of the last refresh.
    """
    entry = refreshed.get(f"{size.name}@{region}") or refreshed.get(size.name, {})
    shipped, listed = shipped_facts("prices"), listed_price(size)
    dedicated, dated, where = entry.get("dedicated"), str(entry.get("date")), str(entry.get("region"))
    if not isinstance(dedicated, float | int):
        dedicated = None
    if spot and isinstance(rate := entry.get("spot"), float | int):
        return Price(float(rate), float(max(dedicated or rate, rate)), dated, where, spot=True)
    if dedicated is None:
        if listed is None:
            return None
        dedicated, dated, where = listed, shipped.date, str(shipped.region)
    return Price(float(dedicated), float(dedicated), dated, where, bound=spot)


def dated_price(name: str, home: Path) -> str:
    """Return the date of a size's price: that of the last refresh, or of the shipped prices."""
    return str(read_prices(home).get(name, {}).get("date") or shipped_facts("prices").date)


def price_columns(size: Size, prices: Prices) -> dict[str, Any]:
    """Return the columns of a size's prices in `orchestrator skus`."""
    price = price_of_size(size, spot=False, refreshed=prices)
    spot = price_of_size(size, spot=True, refreshed=prices)
    return {
        "price": price.usd if price else None,
        "price_date": price.date if price else None,
        "price_region": price.region if price else None,
        "spot_price": spot.usd if spot and spot.spot else None,
    }


def read_prices(home: Path) -> Prices:
    """Return the prices of the last refresh; empty if there was none."""
    return read_cache(home / PRICES_FILE)


def refresh_prices(home: Path, names: Iterable[str], region: str) -> Prices:
    """Fetch the prices of sizes and store them; sizes that the service does not know keep their last prices.

    Args:
        home: the user's orchestrator folder.
        names: Azure's names of the sizes.
        region: Azure's name of the region, such as eastus.

    Raises:
        UsageError: the region's name is not valid.
        ServiceError: the service cannot be reached, or its answer is not valid.
    """
    if not re.fullmatch(r"[a-z0-9]+", region):
        raise UsageError(f"invalid region {region!r}", fix="--region eastus")
    listed, found = sorted(names), read_prices(home)
    for start in range(0, len(listed), MAX_NAMES):
        for name, prices in _by_size(_meters(listed[start : start + MAX_NAMES], region)).items():
            entry = {**prices, "region": region, "date": time.strftime("%Y-%m-%d", time.gmtime())}
            found |= {name: entry, f"{name}@{region}": entry}
    write_cache(home / PRICES_FILE, found)
    return found


def _by_size(meters: Iterable[Mapping[str, Any]]) -> Prices:
    """Return the cheapest of the service's many meters for each tier of a Linux machine.

    Meters of the retired low-priority machines are still listed, and no machine is billed by them any more.
    """
    found: Prices = {}
    for meter in meters:
        if "Windows" in meter["productName"] or meter["type"] != "Consumption" or "Low Priority" in meter["skuName"]:
            continue
        tier = "spot" if "Spot" in meter["skuName"] else "dedicated"
        entry = found.setdefault(meter["armSkuName"], {})
        entry[tier] = min(entry.get(tier, float("inf")), float(meter["retailPrice"]))
    return found


def _meters(names: list[str], region: str) -> Iterator[dict[str, Any]]:
    wanted = " or ".join(f"armSkuName eq '{name}'" for name in names)
    query = f"serviceName eq 'Virtual Machines' and armRegionName eq '{region}' and ({wanted})"
    page: str | None = f"{SERVICE}?$filter={quote(query)}"
    while page:
        # the link to the next page comes from the reply, which must not send this machine to any other address
        if urlsplit(page)[:2] != urlsplit(SERVICE)[:2]:
            raise ServiceError(
                "cannot read the prices: the service refers to another host", facts={"where": urlsplit(page).netloc}
            )
        answer = _get(page)
        yield from answer["Items"]
        page = answer.get("NextPageLink")


def _get(page: str) -> dict[str, Any]:
    from urllib.request import build_opener

    try:  # not urlopen, which keeps the proxies of the process's first request
        with build_opener().open(page, timeout=SECONDS) as reply:
            return dict(json.load(reply))
    except (OSError, ValueError) as problem:
        raise ServiceError(
            "cannot read the prices: Azure's price service does not answer",
            facts={"where": SERVICE, "reason": problem},
            fix="orchestrator skus (with the prices of the table)",
        ) from problem
