"""Which of the contract's tests are for `make test-all`."""

from __future__ import annotations

import pytest

COVERED = ("polite", "debug")  # share their machinery with `local`, whose long tests are not slow ones


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as slow the long tests of the backends that another one covers, but for debug's own way to end."""
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if item.name == "test_cancel_saves_and_resume_goes_on[debug]":
            continue
        long = item.get_closest_marker("live") or "wrong_input" in item.name
        if long and params.get("name") == "azure":  # each command loads Azure's SDK, which takes seconds
            item.add_marker(pytest.mark.slow)
        if long and params.get("name") in COVERED:
            item.add_marker(pytest.mark.slow)
