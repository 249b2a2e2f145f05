"""Machine sizes: selection by GPUs, retired sizes, prices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from orchestrator.backends.azure import sizes as prices
from orchestrator.backends.azure.sizes import (
    SIZES,
    find_size,
    parse_gpus,
    price_of_size,
    same_family,
    sizes_with,
)
from orchestrator.support.errors import ServiceError, SpecError, UsageError

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
    ],
)
def test_retired_size_is_refused_with_a_replacement(name: str, instead: str) -> None:
    with pytest.raises(SpecError, match="Azure retired it on") as failure:
        find_size(name)
    assert failure.value.facts["instead"] == instead
    assert find_size(instead) is not None


def test_unknown_size_accepted_typo_refused() -> None:
    assert find_size("Standard_E8s_v5") is None
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


def test_price_dated_low_priority_upper_bound_until_refresh() -> None:
    size = find_size(T4)
    assert size is not None
    table = price_of_size(size, low_priority=False, refreshed={})
    assert table is not None
    assert (table.usd, table.bound) == (0.526, False)
    bound = price_of_size(size, low_priority=True, refreshed={})
    assert bound is not None
    assert bound.bound
    today = {T4: {"dedicated": 0.6, "low_priority": 0.11, "region": "westus", "date": "2026-11-21"}}
    low = price_of_size(size, low_priority=True, refreshed=today)
    assert low is not None
    assert (low.usd, low.bound, low.region, low.date) == (0.11, False, "westus", "2026-11-21")


def meter(name: str, price: float, *, sku: str = "NC4as T4 v3", **more: Any) -> dict[str, Any]:
    """Return a meter in the form of the service."""
    common = {"productName": "Virtual Machines NCasT4_v3 Series", "type": "Consumption", "skuName": sku}
    return {**common, "armSkuName": name, "retailPrice": price, **more}


def test_prices_are_hourly_linux_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    pages = [
        {
            "Items": [
                meter(T4, 0.5),
                meter(T4, 0.1, productName="Virtual Machines NCasT4_v3 Series Windows"),
                meter(T4, 0.02, sku="NC4as T4 v3 Spot"),
            ],
            "NextPageLink": f"{prices.SERVICE}?$skip=100",
        },
        {"Items": [meter(T4, 0.09, sku="NC4as T4 v3 Low Priority"), meter(T4, 0.3, type="Reservation")]},
    ]

    def get_page(page: str) -> Any:
        asked.append(unquote(page))
        return pages[len(asked) - 1]

    monkeypatch.setattr(prices, "_get", get_page)
    found = prices.refresh_prices(tmp_path, [T4], "westus")
    assert found[T4]["dedicated"] == 0.5
    assert found[T4]["low_priority"] == 0.09
    assert prices.read_prices(tmp_path) == found
    assert f"armSkuName eq '{T4}'" in asked[0]
    assert "armRegionName eq 'westus'" in asked[0]


def test_prices_refuse_links_to_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "_get", lambda page: {"Items": [], "NextPageLink": "https://example.com/prices"})
    with pytest.raises(ServiceError, match="another host"):
        prices.refresh_prices(tmp_path, [T4], "westus")
    with pytest.raises(UsageError):
        prices.refresh_prices(tmp_path, [T4], "west us")
    assert not (tmp_path / prices.PRICES_FILE).exists()


def test_damaged_price_file_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / prices.PRICES_FILE
    path.parent.mkdir()
    path.write_text(json.dumps({})[:1])
    assert prices.read_prices(tmp_path) == {}
