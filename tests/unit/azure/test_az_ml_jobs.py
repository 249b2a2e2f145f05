"""Job files of `az ml`: accepted with the body of Azure's SDK, or refused as the SDK refuses them, with file and line.

Small files for each construct are in `az_ml_jobs/`; files of Azure/azureml-examples are read where a copy exists.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.support.errors import SpecError
from tests.unit.azure.az_ml_bodies import check_alike, our_body

OWN = Path(__file__).with_name("az_ml_jobs")
EXAMPLES = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "azureml-examples"
LISTED = EXAMPLES / "JOBS.txt"
NAMES = LISTED.read_text().split() if LISTED.is_file() else []


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("name", sorted(path.name for path in (OWN / "accepted").iterdir()))
def test_accepted_job_file_has_the_body_of_the_sdk(name: str) -> None:
    assert isinstance(check_alike(OWN / "accepted" / name), dict)


@pytest.mark.parametrize("name", sorted(path.name for path in (OWN / "refused").iterdir()))
def test_refused_job_file_has_line_and_reason(name: str) -> None:
    assert isinstance(check_alike(OWN / "refused" / name), SpecError)


@pytest.mark.skipif(not NAMES, reason="needs a copy of Azure/azureml-examples in ../shared/data")
@pytest.mark.parametrize("name", NAMES)
def test_example_of_azure_is_read_as_by_the_sdk(name: str) -> None:
    check_alike(EXAMPLES / name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sweep-values.yml", "sweep-values.yml:4: search_space.a.type: unknown type (known: choice, lognormal"),
        ("sweep-choice.yml", "sweep-choice.yml:4: search_space.a.values.0: Not a valid integer"),
        ("sweep-name.yml", "sweep-name.yml:4: search_space.a-b: Key name"),
        ("input-name.yml", "input-name.yml:4: inputs.a-b: Key name"),
        ("no-command.yml", "no-command.yml:1: command: Missing data"),
        (
            "wrong-types.yml",
            "wrong-types.yml:5: distribution.type: unknown type (known: mpi, pytorch, ray, tensorflow)",
        ),
    ],
)
def test_refusal_names_the_key_and_its_choices(name: str, message: str) -> None:
    problem = our_body(OWN / "refused" / name)
    assert message in str(problem)


def test_duplicate_key_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    from orchestrator.cli.main import main

    assert main(["validate", str(OWN / "accepted" / "duplicate-key.yml")]) == 0
    assert "duplicate-key.yml:4: command: duplicate key (first on line 1)" in capsys.readouterr().err


def test_inline_environment_is_named_in_the_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    from orchestrator.cli.main import main

    assert main(["submit", str(OWN / "accepted" / "environment-image.yml"), "--dry-run", "-o", "json"]) == 0
    body = json.loads(capsys.readouterr().out)["request"]["job"]["properties"]
    assert body["environmentId"].startswith("azureml:CliV2AnonymousEnvironment:")
