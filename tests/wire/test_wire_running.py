"""A submitted job really runs, and its client reads logs and outputs as in the cloud."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from wire_entities import job, prepare

from orchestrator.testing import AzureDouble
from orchestrator.testing.jobs.execution import MountError, Mounts
from tests.conftest import wait_for


@pytest.mark.filterwarnings("ignore:content_as_bytes:DeprecationWarning")  # azure-ai-ml calls deprecated blob functions
@pytest.mark.filterwarnings("ignore:The use of a 'BlobProperties':DeprecationWarning")
def test_job_runs_and_its_outputs_are_downloaded(
    running_azure: AzureDouble, client: Any, code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ml = client(running_azure)
    prepare(ml, tmp_path)
    ml.jobs.create_or_update(job("one", code))
    assert running_azure.wait("one") == "Completed", running_azure.job("one").error
    assert running_azure.job("one").history == [
        *("Starting", "Preparing", "Queued", "Running", "Finalizing", "Completed"),
    ]
    ml.jobs.stream("one")
    assert "RunId: one" in capsys.readouterr().out
    ml.jobs.download("one", download_path=tmp_path / "home", all=True)
    copies = sorted((tmp_path / "home" / "named-outputs" / "model").iterdir())
    assert [copy.name for copy in copies] == [f"copy-{rank}.txt" for rank in range(4)]
    assert copies[3].read_text() == "some text\n"
    logs = tmp_path / "home" / "artifacts" / "user_logs"
    assert {log.name: log.read_text() for log in logs.iterdir()} == {
        f"std_log_process_{rank:02}.txt": f"{rank} of 4 on node {rank // 2}\n" for rank in range(4)
    }


def start_alone(ml: Any, command: str, code: Path, cloud: AzureDouble, folder: Path) -> Path:
    """Submit a command as job "one" on one node, and return its log."""
    prepare(ml, folder)
    ml.jobs.create_or_update(
        job("one", code, command=command, inputs={}, outputs={}, instance_count=1, distribution=None)
    )
    return cloud.folder("workspaceartifactstore") / "ExperimentRun/dcid.one/user_logs/std_log.txt"


def test_running_job_is_cancelled_by_a_signal(
    running_azure: AzureDouble, client: Any, code: Path, tmp_path: Path
) -> None:
    # Not a loop of the shell with a trap: once, on a busy machine, such a shell ended without running its trap.
    saves = (
        "import signal; signal.signal(15, lambda *_: exit(print('saved'))); print('ready', flush=True); signal.pause()"
    )
    waits = f'exec {sys.executable} -c "{saves}"'
    ml = client(running_azure)
    log = start_alone(ml, waits, code, running_azure, tmp_path)
    assert running_azure.wait("one", ["Running"]) == "Running"
    while not log.exists() or "ready" not in log.read_text():
        pass
    ml.jobs.begin_cancel("one").result()
    assert running_azure.wait("one") == "Canceled"
    assert log.read_text().splitlines() == ["ready", "saved"]


def test_requeued_job_runs_again_and_overwrites_its_log(
    running_azure: AzureDouble, client: Any, code: Path, tmp_path: Path
) -> None:
    waits = "echo $$; while true; do sleep 0.05; done"
    ml = client(running_azure)
    log = start_alone(ml, waits, code, running_azure, tmp_path)
    first = wait_for(lambda: log.exists() and log.read_text(), what="the first life")
    started = running_azure.job("one").started
    running_azure.requeue("one")
    wait_for(lambda: log.exists() and log.read_text() not in {"", first}, what="the second life")
    assert running_azure.job("one").history[-3:] == ["Running", "Queued", "Running"]
    assert running_azure.job("one").started != started
    assert first not in log.read_text()
    ml.jobs.begin_cancel("one").result()
    assert running_azure.wait("one") == "Canceled"


def test_failed_job_names_the_process(running_azure: AzureDouble, client: Any, code: Path, tmp_path: Path) -> None:
    from azure.ai.ml.exceptions import JobException

    ml = client(running_azure)
    prepare(ml, tmp_path)
    fails = 'test "$RANK" != 2 || exit 7; sleep 600'
    ml.jobs.create_or_update(job("one", code, command=fails, inputs={}, outputs={}))
    assert running_azure.wait("one") == "Failed"
    with pytest.raises(JobException, match="User process '2' exited with status code 7"):
        ml.jobs.stream("one")


def test_job_sees_its_data_but_not_the_client_environment(
    running_azure: AzureDouble, client: Any, code: Path, tmp_path: Path
) -> None:
    from azure.ai.ml import Input

    ml = client(running_azure)
    prepare(ml, tmp_path)
    inputs = {
        "copied": Input(type="uri_folder", path="azureml:corpus:1", mode="download"),
        "mounted": Input(type="uri_folder", path="azureml:corpus:1", mode="ro_mount"),
        "rate": 0.5,
    }
    looks = "env; test ! -L ${{inputs.copied}} && test -L ${{inputs.mounted}} && echo rate ${{inputs.rate}}"
    looks += " && cat ${{inputs.copied}}/text.txt $AZURE_ML_INPUT_mounted/text.txt && pwd"
    threads = {"OMP_NUM_THREADS": "1000"}
    given = {"environment_variables": threads, "instance_count": 1, "distribution": None}
    ml.jobs.create_or_update(job("one", code, command=looks, inputs=inputs, outputs={}, **given))
    assert running_azure.wait("one") == "Completed", running_azure.logs("one")
    lines = running_azure.logs("one")["std_log.txt"].splitlines()
    assert lines[-4:] == ["rate 0.5", "some text", "some text", str(running_azure.home / "jobs" / "one" / "code")]
    variables = dict(line.split("=", 1) for line in lines if "=" in line)
    assert {name: variables[name] for name in ("AZUREML_RUN_ID", "MLFLOW_RUN_ID", "OMP_NUM_THREADS")} == {
        "AZUREML_RUN_ID": "one",
        "MLFLOW_RUN_ID": "one",
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),  # limited by the cores of this machine
    }
    assert variables["MLFLOW_EXPERIMENT_NAME"] == variables["AZUREML_EXPERIMENT_NAME"] == "bert"
    kept = [name for name in running_azure.environment() if name in variables]
    assert kept == []


def test_optional_parts_of_a_command(running_azure: AzureDouble, tmp_path: Path) -> None:
    mounts = Mounts(tmp_path / "job", "one", running_azure.state, running_azure.storage)
    mounts.add({"rate": {"jobInputType": "literal", "value": "0.5"}}, {"model": {"jobOutputType": "uri_folder"}})
    model = tmp_path / "job" / "mounts" / "outputs" / "model"
    assert mounts.resolve("run ${{ outputs.model }}") == f"run {model}"
    assert mounts.resolve("run $[[--rate ${{inputs.rate}}]]") == "run --rate 0.5"
    assert mounts.resolve("run $[[--both ${{inputs.rate}} ${{inputs.other}}]]") == "run "
    with pytest.raises(MountError, match=r"names \${{inputs.other}}, which the job does not have"):
        mounts.resolve("run ${{inputs.other}}")
    with pytest.raises(MountError, match="nowhere"):
        mounts.add({"x": {"jobInputType": "uri_file", "uri": "https://nowhere/x"}}, {})
