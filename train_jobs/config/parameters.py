"""A configuration as MLflow keeps it: dotted names with text values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MOST_PARAMETERS = 100  # MLflow takes no more in one request
LONGEST_VALUE = 6000


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A nested mapping as dotted names with text values."""
    found: dict[str, str] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flatten(value, f"{name}.")
        else:
            found[name] = str(value)[:LONGEST_VALUE]
    return found


def batches(parameters: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """As many at a time as one request takes."""
    items = list(parameters.items())
    for start in range(0, len(items), MOST_PARAMETERS):
        yield dict(items[start : start + MOST_PARAMETERS])
