"""`orchestrator skus --refresh` against the double: prices and sizes as Azure lists them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.testing import AzureDouble
from orchestrator.testing.arm.machines import SIZES, VmSize

T4 = "Standard_NC4as_T4_v3"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_refresh_stores_spot_rates_and_sizes(
    azure: AzureDouble, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = VmSize("Standard_NX8_B9_v9", "standardNXFamily", 8, 64, gpus=2, price=9.0)
    monkeypatch.setitem(SIZES, new.name.lower(), new)
    azure.prices.set(T4, 0.5)
    assert main(["skus", "--refresh", "--region", "West Europe", "-o", "json"]) == 0
    out, err = capsys.readouterr()
    rows = {row["name"]: row for row in json.loads(out)}
    assert (rows[T4]["price"], rows[T4]["spot_price"], rows[T4]["price_region"]) == (0.5, 0.15, "westeurope")
    found = rows["Standard_NX8_B9_v9"]
    assert (found["cores"], found["gpus"], found["gpu"], found["price"], found["spot_price"]) == (8, 2, None, 9.0, 2.7)
    assert f"{len(SIZES)} machine sizes listed in westeurope" in err
    assert main(["skus"]) == 0
    assert "2 ?" in next(line for line in capsys.readouterr().out.splitlines() if "NX8" in line)
    assert azure.violations == []


def test_refresh_without_workspace_fetches_prices_only(
    azure: AzureDouble, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORCHESTRATOR_AZURE_WORKSPACE")
    assert main(["skus", "--refresh"]) == 0
    out, err = capsys.readouterr()
    assert "sizes are not refreshed: no workspace is given (ORCHESTRATOR_AZURE_WORKSPACE)" in err
    assert "0.526" in out
    assert not azure.requests("GET *vmSizes")
