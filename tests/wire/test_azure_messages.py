"""Messages about small mistakes in commands for Azure: each names the mistake and the command that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.testing import AzureDouble
from tests.conftest import write_corpus, write_spec

AZURE = ("-b", "azure", "--cluster", "gpu", "--sku", "Standard_NC4as_T4_v3")


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
