"""Azure's machine sizes: what each has and costs, which are retired, and which fit a wish such as `H100:8`.

Prices are list prices, pay as you go, Linux, East US, in USD an hour, and carry their date; `skus --refresh` replaces
them with what Azure's price service says today. Sources: the Azure catalogue of SkyPilot (v6) for the prices, Azure's
documentation of the sizes for cores, memory and InfiniBand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from orchestrator.support.errors import SpecError, UsageError
from train_jobs.config.names import did_you_mean

PRICES_DATED = "2025-01"
PRICES_REGION = "eastus"


class Size(NamedTuple):
    """One machine size."""

    name: str
    """As Azure calls it."""
    family: str
    """What its quota is counted under; Azure's services differ in case and spaces, see `same_family`."""
    cores: int
    """Virtual cores, in which quotas are counted."""
    memory_gb: int
    """Of the machine."""
    gpu: str | None
    """Model; None: it has none."""
    gpus: int
    """How many."""
    gpu_memory_gb: int
    """Of each."""
    infiniband_gbps: int
    """Of the whole machine; 0: none."""
    price: float | None
    """USD an hour, dedicated; None: not known."""
    legacy: bool = False
    """Still there, but not to be chosen for something new."""

    def row(self, prices: Mapping[str, Mapping[str, object]]) -> dict[str, Any]:
        """Return the size as a document, with its prices: by `prices` (see `prices.read_prices`), else by the table."""
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
    """What one machine costs."""

    usd: float
    """An hour."""
    date: str
    """When it was looked up."""
    region: str
    """Azure's name of it."""
    bound: bool = False
    """True: it costs at most that much. The table has no low-priority prices; they are about a fifth."""


_T4, _A100, _H100NC = "Standard NCASv3_T4 Family", "Standard NCADS_A100_v4 Family", "Standard NCadsH100v5 Family"

SIZES: tuple[Size, ...] = (
    Size("Standard_NC4as_T4_v3", _T4, 4, 28, "T4", 1, 16, 0, 0.526),
    Size("Standard_NC8as_T4_v3", _T4, 8, 56, "T4", 1, 16, 0, 0.752),
    Size("Standard_NC16as_T4_v3", _T4, 16, 110, "T4", 1, 16, 0, 1.204),
    Size("Standard_NC64as_T4_v3", _T4, 64, 440, "T4", 4, 16, 0, 4.352),
    Size("Standard_NC24ads_A100_v4", _A100, 24, 220, "A100", 1, 80, 0, 3.673),
    Size("Standard_NC48ads_A100_v4", _A100, 48, 440, "A100", 2, 80, 0, 7.346),
    Size("Standard_NC96ads_A100_v4", _A100, 96, 880, "A100", 4, 80, 0, 14.692),
    Size("Standard_NC40ads_H100_v5", _H100NC, 40, 320, "H100", 1, 94, 0, 6.98),
    Size("Standard_NC80adis_H100_v5", _H100NC, 80, 640, "H100", 2, 94, 0, 13.96),
    Size("Standard_ND40rs_v2", "Standard NDSv2 Family", 40, 672, "V100", 8, 32, 100, 22.032, legacy=True),
    Size("Standard_ND96asr_v4", "Standard NDASv4_A100 Family", 96, 900, "A100", 8, 40, 1600, 27.197),
    Size("Standard_ND96amsr_A100_v4", "Standard NDAMSv4_A100 Family", 96, 1800, "A100", 8, 80, 1600, 32.77),
    Size("Standard_ND96isr_H100_v5", "Standard NDSH100v5 Family", 96, 1900, "H100", 8, 80, 3200, 98.32),
    Size("Standard_ND96isr_H200_v5", "Standard NDSH200v5 Family", 96, 1850, "H200", 8, 141, 3200, None),
    Size("Standard_DS3_v2", "Standard DSv2 Family", 4, 14, None, 0, 0, 0, 0.229),
    Size("Standard_D16s_v5", "Standard DSv5 Family", 16, 64, None, 0, 0, 0, 0.768),
    Size("Standard_F32s_v2", "Standard FSv2 Family", 32, 64, None, 0, 0, 0, 1.353),
)

# Retired sizes: what they are called, since when, what to take in their place.
_RETIRED: tuple[tuple[str, str, str], ...] = (
    (r"standard_nc(6|12|24r?)s_v3", "30 September 2025", "Standard_NC24ads_A100_v4"),
    (r"standard_nc(6|12|24r?)(s_v2)?", "31 August 2023", "Standard_NC4as_T4_v3"),
    (r"standard_nd(6|12|24r?)s", "31 August 2023", "Standard_NC4as_T4_v3"),
    (r"standard_nv(6|12|24)(s_v2)?", "6 September 2023", "Standard_NC4as_T4_v3"),
)
# GPUs that torch of our environments has no code for, and what to take in their place: of one GPU, of several.
_TOO_OLD = {"V100": ("Standard_NC24ads_A100_v4", "Standard_ND96asr_v4")}
_BY_NAME = {size.name.lower(): size for size in SIZES}


def find_size(name: str, *, where: str = "compute.sku") -> Size | None:
    """The size of that name, in any case of letters; None for one that the table does not have.

    Raises:
        SpecError: it is retired, or looks like a slip of a name that the table has.
    """
    for pattern, since, instead in _RETIRED:
        if re.fullmatch(pattern, name, re.IGNORECASE):
            raise SpecError(
                f"{name} was retired by Azure on {since}",
                facts={"key": where, "instead": instead},
                fix=f"--sku {instead}",
            )
    if (found := _BY_NAME.get(name.lower())) is not None:
        return found
    if not re.fullmatch(r"Standard_[A-Z]+\d+[A-Za-z0-9]*(_[A-Za-z0-9]+)*", name):
        raise SpecError(
            f"{name} is no name of a machine size{did_you_mean(name, [size.name for size in SIZES])}",
            facts={"key": where},
            fix="orchestrator skus",
        )
    return None


def check_runs_torch(size: Size) -> None:
    """Raises SpecError for a size on whose GPUs our own environments run nothing."""
    if size.gpu in _TOO_OLD:
        instead = _TOO_OLD[size.gpu][size.gpus > 1]
        raise SpecError(
            f"{size.name} has {size.gpu} GPUs, which the environment's torch cannot use",
            facts={
                "why": f"it is built for CUDA 13, which has no code for a {size.gpu}",
                "or": "--set azure.environment=azureml:NAME:VERSION, with a torch for CUDA 12.6",
            },
            fix=f"--sku {instead}",
        )


def parse_gpus(text: str) -> tuple[str, int]:
    """`H100:8` as model and count on one machine; `H100` alone is one.

    Raises:
        UsageError: not of that form, or a model that no size has.
    """
    model, _, count = text.partition(":")
    known = sorted({size.gpu for size in SIZES if size.gpu})
    if model.upper() not in known:
        raise UsageError(
            f"--gpus {text}: no size has GPUs of that model{did_you_mean(model.upper(), known)}",
            facts={"known": ", ".join(known)},
            fix="--gpus H100:8",
        )
    if count and not (count.isdecimal() and int(count)):
        raise UsageError(f"--gpus {text}: not of the form MODEL:COUNT", fix=f"--gpus {model}:8")
    return model.upper(), int(count or 1)


def sizes_with(gpu: str, count: int) -> list[Size]:
    """Sizes with at least so many GPUs of that model, the smallest and cheapest first; legacy ones last."""
    found = [size for size in SIZES if size.gpu == gpu and size.gpus >= count]
    return sorted(found, key=lambda size: (size.legacy, size.gpus, size.price is None, size.price or 0.0))


def same_family(one: str, other: str) -> bool:
    """Whether two names mean the same quota: `Standard NCASv3_T4 Family vCPUs` and `standardNCASv3_T4Family` do."""
    return _plain(one) == _plain(other)


def _plain(family: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", family.lower())
    return re.sub(r"(cluster)?(dedicated)?vcpus$", "", plain)


def price_of_size(size: Size, *, low_priority: bool, refreshed: Mapping[str, Mapping[str, object]]) -> Price | None:
    """What a machine costs: by `refreshed` (see `prices.read_prices`) where that has it, else by the table."""
    entry = refreshed.get(size.name, {})
    for key, bound in (("low_priority", False), ("dedicated", True)) if low_priority else (("dedicated", False),):
        usd = entry.get(key)
        if isinstance(usd, float | int):
            return Price(float(usd), str(entry["date"]), str(entry["region"]), bound)
    return None if size.price is None else Price(size.price, PRICES_DATED, PRICES_REGION, low_priority)


def fitting(sizes: Iterable[Size], cores: float, nodes: int) -> list[Size]:
    """Of some sizes those of which `nodes` machines need no more than so many cores."""
    return [size for size in sizes if size.cores * nodes <= cores]
