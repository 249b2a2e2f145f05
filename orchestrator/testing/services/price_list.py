"""The public price service, as far as one asks it for virtual machines: no sign-in, filters of equalities, pages."""

from __future__ import annotations

import re
from urllib.parse import urlencode

from orchestrator.testing.arm.vm_sizes import SIZES, VmSize
from orchestrator.testing.cloud_state import Document
from orchestrator.testing.proxy.messages import Call, Refusal, Reply

PRICES_HOST = "prices.azure.com"
REGIONS = {"eastus": "US East", "westeurope": "EU West"}
CLAUSE = re.compile(r"\s*(?P<field>\w+)\s+eq\s+'(?P<value>[^']*)'\s*")
LOWER = {"": 1.0, " Spot": 0.3, " Low Priority": 0.2}
"""What a meter's name ends with -> its part of the dedicated price."""


class Prices:
    """Meters of every size in two regions: for Linux and Windows, dedicated, spot and low priority."""

    def __init__(self) -> None:
        self.page_size = 100
        self._set: dict[str, float] = {}

    def set(self, size: str, price: float) -> None:
        """Another dedicated price of a size, US dollars an hour."""
        self._set[size] = price

    def answer(self, call: Call) -> Reply:
        """One call.

        Raises:
            Refusal: it is none for prices, or its filter is more than equalities.
        """
        if call.path.rstrip("/") != "/api/retail/prices":
            raise Refusal(404, "NotFound", call.path)
        wanted = _clauses(call.query.get("$filter", ""))
        found = [item for item in self._items() if all(item[name] == value for name, value in wanted)]
        first = int(call.query.get("$skip") or 0)
        last = first + self.page_size
        following = None
        if last < len(found):
            following = f"https://{PRICES_HOST}{call.path}?{urlencode({**call.query, '$skip': last})}"
        page = found[first:last]
        return Reply.json({"BillingCurrency": "USD", "Count": len(page), "Items": page, "NextPageLink": following})

    def _items(self) -> list[Document]:
        return [
            self._item(size, region, system, ending)
            for size in SIZES.values()
            for region in REGIONS
            for system in ("", " Windows")
            for ending in LOWER
        ]

    def _item(self, size: VmSize, region: str, system: str, ending: str) -> Document:
        short = size.name.removeprefix("Standard_").replace("_", " ")
        price = round(self._set.get(size.name, size.price) * LOWER[ending] * (1.5 if system else 1.0), 6)
        return {
            "armRegionName": region,
            "armSkuName": size.name,
            "currencyCode": "USD",
            "effectiveStartDate": "2026-01-01T00:00:00Z",
            "isPrimaryMeterRegion": True,
            "location": REGIONS[region],
            "meterName": f"{short}{ending}",
            "productName": f"Virtual Machines {size.family} Series{system}",
            "retailPrice": price,
            "serviceFamily": "Compute",
            "serviceName": "Virtual Machines",
            "skuName": f"{short}{ending}",
            "tierMinimumUnits": 0.0,
            "type": "Consumption",
            "unitOfMeasure": "1 Hour",
            "unitPrice": price,
        }


def _clauses(text: str) -> list[tuple[str, str]]:
    found = []
    for part in re.split(r"\s+and\s+", text) if text.strip() else []:
        clause = CLAUSE.fullmatch(part)
        if clause is None:
            raise Refusal(400, "BadRequest", f"the double reads no such filter: {part}")
        found.append((clause["field"], clause["value"]))
    return found
