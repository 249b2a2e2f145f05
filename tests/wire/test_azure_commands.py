"""`submit command` on Azure: any program as a job, as `tests/unit/cli/test_submit_command.py` runs it elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from orchestrator.cli.main import main
from orchestrator.testing import AzureDouble

PROGRAM = """\
import os, pathlib, sys
print("words", sys.argv[1:], "rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
pathlib.Path(os.environ["ORCHESTRATOR_OUTPUTS"], f"model-{os.environ['RANK']}.txt").write_text("weights")
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.1")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "script.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path / "project")


def submit(*flags: str, program: tuple[str, ...]) -> int:
    place = ["submit", "command", "-b", "azure", "--set", "azure.preflight=false", *flags]
    return main([*place, "--", "python", "script.py", *program])


@pytest.mark.usefixtures("running_azure")
def test_command_runs_with_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    machines = ("--cluster", "serverless", "--sku", "Standard_DS3_v2")
    assert submit(*machines, program=("0", "a b")) == 0
    capsys.readouterr()
    assert main(["logs", "@last"]) == 0
    assert "words ['0', 'a b'] rank 0 of 1" in capsys.readouterr().out
    assert main(["download", "@last", "--all", "--to", "../found"]) == 0
    assert [path.read_text() for path in Path("../found").rglob("model-0.txt")] == ["weights"]
    assert submit(*machines, program=("7",)) == 7


def test_elastic_job_runs_on_the_machines_that_there_are(
    running_azure: AzureDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    """At most three machines, and a quota for two: both run the program, and the logs of both are shown."""
    running_azure.set_quota("standardDSv5Family", 32)
    machines = ("--cluster", "cpu", "--sku", "Standard_D16s_v5", "--set", "azure.elastic_nodes=3")
    assert submit(*machines, program=("0",)) == 0
    err = " ".join(capsys.readouterr().err.split())
    assert "starts on 1 to 3 machines, as many as Azure has" in err
    assert "the quota allows 2 of 3 machines" in err
    assert main(["logs", "@last", "--all-ranks"]) == 0
    out = capsys.readouterr().out
    assert "rank 0 of 2" in out
    assert "[1:1] words" in out
    (job,) = running_azure.jobs.all()
    resources = job.properties["resources"]
    assert (resources["instanceCount"], resources["maxInstanceCount"]) == (1, 3)
    assert submit(*machines, "--dry-run", "-o", "yaml", program=("0",)) == 0
    assert yaml.safe_load(capsys.readouterr().out)["resources"]["max_instance_count"] == 3
