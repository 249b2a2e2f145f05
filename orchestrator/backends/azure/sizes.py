"""Azure's machine sizes: their hardware and prices, the retired ones, and those that have `H100:8`.

Prices are list prices, pay as you go, Linux, East US, in USD an hour, and carry their date. `skus --refresh` replaces
them by those of Azure's public price service, which needs no sign-in. Sources: the Azure catalogue of SkyPilot (v6) for
the prices, Azure's documentation of the sizes for cores, memory and InfiniBand.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from orchestrator.backends.azure.places import read_cache, write_cache
from orchestrator.support.errors import ServiceError, SpecError, UsageError
from train_jobs.config.errors import did_you_mean

PRICES_DATED = "2025-01"
PRICES_REGION = "eastus"
PRICES_FILE = Path("cache", "azure-prices.json")  # below the home folder
SERVICE = "https://prices.azure.com/api/retail/prices"
SECONDS = 30.0  # time limit of one request to the price service
MAX_NAMES = 8  # in one request: the service refuses long filters

Prices = dict[str, dict[str, Any]]
"""Size -> {dedicated, low_priority, region, date}."""


class Size(NamedTuple):
    """One machine size."""

    name: str
    """Azure's name."""
    family: str
    """Family that its quota is counted under; Azure's services write it in several ways, see `same_family`."""
    cores: int
    """Virtual cores, in which quotas are counted."""
    memory_gb: int
    """Memory of the machine."""
    gpu: str | None
    """Model of its GPUs; None: it has none."""
    gpus: int
    """Number of GPUs."""
    gpu_memory_gb: int
    """Memory of each GPU."""
    infiniband_gbps: int
    """Bandwidth of the whole machine; 0: no InfiniBand."""
    price: float | None
    """USD an hour, dedicated; None: unknown."""
    legacy: bool = False
    """Still offered, but not to be chosen for something new."""

    def row(self, prices: Prices) -> dict[str, Any]:
        """Return the size as a document with its prices, see `price_of_size`."""
        price = price_of_size(self, low_priority=False, refreshed=prices)
        low = price_of_size(self, low_priority=True, refreshed=prices)
        return {
            **self._asdict(),
            "price": price.usd if price else None,
            "price_date": price.date if price else None,
            "price_region": price.region if price else None,
            "low_priority_price": low.usd if low and not low.bound else None,
        }


class Price(NamedTuple):
    """Price of one machine."""

    usd: float
    """USD an hour."""
    date: str
    """Date of the price."""
    region: str
    """Azure's name of the region."""
    bound: bool = False
    """True: an upper bound. The table has no low-priority prices; they are about a fifth."""


_T4, _A100, _H100NC = "Standard NCASv3_T4 Family", "Standard NCADS_A100_v4 Family", "Standard NCadsH100v5 Family"

_TABLE: tuple[tuple[Any, ...], ...] = (
    ("Standard_NC4as_T4_v3", _T4, 4, 28, "T4", 1, 16, 0, 0.526),
    ("Standard_NC8as_T4_v3", _T4, 8, 56, "T4", 1, 16, 0, 0.752),
    ("Standard_NC16as_T4_v3", _T4, 16, 110, "T4", 1, 16, 0, 1.204),
    ("Standard_NC64as_T4_v3", _T4, 64, 440, "T4", 4, 16, 0, 4.352),
    ("Standard_NC24ads_A100_v4", _A100, 24, 220, "A100", 1, 80, 0, 3.673),
    ("Standard_NC48ads_A100_v4", _A100, 48, 440, "A100", 2, 80, 0, 7.346),
    ("Standard_NC96ads_A100_v4", _A100, 96, 880, "A100", 4, 80, 0, 14.692),
    ("Standard_NC40ads_H100_v5", _H100NC, 40, 320, "H100", 1, 94, 0, 6.98),
    ("Standard_NC80adis_H100_v5", _H100NC, 80, 640, "H100", 2, 94, 0, 13.96),
    ("Standard_ND40rs_v2", "Standard NDSv2 Family", 40, 672, "V100", 8, 32, 100, 22.032, True),
    ("Standard_ND96asr_v4", "Standard NDASv4_A100 Family", 96, 900, "A100", 8, 40, 1600, 27.197),
    ("Standard_ND96amsr_A100_v4", "Standard NDAMSv4_A100 Family", 96, 1800, "A100", 8, 80, 1600, 32.77),
    ("Standard_ND96isr_H100_v5", "Standard NDSH100v5 Family", 96, 1900, "H100", 8, 80, 3200, 98.32),
    ("Standard_ND96isr_H200_v5", "Standard NDSH200v5 Family", 96, 1850, "H200", 8, 141, 3200, None),
    ("Standard_DS3_v2", "Standard DSv2 Family", 4, 14, None, 0, 0, 0, 0.229),
    ("Standard_D16s_v5", "Standard DSv5 Family", 16, 64, None, 0, 0, 0, 0.768),
    ("Standard_F32s_v2", "Standard FSv2 Family", 32, 64, None, 0, 0, 0, 1.353),
)
SIZES = tuple(Size(*row) for row in _TABLE)

# Retired sizes: pattern of their names, since when, replacement.
_RETIRED: tuple[tuple[str, str, str], ...] = (
    (r"standard_nc(6|12|24r?)s_v3", "30 September 2025", "Standard_NC24ads_A100_v4"),
    (r"standard_nc(6|12|24r?)(s_v2)?", "31 August 2023", "Standard_NC4as_T4_v3"),
    (r"standard_nd(6|12|24r?)s", "31 August 2023", "Standard_NC4as_T4_v3"),
    (r"standard_nv(6|12|24)(s_v2)?", "6 September 2023", "Standard_NC4as_T4_v3"),
)
# GPUs that torch of our environments has no code for, and the replacements: for one GPU, for several.
_TOO_OLD = {"V100": ("Standard_NC24ads_A100_v4", "Standard_ND96asr_v4")}
_BY_NAME = {size.name.lower(): size for size in SIZES}


def find_size(name: str | None, *, where: str = "compute.sku") -> Size | None:
    """Return the size of that name, in any case of letters.

    Args:
        name: Azure's name; None: no size is given.
        where: the key or flag that named it, for messages.

    Returns:
        The size; None: no name is given, or a valid name that the table does not have.

    Raises:
        SpecError: the size is retired, or the name cannot be one of Azure's.
    """
    if name is None:
        return None
    # many tutorials still name retired sizes: refuse them here with a replacement, before anything is created
    for pattern, since, instead in _RETIRED:
        if re.fullmatch(pattern, name, re.IGNORECASE):
            raise SpecError(
                f"cannot use {name}: Azure retired it on {since}",
                facts={"key": where, "instead": instead},
                fix=f"--sku {instead}",
            )
    if (found := _BY_NAME.get(name.lower())) is not None:
        return found
    if not re.fullmatch(r"Standard_[A-Z]+\d+[A-Za-z0-9]*(_[A-Za-z0-9]+)*", name):
        raise SpecError(
            f"unknown machine size {name!r}{did_you_mean(name, [size.name for size in SIZES])}",
            facts={"key": where},
            fix="orchestrator skus",
        )
    return None


def check_runs_torch(size: Size) -> None:
    """Check that the torch of our own environments can use the GPUs of a size.

    Raises:
        SpecError: torch has no code for them, and the job would fail on its first kernel, after the queue.
    """
    if size.gpu in _TOO_OLD:
        raise SpecError(
            f"{size.name} has {size.gpu} GPUs, which the environment's torch cannot use",
            facts={
                "reason": f"it is built for CUDA 13, which has no code for a {size.gpu}",
                "or": "--set azure.environment=azureml:NAME:VERSION, with a torch for CUDA 12.6",
            },
            fix=f"--sku {_TOO_OLD[size.gpu][size.gpus > 1]}",
        )


def parse_gpus(text: str) -> tuple[str, int]:
    """Return model and count of GPUs on one machine from `H100:8`; `H100` alone means one.

    Raises:
        UsageError: not of that form, or no size has GPUs of that model.
    """
    model, _, count = text.partition(":")
    known = sorted({size.gpu for size in SIZES if size.gpu})
    if model.upper() not in known:
        raise UsageError(
            f"unknown GPU {model!r} in --gpus{did_you_mean(model.upper(), known)}",
            facts={"known": ", ".join(known)},
            fix="--gpus H100:8",
        )
    if count and not (count.isdecimal() and int(count)):
        raise UsageError(f"invalid --gpus {text!r}: not of the form MODEL:COUNT", fix=f"--gpus {model}:8")
    return model.upper(), int(count or 1)


def sizes_with(gpu: str, count: int) -> list[Size]:
    """Return the sizes with at least `count` GPUs of a model, the smallest and cheapest first; legacy ones last."""
    return sorted(
        (size for size in SIZES if size.gpu == gpu and size.gpus >= count),
        key=lambda size: (size.legacy, size.gpus, size.price is None, size.price or 0.0),
    )


def same_family(one: str, other: str) -> bool:
    """Return whether two names mean the same quota: `Standard NCASv3_T4 Family vCPUs` and `standardNCASv3_T4Family`."""
    # Azure's services write a family with and without spaces, and with endings such as `Cluster Dedicated vCPUs`
    letters = [re.sub(r"[^a-z0-9]", "", family.lower()) for family in (one, other)]
    return len({re.sub(r"(cluster)?(dedicated)?vcpus$", "", family) for family in letters}) == 1


def price_of_size(size: Size, *, low_priority: bool, refreshed: Mapping[str, Mapping[str, object]]) -> Price | None:
    """Return the price of a machine in USD an hour; None: it is unknown.

    Args:
        size: of the machine.
        low_priority: whether Azure may evict it. Without such a price, the dedicated one is an upper bound.
        refreshed: prices of the last refresh, see `read_prices`; the table is used for sizes that it does not have.
    """
    entry = refreshed.get(size.name, {})
    for key, bound in (("low_priority", False), ("dedicated", True)) if low_priority else (("dedicated", False),):
        usd = entry.get(key)
        if isinstance(usd, float | int):
            return Price(float(usd), str(entry["date"]), str(entry["region"]), bound)
    return None if size.price is None else Price(size.price, PRICES_DATED, PRICES_REGION, low_priority)


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
            found[name] = {**prices, "region": region, "date": time.strftime("%Y-%m-%d")}
    write_cache(home / PRICES_FILE, found)
    return found


def _by_size(meters: Iterable[Mapping[str, Any]]) -> Prices:
    """Return the cheapest of the service's many meters for each tier; a cluster is neither Windows nor spot."""
    found: Prices = {}
    for meter in meters:
        if "Windows" in meter["productName"] or meter["type"] != "Consumption" or "Spot" in meter["skuName"]:
            continue
        tier = "low_priority" if "Low Priority" in meter["skuName"] else "dedicated"
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
    from urllib.request import urlopen

    try:
        with urlopen(page, timeout=SECONDS) as reply:
            return dict(json.load(reply))
    except (OSError, ValueError) as problem:
        raise ServiceError(
            "cannot read the prices: Azure's price service does not answer",
            facts={"where": SERVICE, "reason": problem},
            fix="orchestrator skus (with the prices of the table)",
        ) from problem
