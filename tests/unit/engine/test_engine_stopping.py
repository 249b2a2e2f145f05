"""Requests to stop: SIGTERM, Ctrl-C once and twice; and what a job that cannot begin says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import MICRO, wait_for, write_corpus
from train_jobs import pretrain
from train_jobs.artifacts.layers import read_file
from train_jobs.config import SpecError
from train_jobs.engine.runtime import boundary, storage
from train_jobs.engine.runtime.stop import Preempted, StopRequest

KEPT = "parts are kept"
NOBODY = 65534


@pytest.fixture
def stop() -> StopRequest:
    """One that listens."""
    request = StopRequest()
    request.listen()
    return request


def test_the_first_ctrl_c_asks_and_the_second_ends(stop: StopRequest, capfd: pytest.CaptureFixture[str]) -> None:
    signal.raise_signal(signal.SIGINT)
    assert stop.asked
    assert stop.ending().by == "Ctrl-C"
    assert capfd.readouterr().err == "Ctrl-C: stopping after this step; a second Ctrl-C ends the job immediately\n"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("number", "by"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_work_without_steps_breaks_off_at_once_and_but_once(
    stop: StopRequest, capfd: pytest.CaptureFixture[str], number: signal.Signals, by: str
) -> None:
    def work() -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGTERM)  # while it cleans up

    with pytest.raises(Preempted) as caught, stop.at_once(KEPT):
        work()
    assert (caught.value.by, caught.value.kept) == (by, KEPT)
    with pytest.raises(Preempted), stop.at_once(KEPT):
        raise AssertionError("it was asked before")
    assert capfd.readouterr().err == ""


def test_an_eviction_breaks_off_such_work_too(stop: StopRequest) -> None:
    with pytest.raises(Preempted), stop.at_once(KEPT):
        stop._announced("Preempt of this machine")


def test_a_shell_that_ignores_ctrl_c_for_its_jobs_is_obeyed() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    StopRequest().listen()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("ending", "code", "says"),
    [
        (Preempted(), 75, "stopped by SIGTERM; a checkpoint is committed"),
        (Preempted("Ctrl-C"), 130, "stopped by Ctrl-C; a checkpoint is committed"),
        (Preempted("Ctrl-C", kept=KEPT), 130, f"stopped by Ctrl-C; {KEPT}"),
        (KeyboardInterrupt(), 130, "ended by Ctrl-C; the same command resumes from what was saved before"),
    ],
)
def test_a_job_that_is_stopped_says_so_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: BaseException, code: int, says: str
) -> None:
    def job() -> None:
        raise ending

    assert boundary.run(job, tmp_path) == code
    told = capsys.readouterr()
    assert told.out.startswith(says)
    assert (len(told.out.splitlines()), told.err) == (1, "")


def test_an_output_that_is_a_file_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StopRequest, "listen", lambda self: None)  # the signals stay pytest's
    output = tmp_path / "out"
    output.write_text("a file")
    assert boundary.run(lambda: storage.require_writable(output), output) == 1
    assert pretrain.main(["--config", "tiny", "--output", str(output)]) == 1
    errors = capsys.readouterr().err
    assert errors.count("error[storage]: a part of the path is a file: making the output folder failed") == 2
    assert "Traceback" not in errors


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody who may not read")
def test_a_config_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    config = tmp_path / "my job.yaml"
    config.write_text("train: {}")
    config.chmod(0)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(SpecError, match="permission denied") as caught:
            read_file(config)
    finally:
        os.seteuid(0)
    assert caught.value.fix == f"chmod u+r '{config}'"


@pytest.mark.slow
def test_a_training_saves_on_ctrl_c(tmp_path: Path) -> None:
    config = {key: value for key, value in MICRO.items() if key not in {"recipe", "name", "compute"}}
    config["data"] = {**config["data"], "text": [str(write_corpus(tmp_path / "corpus.txt"))]}
    config["train"] = {**config["train"], "steps": 100_000}
    config["checkpoint"] = {"every": 100_000}
    config["validation"] = {"every": 100_000}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    out = tmp_path / "out"
    job = subprocess.Popen(
        [sys.executable, "-m", "train_jobs.pretrain", "--config", str(tmp_path / "config.yaml"), "--output", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = out / "metrics.jsonl"
    wait_for(lambda: job.poll() is not None or (metrics.exists() and metrics.stat().st_size > 0), what="a step")
    job.send_signal(signal.SIGINT)
    said, errors = job.communicate(timeout=240)
    assert job.returncode == 130, said + errors
    assert said.splitlines()[-1] == "stopped by Ctrl-C; a checkpoint is committed, the same command resumes from it"
    assert "a second Ctrl-C ends the job immediately" in errors
    assert "Traceback" not in errors
    assert len(list((out / "checkpoints").glob("step-*/COMMIT.json"))) == 1
