"""Which of the contract's tests are for `make test-all`."""

from __future__ import annotations

import pytest

ELSEWHERE = ("test_a_preempted_run_starts_again_by_itself[local]",)  # tests/pains/test_eviction.py
COVERED = ("polite", "debug")  # share their machinery with `local`, whose long tests are not slow ones


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as slow the long tests of the backends that another one covers, and what other tests do as well."""
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        long = item.get_closest_marker("live") or "wrong_input" in item.name
        if long and params.get("name") == "azure":  # each command loads Azure's SDK, which takes seconds
            item.add_marker(pytest.mark.slow)
        if (long and params.get("name") in COVERED) or item.name in ELSEWHERE:
            item.add_marker(pytest.mark.slow)
