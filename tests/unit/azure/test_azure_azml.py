"""Job files of az ml: sent unchanged, or refused with line and reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.backends.azure.az_yaml import read_job_file
from orchestrator.backends.azure.wire.control_plane import rest_body
from orchestrator.cli.main import main
from orchestrator.support.errors import SpecError

Write = Callable[[str], Path]
COMMAND = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
code: src
command: >-
  python train.py
  --epochs ${{inputs.epochs}}
  --data ${{inputs.data}}
  --out ${{outputs.model}}
inputs:
  epochs: 1
  data:
    type: uri_folder
    path: azureml://datastores/workspaceblobstore/paths/cifar/
outputs:
  model:
    type: uri_folder
environment: azureml:AzureML-acpt-pytorch-2.8-cuda12.6@latest
compute: azureml:gpu-cluster
distribution:
  type: pytorch
  process_count_per_instance: 2
resources:
  instance_count: 2
display_name: CIFAR Distributed
experiment_name: cifar
tags:
  peer: "yes"
"""
SWEEP = """\
type: sweep
trial:
  code: src
  command: python hello.py --a ${{inputs.a}} --b ${{search_space.b}}
  environment: azureml:e@latest
inputs:
  a: 1
compute: azureml:cpu
sampling_algorithm: random
search_space:
  b:
    type: uniform
    min_value: 1
    max_value: 2
objective:
  goal: minimize
  primary_metric: loss
limits:
  max_total_trials: 4
  max_concurrent_trials: 2
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a job file next to its code."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print()\n")

    def file(text: str) -> Path:
        (tmp_path / "job.yml").write_text(text)
        return tmp_path / "job.yml"

    return file


def test_command_job_is_sent_unchanged(write: Write) -> None:
    file = read_job_file(write(COMMAND))
    assert (file.nodes, file.processes) == (2, 2)
    assert file.name == f"cifar-distributed-{file.digest}"
    body = rest_body(file.job)["properties"]
    assert body["distribution"] == {"distributionType": "PyTorch", "processCountPerInstance": 2}
    assert (body["experimentName"], body["displayName"]) == ("cifar", "CIFAR Distributed")
    assert body["inputs"]["epochs"] == {"value": "1", "jobInputType": "literal"}
    named = read_job_file(write(COMMAND + "name: mine\n"))
    assert named.name == "mine"
    assert read_job_file(write(COMMAND.replace("epochs: 1", "epochs: 2"))).name != file.name


@pytest.mark.parametrize("text", [COMMAND, SWEEP])
def test_edited_code_is_another_job(write: Write, text: str) -> None:
    """The name of a file without one follows from its content, and that of its code."""
    path = write(text)
    first = read_job_file(path).name
    assert read_job_file(path).name == first
    (path.parent / "src" / "train.py").write_text("print('fixed')\n")
    assert read_job_file(path).name != first


def test_sweep_job_is_sent_unchanged(write: Write) -> None:
    file = read_job_file(write(SWEEP))
    body = rest_body(file.job)["properties"]
    assert body["jobType"] == "Sweep"
    assert body["searchSpace"] == {"b": ["uniform", [1.0, 2.0]]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (COMMAND.replace("type: pytorch", "type: torch.distributed"), "job.yml:19: distribution.type: "),
        (COMMAND + "epcohs: 3\n", "job.yml:27: epcohs: Unknown field"),
        (COMMAND.replace("experiment_name: ", "experiment_name: my "), ": experiment_name: my cifar is not 1 to 256"),
        (
            COMMAND.replace("instance_count: 2", "instance_count: -1"),
            "job.yml:22: resources.instance_count: -1 is less",
        ),
        (COMMAND.replace("instance: 2", "instance: 0"), "job.yml:20: distribution.process_count_per_instance: 0 is"),
        (COMMAND.replace("  instance_count: 2", "  shm_size: lots"), "job.yml:22: resources.shm_size: lots is no"),
        (COMMAND.replace("{{inputs.epochs", "{{inputs.epoch"), "job.yml:3: command: ${{inputs.epoch}} names none of"),
        (COMMAND + "type: pipeline\n", "job.yml:27: type: unknown type of job 'pipeline'"),
        (COMMAND.replace("outputs.model", "outputs.other"), "job.yml:3: command: ${{outputs.other}} names none of the"),
        (SWEEP.replace("random", "grid"), "job.yml:11: search_space.b: grid sampling allows only choice"),
        (
            SWEEP.replace("random", "bayesian") + "early_termination: {type: median_stopping}\n",
            "job.yml:21: early_termination: bayesian sampling allows no early termination",
        ),
        (
            SWEEP + "early_termination: {type: bandit, slack_factor: 0.1, slack_amount: 2}\n",
            "early_termination.slack_amount: slack_factor is given too",
        ),
        (
            SWEEP.replace("search_space.b", "search_space.c"),
            "trial.command: ${{search_space.c}} names none of the search",
        ),
    ],
)
def test_refused_key_has_line_and_reason(text: str, message: str, write: Write) -> None:
    write(text)
    with pytest.raises(SpecError) as failure:
        read_job_file(Path("job.yml"))
    assert message in str(failure.value)


def test_submit_of_job_file_prints_its_body(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    write(COMMAND)
    assert main(["validate", "job.yml"]) == 0
    assert capsys.readouterr().out.startswith("valid: cifar-distributed-")
    assert main(["submit", "job.yml", "--dry-run", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["request"]["job"]["name"] == document["name"]
    assert main(["submit", "job.yml", "--nodes", "3"]) == 2
    assert "cannot combine --nodes with a job file" in capsys.readouterr().err
    assert main(["submit", "job.yml", "-b", "local"]) == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--task", "MRPC"),
        ("--model", "bert-base-uncased"),
        ("--store", "store"),
        ("--input", "new.csv"),
        ("--new",),
    ],
)
def test_useless_flag_with_job_file_is_refused(
    words: tuple[str, ...], write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write(COMMAND)
    assert main(["submit", "job.yml", "--dry-run", *words]) == 2
    assert f"cannot combine {words[0]} with a job file" in capsys.readouterr().err
