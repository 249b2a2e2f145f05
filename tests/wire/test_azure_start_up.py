"""Packages that a command of the Azure backend loads; their time is in each command."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from orchestrator.testing import AzureDouble
from tests.conftest import Console
from tests.pains.test_slow_start import loaded


@pytest.mark.skipif(find_spec("rfc3987_syntax") is None, reason="Jupyter is not installed")
def test_command_does_not_load_what_jupyter_adds(console: Console, azure: AzureDouble) -> None:
    """Azure's SDK imports jsonschema, which imports a grammar of Jupyter's: half of the SDK's time."""
    console.variables |= azure.environment()
    found = loaded(console, "cluster", "list", "-o", "json")
    assert azure.requests("GET */computes")
    assert "jsonschema" in found
    assert "rfc3987_syntax.syntax_helpers" not in found
