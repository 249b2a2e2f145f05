"""The example of docs/testing-azure.md is a passing test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = "pytester"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing-azure.md"


def test_example_of_the_page_passes(pytester: pytest.Pytester) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    pytester.makepyfile(test_job=example)
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
