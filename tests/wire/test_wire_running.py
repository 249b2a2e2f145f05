"""A submitted job runs for real, and its client reads logs and outputs as in the cloud."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wire_entities import job, prepare

from orchestrator.testing import AzureDouble


@pytest.mark.filterwarnings("ignore:content_as_bytes:DeprecationWarning")  # azure-ai-ml's use of blobs
@pytest.mark.filterwarnings("ignore:The use of a 'BlobProperties':DeprecationWarning")
def test_job_runs_and_its_outputs_come_home(
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


def test_job_that_runs_is_cancelled_by_a_signal_it_sees(
    running_azure: AzureDouble, client: Any, code: Path, tmp_path: Path
) -> None:
    ml = client(running_azure)
    prepare(ml, tmp_path)
    waits = "trap 'echo saved; exit 0' TERM; echo ready; while true; do sleep 0.05; done"
    ml.jobs.create_or_update(
        job("one", code, command=waits, inputs={}, outputs={}, instance_count=1, distribution=None)
    )
    log = running_azure.folder("workspaceartifactstore") / "ExperimentRun/dcid.one/user_logs/std_log.txt"
    assert running_azure.wait("one", ["Running"]) == "Running"
    while not log.exists() or "ready" not in log.read_text():
        pass
    ml.jobs.begin_cancel("one").result()
    assert running_azure.wait("one") == "Canceled"
    assert log.read_text().splitlines()[-1] == "saved"


def test_job_that_fails_says_which_process(running_azure: AzureDouble, client: Any, code: Path, tmp_path: Path) -> None:
    from azure.ai.ml.exceptions import JobException

    ml = client(running_azure)
    prepare(ml, tmp_path)
    fails = 'test "$RANK" != 2 || exit 7; sleep 600'
    ml.jobs.create_or_update(job("one", code, command=fails, inputs={}, outputs={}))
    assert running_azure.wait("one") == "Failed"
    with pytest.raises(JobException, match="User process '2' exited with status code 7"):
        ml.jobs.stream("one")
