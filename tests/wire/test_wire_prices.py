"""The price service: filters and pages, without sign-in."""

from __future__ import annotations

import requests

from orchestrator.testing import AzureDouble

URL = "https://prices.azure.com/api/retail/prices"


def test_filter_gives_one_price(azure: AzureDouble) -> None:
    azure.prices.set("Standard_ND96isr_H100_v5", 50.0)
    wanted = "armSkuName eq 'Standard_ND96isr_H100_v5' and armRegionName eq 'eastus' and skuName eq 'ND96isr H100 v5'"
    with requests.get(URL, params={"$filter": wanted}) as reply:
        items = reply.json()["Items"]
    assert sorted(item["retailPrice"] for item in items) == [50.0, 75.0]
    assert [item["productName"].endswith("Windows") for item in items] == [False, True]


def test_pages_give_every_item_once(azure: AzureDouble) -> None:
    azure.prices.page_size = 7
    url, found = f"{URL}?$filter=armRegionName eq 'westeurope'", []
    while url:
        with requests.get(url) as reply:
            page = reply.json()
        found += [(item["armSkuName"], item["productName"], item["skuName"]) for item in page["Items"]]
        url = page["NextPageLink"]
    assert len(found) == len(set(found)) > 80
