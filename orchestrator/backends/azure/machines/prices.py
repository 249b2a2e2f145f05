"""Today's prices, from Azure's public price service, which asks for no sign-in; kept with their date."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

from orchestrator.support.errors import ServiceError, UsageError
from train_jobs.artifacts.files import write_text

PRICES_FILE = Path("cache", "azure-prices.json")  # below the home folder
SERVICE = "https://prices.azure.com/api/retail/prices"
SECONDS = 30.0
MOST_NAMES = 8  # in one question: the service refuses long filters

Prices = dict[str, dict[str, Any]]


def read_prices(home: Path) -> Prices:
    """Prices as they were last refreshed: size -> {dedicated, low_priority, region, date}; empty if they never were."""
    try:
        found: Prices = json.loads((home / PRICES_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def refresh_prices(home: Path, names: Iterable[str], region: str) -> Prices:
    """Asks the service for the prices of sizes and keeps the answer; sizes that it does not know keep what they had.

    Raises:
        UsageError: the region is no name of one.
        ServiceError: the service cannot be reached, or its answer is none.
    """
    if not re.fullmatch(r"[a-z0-9]+", region):
        raise UsageError(f"--region {region}: not the name of a region", fix="--region eastus")
    listed = sorted(names)
    found = read_prices(home)
    date = time.strftime("%Y-%m-%d")
    for start in range(0, len(listed), MOST_NAMES):
        for name, prices in _by_size(_items(listed[start : start + MOST_NAMES], region)).items():
            found[name] = {**prices, "region": region, "date": date}
    path = home / PRICES_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(found, indent=1))
    return found


def _by_size(items: Iterable[Mapping[str, Any]]) -> Prices:
    """Of the service's many meters the cheapest of each tier; a cluster is neither Windows nor spot."""
    found: Prices = {}
    for item in items:
        if "Windows" in item["productName"] or item["type"] != "Consumption" or "Spot" in item["skuName"]:
            continue
        tier = "low_priority" if "Low Priority" in item["skuName"] else "dedicated"
        entry = found.setdefault(item["armSkuName"], {})
        entry[tier] = min(entry.get(tier, float("inf")), float(item["retailPrice"]))
    return found


def _items(names: list[str], region: str) -> Iterator[dict[str, Any]]:
    wanted = " or ".join(f"armSkuName eq '{name}'" for name in names)
    question = f"serviceName eq 'Virtual Machines' and armRegionName eq '{region}' and ({wanted})"
    page: str | None = f"{SERVICE}?$filter={quote(question)}"
    while page:
        if urlsplit(page)[:2] != urlsplit(SERVICE)[:2]:
            raise ServiceError("the price service refers to another host", facts={"where": urlsplit(page).netloc})
        answer = _ask(page)
        yield from answer["Items"]
        page = answer.get("NextPageLink")


def _ask(page: str) -> dict[str, Any]:
    try:
        with urlopen(page, timeout=SECONDS) as reply:
            answer: dict[str, Any] = json.load(reply)
    except (URLError, OSError, ValueError) as problem:
        raise ServiceError(
            "Azure's price service does not answer",
            facts={"where": SERVICE, "says": problem},
            fix="orchestrator skus (with the prices of the table)",
        ) from problem
    return answer
