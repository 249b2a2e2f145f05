"""`orchestrator doctor -b azure` against the double: every prerequisite of a run, up to the first that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.backends.azure import health as check
from orchestrator.support.finding import Finding
from orchestrator.testing import AzureDouble
from orchestrator.testing.arm.machines import SIZES


def run_doctor(folder: Path, double: AzureDouble, **environ: str) -> dict[str, Finding]:
    place = double.place
    workspace = {
        "ORCHESTRATOR_AZURE_SUBSCRIPTION_ID": place.subscription,
        "ORCHESTRATOR_AZURE_RESOURCE_GROUP": place.resource_group,
        "ORCHESTRATOR_AZURE_WORKSPACE": place.workspace,
    }
    signed_in = {"AZURE_CLIENT_ID": "client", "AZURE_TENANT_ID": "tenant"}
    return {finding.name: finding for finding in check.examine(folder, {**workspace, **signed_in, **environ})}


def test_doctor_checks_every_prerequisite(azure: AzureDouble, tmp_path: Path) -> None:
    found = run_doctor(tmp_path, azure)
    assert [*found] == ["workspace", "sign-in", "azure", "datastore", "quota"]
    assert {finding.level for finding in found.values()} == {"ok"}
    assert found["sign-in"].text == "by environment"
    assert found["azure"].text == f"workspace {azure.place.workspace} answers, region {azure.place.region}"
    assert "NCASv3_T4" in found["quota"].text
    assert azure.requests("PUT *") == []


def test_missing_workspace_names_the_variables(azure: AzureDouble, tmp_path: Path) -> None:
    found = run_doctor(tmp_path, azure, ORCHESTRATOR_AZURE_WORKSPACE="")
    assert [*found] == ["workspace"]
    assert (found["workspace"].level, found["workspace"].fix) == ("fail", "export ORCHESTRATOR_AZURE_WORKSPACE=...")


def test_wrong_workspace_is_a_failure(azure: AzureDouble, tmp_path: Path) -> None:
    found = run_doctor(tmp_path, azure, ORCHESTRATOR_AZURE_WORKSPACE="elsewhere")
    assert [*found] == ["workspace", "sign-in", "azure"]
    assert found["azure"].level == "fail"
    assert found["azure"].text.startswith("workspace elsewhere does not exist")


NO_AZ = "export ORCHESTRATOR_AZURE_SIGN_IN=browser, or install az and run: az login"


def test_missing_sign_in_is_a_failure(azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without `az`
    found = run_doctor(tmp_path, azure, ORCHESTRATOR_AZURE_SIGN_IN="cli")
    assert [*found] == ["workspace", "sign-in"]
    assert (found["sign-in"].level, found["sign-in"].fix) == ("fail", NO_AZ)


def test_missing_datastore_is_a_failure(azure: AzureDouble, tmp_path: Path) -> None:
    (tmp_path / "orchestrator.yaml").write_text("azure: {datastore: nowhere}\n")
    found = run_doctor(tmp_path, azure)
    assert (found["datastore"].level, found["datastore"].fix) == ("fail", "--set azure.datastore=NAME")
    assert found["quota"].level == "ok"


def test_missing_gpu_quota_is_a_warning(azure: AzureDouble, tmp_path: Path) -> None:
    for size in SIZES.values():
        azure.set_quota(size.family, 0)
    found = run_doctor(tmp_path, azure)
    assert (found["quota"].level, "no cores of GPU machines" in found["quota"].text) == ("warn", True)
