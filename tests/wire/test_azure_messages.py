"""Messages about small mistakes in commands for Azure: each names the mistake and the command that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.testing import AzureDouble
from tests.conftest import write_corpus, write_spec

AZURE = ("-b", "azure", "--cluster", "gpu", "--sku", "Standard_NC4as_T4_v3")

JOB_FILE = """\
type: command
command: python job.py
code: src
environment: azureml:none:1
compute: serverless
inputs:
  notes: {type: uri_folder, path: azureml:notes@latest}
"""


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "corpus.txt")


def test_incomplete_address_is_not_called_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "pretrain", *AZURE, "--data", "azureml:notes"]) == 2
    err = capsys.readouterr().err
    assert "incomplete address azureml:notes: must be azureml:NAME:VERSION" in err
    assert "no such file" not in err


def test_key_without_its_section_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "pretrain", "--data", "corpus.txt", "--set", "seed=7"]) == 2
    assert 'seed: unknown key (did you mean "train.seed"?' in capsys.readouterr().err


@pytest.mark.usefixtures("azure")
def test_unknown_endpoint_names_the_other_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "delete", "words", "-y"]) == 5
    assert "fix  orchestrator model delete words -b azure" in capsys.readouterr().err


@pytest.mark.usefixtures("small_snapshot")
def test_other_name_of_the_same_plan_is_warned_of(azure: AzureDouble, capsys: pytest.CaptureFixture[str]) -> None:
    compute = {"cluster": "gpu", "sku": "Standard_NC4as_T4_v3"}
    write_spec(Path("job.yaml"), data={"text": ["corpus.txt"]}, compute=compute, backend="azure")
    submit = ["submit", "pretrain", "-f", "job.yaml", "-d", "-n"]
    assert (main([*submit, "first"]), main([*submit, "second"])) == (0, 0)
    err = " ".join(capsys.readouterr().err.split())
    assert "warning: a run of the same plan has another name, first-" in err
    assert "; --new starts one named second" in err
    assert len(azure.jobs.all()) == 1


@pytest.mark.usefixtures("small_snapshot")
def test_supervision_of_an_existing_run_is_not_silently_lost(
    azure: AzureDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    compute = {"cluster": "gpu", "sku": "Standard_NC4as_T4_v3"}
    write_spec(Path("job.yaml"), data={"text": ["corpus.txt"]}, compute=compute, backend="azure")
    submit = ["submit", "pretrain", "-f", "job.yaml", "-d"]
    assert (main(submit), main(submit)) == (0, 0)
    assert "has no effect" not in capsys.readouterr().err
    assert main([*submit, "--supervise", "cloud", "--tier", "spot", "--max-preemptions", "7"]) == 0
    err = " ".join(capsys.readouterr().err.split())
    for setting in ('azure.supervise="cloud"', 'compute.tier="spot"', "max_preemptions=7"):
        assert setting in err
    assert "has no effect on the existing run; --new starts another run" in err
    assert azure.state.below("schedules") == []


@pytest.mark.usefixtures("small_snapshot")
def test_missing_data_asset_is_named_before_any_change(azure: AzureDouble, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "pretrain", *AZURE, "--data", "azureml:notes:9", "-d"]) == 5
    err = capsys.readouterr().err
    assert "data asset notes:9 does not exist" in err
    assert "fix  orchestrator data asset list" in err
    assert azure.requests("PUT *") == []


@pytest.mark.usefixtures("azure")
def test_job_file_without_its_data_names_the_asset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The SDK colours its messages, even those about an upload, and adds advice about `az`."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "job.py").write_text("print(1)")
    Path("job.yml").write_text(JOB_FILE)
    assert main(["submit", "job.yml", "-d"]) == 5
    err = capsys.readouterr().err
    assert "reason  Asset notes does not exist in workspace double." in err
    assert "Resolutions" not in err
    assert "\x1b" not in err
    Path("job.yml").write_text(JOB_FILE.partition("inputs:")[0])
    assert main(["submit", "job.yml", "-d"]) == 2
    err = capsys.readouterr().err
    assert "environments/none/versions/1 could not be found" in err
    assert "\x1b" not in err
