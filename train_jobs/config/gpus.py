"""GPUs by their data sheets: what utilisation is measured against, and what a plan reckons with."""

from __future__ import annotations

import re

# Dense matrix products, FLOP/s: (16 bit summed in fp32, fp32 without TF32), by words of the name that CUDA gives, the
# first that fit; from NVIDIA's data sheets.
_PEAKS = {
    "H200": (989e12, 67e12),
    "H100 PCIe": (756e12, 51e12),
    "H100 NVL": (835e12, 60e12),
    "H100": (989e12, 67e12),
    "A100": (312e12, 19.5e12),
    "A10": (125e12, 31.2e12),
    "L40S": (362e12, 91.6e12),
    "L40": (181e12, 90.5e12),
    "L4": (121e12, 30.3e12),
    "RTX A6000": (154.8e12, 38.7e12),
    "V100": (125e12, 15.7e12),
    "T4": (65e12, 8.1e12),
}
# Their names go on with what makes another card of them (`Ti`, `D`, `Laptop GPU`), so the whole name counts.
_CARDS = {
    "NVIDIA GeForce RTX 3090": (71e12, 35.6e12),
    "NVIDIA GeForce RTX 4090": (165.2e12, 82.6e12),
}


def data_sheet(name: str) -> tuple[float, float] | None:
    """Peaks of a GPU in 16 bit and in fp32, FLOP/s; whole words count: an L40S is no L40, and an A10G no A10."""
    known = gpu_model(name)
    return _CARDS.get(name) or (_PEAKS[known] if known else None)


def gpu_model(name: str) -> str | None:
    """What a GPU of that full name is called for short, `A100` or `H100 NVL`; None for one that is not known."""
    words = set(re.split(r"[\s-]+", name))
    return next((known for known in _PEAKS if words.issuperset(known.split())), None)
