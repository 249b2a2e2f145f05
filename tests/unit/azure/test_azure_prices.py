"""Prices of machines: shipped, refreshed from the price service, of Spot machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from orchestrator.backends.azure import prices
from orchestrator.backends.azure.prices import price_of_size
from orchestrator.backends.azure.sizes import find_size
from orchestrator.support.errors import ServiceError, UsageError

T4 = "Standard_NC4as_T4_v3"


def test_price_dated_spot_upper_bound_until_refresh() -> None:
    size = find_size(T4)
    assert size is not None
    table = price_of_size(size, spot=False, refreshed={})
    assert table is not None
    assert (table.usd, table.bound) == (0.526, False)
    bound = price_of_size(size, spot=True, refreshed={})
    assert bound is not None
    assert bound.bound
    today = {T4: {"dedicated": 0.6, "spot": 0.11, "region": "westus", "date": "2026-11-21"}}
    rate = price_of_size(size, spot=True, refreshed=today)
    assert rate is not None
    assert (rate.usd, rate.most, rate.bound, rate.region, rate.date) == (0.11, 0.6, False, "westus", "2026-11-21")
    assert rate.origin == "Spot rate of 2026-11-21 in westus, which varies, up to $0.60 for a dedicated machine"


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
    assert found[T4]["spot"] == 0.02
    assert "low_priority" not in found[T4]
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


@pytest.mark.parametrize("content", ["", '{"a"', "5", "null", "[[1]]"])
def test_damaged_prices_of_last_refresh_are_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / prices.PRICES_FILE).write_text(content)
    assert prices.read_prices(tmp_path) == {}
