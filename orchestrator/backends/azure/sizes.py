"""Azure's machine sizes: their hardware, the retired ones, and those that have `H100:8`.

The shipped sizes are in `data/sizes.json`. `skus --refresh` adds those that the workspace's region offers, as Azure
lists them: with cores, memory and number of GPUs, but without the model of the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.backends.azure.catalogue import shipped_facts, today
from orchestrator.backends.azure.places import read_cache, write_cache
from orchestrator.support.errors import SpecError, UsageError
from train_jobs.config.errors import did_you_mean

SIZES_FILE = Path("cache", "azure-sizes.json")  # below the home folder


class Size(NamedTuple):
    """One machine size."""

    name: str
    """Azure's name."""
    family: str
    """Family that its quota is counted under, see `same_family`; empty: unknown."""
    cores: int
    """Virtual cores, in which quotas are counted."""
    memory_gb: int
    """Memory of the machine."""
    gpu: str | None
    """Model of its GPUs; None: it has none, or Azure's list of sizes alone names it."""
    gpus: int
    """Number of GPUs."""
    gpu_memory_gb: int
    """Memory of each GPU; 0: unknown, or no GPU."""
    infiniband_gbps: int
    """Bandwidth of the whole machine; 0: no InfiniBand."""
    legacy: bool = False
    """Still offered, but not to be chosen for something new."""


SIZES = tuple(Size(**row) for row in shipped_facts("sizes").items)

# GPUs that our own environments cannot use, the reason, and the replacements: for one GPU, for several.
_UNUSABLE = {
    "V100": (
        "is built for CUDA 13, which has no code for a V100",
        "a torch for CUDA 12.6",
        ("Standard_NC24ads_A100_v4", "Standard_ND96asr_v4"),
    ),
    "MI300X": (
        "is built for CUDA, and an MI300X needs ROCm",
        "a torch for ROCm",
        ("Standard_NC40ads_H100_v5", "Standard_ND96isr_H200_v5"),
    ),
    **dict.fromkeys(
        ("GB200", "GB300"),
        (
            "is built for x86-64, and these machines have Arm processors",
            "an image for Arm",
            ("Standard_NC40ads_H100_v5", "Standard_ND96isr_H200_v5"),
        ),
    ),
}
_BY_NAME = {size.name.lower(): size for size in SIZES}


class Retirement(NamedTuple):
    """End of a series of sizes."""

    pattern: str
    """Pattern of their names, in lower case."""
    date: str
    """Day of the retirement, YYYY-MM-DD."""
    instead: str
    """Size to use instead."""

    @property
    def day(self) -> str:
        """The date as text: 30 September 2025."""
        found = date.fromisoformat(self.date)
        return f"{found.day} {found:%B %Y}"


def retirement_of(name: str) -> Retirement | None:
    """Return the announced or past retirement of a size; None: none is known."""
    found = (Retirement(**row) for row in shipped_facts("retirements").items)
    return next((one for one in found if re.fullmatch(one.pattern, name, re.IGNORECASE)), None)


def find_size(
    name: str | None, *, where: str = "compute.sku", refreshed: Mapping[str, Mapping[str, Any]] | None = None
) -> Size | None:
    """Return the size of that name, in any case of letters.

    Args:
        name: Azure's name; None: no size is given.
        where: the key or flag that named it, for messages.
        refreshed: sizes of the last refresh, see `read_sizes`; None: only the shipped ones are known.

    Returns:
        The size; None: no name is given, or a valid name of an unknown size.

    Raises:
        SpecError: the size is retired, or the name cannot be one of Azure's.
    """
    if name is None:
        return None
    # many tutorials still name retired sizes: refuse them here with a replacement, before anything is created
    ended = retirement_of(name)
    if ended is not None and date.fromisoformat(ended.date) <= today():
        raise SpecError(
            f"cannot use {name}: Azure retired it on {ended.day}",
            facts={"key": where, "instead": ended.instead},
            fix=f"--sku {ended.instead}",
        )
    if (found := _BY_NAME.get(name.lower())) is not None:
        return found
    if (row := {key.lower(): row for key, row in (refreshed or {}).items()}.get(name.lower())) is not None:
        return Size(**row["size"])
    # Azure returns the sizes of clusters in capitals; some names have a number of cores after a hyphen
    if not re.fullmatch(r"Standard_[A-Z]+\d+[\w-]*", name, re.IGNORECASE | re.ASCII):
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
    if size.gpu in _UNUSABLE:
        reason, need, instead = _UNUSABLE[size.gpu]
        raise SpecError(
            f"{size.name} has {size.gpu} GPUs, which the environment's torch cannot use",
            facts={"reason": f"it {reason}", "or": f"--set azure.environment=azureml:NAME:VERSION, with {need}"},
            fix=f"--sku {instead[size.gpus > 1]}",
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
        key=lambda size: (size.legacy, size.gpus, listed_price(size) is None, listed_price(size) or 0.0),
    )


def listed_price(size: Size) -> float | None:
    """Return the shipped price of a size in USD an hour; None: unknown."""
    usd = shipped_facts("prices").items.get(size.name, {}).get("dedicated")
    return None if usd is None else float(usd)


def same_family(one: str, other: str) -> bool:
    """Return whether two names mean the same quota: `Standard NCASv3_T4 Family vCPUs` and `standardNCASv3_T4Family`."""
    # Azure's services write a family with and without spaces, and with endings such as `Cluster Dedicated vCPUs`
    letters = [re.sub(r"[^a-z0-9]", "", family.lower()) for family in (one, other)]
    return len({re.sub(r"(cluster)?(dedicated)?vcpus$", "", family) for family in letters}) == 1


def read_sizes(home: Path) -> dict[str, dict[str, Any]]:
    """Return the sizes of the last refresh by name: {size, region, date, spot}; empty if there was none."""
    return read_cache(home / SIZES_FILE)


def all_sizes(home: Path) -> list[Size]:
    """Return the shipped sizes, and the listed ones with GPUs that are not shipped."""
    listed = (Size(**row["size"]) for name, row in read_sizes(home).items() if name.lower() not in _BY_NAME)
    return [*SIZES, *(size for size in listed if size.gpus)]


def store_sizes(home: Path, rows: Iterable[Mapping[str, Any]], region: str) -> int:
    """Store the sizes that Azure lists for a region; return their number.

    Sizes that are not listed any more keep their last entry, because other regions may have them.

    Args:
        home: the user's orchestrator folder.
        rows: Azure's rows: name, family, vCPUs, gpus, memoryGB, lowPriorityCapable.
        region: Azure's name of the region.
    """
    found, number = read_sizes(home), 0
    for row in rows:
        name = str(row["name"])
        unknown = Size(name, "", 0, 0, None, 0, 0, 0)
        size = _BY_NAME.get(name.lower(), unknown)._replace(
            family=str(row.get("family") or ""),
            cores=int(row["vCPUs"]),
            memory_gb=int(row["memoryGB"]),
            gpus=int(row.get("gpus") or 0),
        )
        spot = bool(row.get("lowPriorityCapable"))
        found[size.name] = {"size": size._asdict(), "spot": spot, "region": region, "date": today().isoformat()}
        number += 1
    write_cache(home / SIZES_FILE, found)
    return number
