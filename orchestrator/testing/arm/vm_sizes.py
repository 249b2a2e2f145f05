"""Sizes of machines that the double's region has: three with CPUs, and those with GPUs that one trains on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VmSize:
    """One size of machine."""

    name: str
    family: str
    cores: int
    memory: float
    """GiB."""
    gpus: int = 0
    price: float = 1.0
    """US dollars an hour, dedicated: a figure to test with, whatever Azure asks today."""


_ALL = (
    VmSize("Standard_DS3_v2", "standardDSv2Family", 4, 14, price=0.23),
    VmSize("Standard_D16s_v5", "standardDSv5Family", 16, 64, price=0.77),
    VmSize("Standard_F32s_v2", "standardFSv2Family", 32, 64, price=1.35),
    VmSize("Standard_NC4as_T4_v3", "standardNCASv3_T4Family", 4, 28, 1, 0.526),
    VmSize("Standard_NC24ads_A100_v4", "StandardNCADSA100v4Family", 24, 220, 1, 3.673),
    VmSize("Standard_NC48ads_A100_v4", "StandardNCADSA100v4Family", 48, 440, 2, 7.346),
    VmSize("Standard_NC96ads_A100_v4", "StandardNCADSA100v4Family", 96, 880, 4, 14.692),
    VmSize("Standard_NC40ads_H100_v5", "standardNCADSH100v5Family", 40, 320, 1, 6.98),
    VmSize("Standard_NC80adis_H100_v5", "standardNCADSH100v5Family", 80, 640, 2, 13.96),
    VmSize("Standard_ND40rs_v2", "standardNDSv2Family", 40, 672, 8, 22.032),
    VmSize("Standard_ND96asr_v4", "standardNDASv4_A100Family", 96, 900, 8, 27.197),
    VmSize("Standard_ND96amsr_A100_v4", "standardNDAMSv4_A100Family", 96, 1900, 8, 32.77),
    VmSize("Standard_ND96isr_H100_v5", "standardNDSH100v5Family", 96, 1900, 8, 98.32),
    VmSize("Standard_ND96isr_H200_v5", "standardNDSH200v5Family", 96, 1850, 8, 110.24),
)
SIZES = {size.name.lower(): size for size in _ALL}
