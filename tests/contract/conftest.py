"""Which of the contract's tests are for `make test-all`."""

from __future__ import annotations

import pytest

COVERED = "polite"  # shares its machinery with `local`, whose long tests are not slow ones


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as slow the long tests of the backend that another one covers."""
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if item.get_closest_marker("live") and params.get("name") == COVERED:
            item.add_marker(pytest.mark.slow)
