"""Machine sizes: selection by GPUs, retired sizes, sizes that Azure lists."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from orchestrator.backends.azure import sizes
from orchestrator.backends.azure.sizes import (
    SIZES,
    check_runs_torch,
    find_size,
    parse_gpus,
    read_sizes,
    retirement_of,
    same_family,
    sizes_with,
    store_sizes,
)
from orchestrator.support.errors import SpecError, UsageError

T4 = "Standard_NC4as_T4_v3"


def test_tables_of_sizes_are_consistent() -> None:
    assert len({size.name.lower() for size in SIZES}) == len(SIZES)
    for size in SIZES:
        assert (size.gpu is None) == (size.gpus == 0) == (size.gpu_memory_gb == 0), size
        assert find_size(size.name.upper()) == size


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("Standard_NC6", T4),
        ("STANDARD_NC24RS_V3", "Standard_NC24ads_A100_v4"),
        ("Standard_NC6s_v3", "Standard_NC24ads_A100_v4"),
        ("Standard_NC12s_v2", T4),
        ("Standard_ND24rs", T4),
        ("Standard_NV12", T4),
        ("Standard_NV12s_v3", "Standard_NV36ads_A10_v5"),
        ("Standard_NV4as_v4", "Standard_NV36ads_A10_v5"),
        ("Standard_NV8ahs_v4", "Standard_NV36ads_A10_v5"),
    ],
)
def test_retired_size_is_refused_with_a_replacement(name: str, instead: str) -> None:
    with pytest.raises(SpecError, match="Azure retired it on") as failure:
        find_size(name)
    assert failure.value.facts["instead"] == instead
    assert find_size(instead) is not None


def test_unknown_size_accepted_typo_refused() -> None:
    for name in ("Standard_E8s_v5", "STANDARD_D4DS_V4", "standard_d4ds_v4", "Standard_E16-4s_v5"):
        assert find_size(name) is None
    with pytest.raises(SpecError, match="did you mean"):
        find_size("NC4as_T4_v3")


def test_sizes_with_enough_gpus_are_found() -> None:
    assert parse_gpus("h100:8") == ("H100", 8)
    assert parse_gpus("T4") == ("T4", 1)
    assert [size.name for size in sizes_with("H100", 2)] == ["Standard_NC80adis_H100_v5", "Standard_ND96isr_H100_v5"]
    assert [size.name for size in sizes_with("A100", 8)] == ["Standard_ND96asr_v4", "Standard_ND96amsr_A100_v4"]
    assert sizes_with("H100", 9) == []
    for wrong in ("B100", "H100:0", "H100:many", ":8"):
        with pytest.raises(UsageError):
            parse_gpus(wrong)


def test_quota_names_match_across_services() -> None:
    assert same_family("Standard NCASv3_T4 Family", "standardNCASv3_T4Family")
    assert same_family("Standard NCASv3_T4 Family", "Standard NCASv3_T4 Family Cluster Dedicated vCPUs")
    assert same_family("Standard NDSH100v5 Family", "standardNDSH100v5Family vCPUs")
    assert not same_family("Standard NDASv4_A100 Family", "Standard NDAMSv4_A100 Family")


def test_retirement_is_refused_from_its_day_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {
        name: getattr(retirement_of(name), "day", None) for name in ("Standard_NC24rs_v3", "Standard_NC24s_v3")
    } == {
        "Standard_NC24rs_v3": "31 March 2025",
        "Standard_NC24s_v3": "30 September 2025",
    }
    monkeypatch.setattr(sizes, "today", lambda: date(2026, 9, 29))
    assert find_size("Standard_NV12s_v3") is None
    monkeypatch.setattr(sizes, "today", lambda: date(2026, 9, 30))
    with pytest.raises(SpecError, match="retired it on 30 September 2026"):
        find_size("Standard_NV12s_v3")


@pytest.mark.parametrize("name", ["Standard_ND96isr_MI300X_v5", "Standard_ND128isr_NDR_GB200_v6", "Standard_ND40rs_v2"])
def test_gpus_that_torch_cannot_use_are_refused(name: str) -> None:
    size = find_size(name)
    assert size is not None
    with pytest.raises(SpecError, match="torch cannot use") as failure:
        check_runs_torch(size)
    instead = find_size(str(failure.value.fix).removeprefix("--sku "))
    assert instead is not None
    check_runs_torch(instead)


def test_listed_sizes_become_known(tmp_path: Path) -> None:
    rows = [
        {"name": "Standard_E8s_v5", "family": "standardESv5Family", "vCPUs": 8, "memoryGB": 64.0, "gpus": 0},
        {"name": T4, "family": "standardNCASv3_T4Family", "vCPUs": 4, "memoryGB": 27.0, "gpus": 1},
    ]
    assert store_sizes(tmp_path, rows, "westus") == 2
    found = find_size("standard_e8s_V5", refreshed=read_sizes(tmp_path))
    assert found is not None
    assert (found.name, found.cores, found.memory_gb, found.gpus, found.gpu) == ("Standard_E8s_v5", 8, 64, 0, None)
    assert find_size("Standard_E8s_v5") is None
