"""Stop requests: SIGTERM, Ctrl-C once and twice; and the errors of a job that cannot start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from engine_toy import ToyTask, make_loop, run
from pydantic import BaseModel, field_serializer

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
    """Yield a stop request that listens for signals."""
    request = StopRequest()
    request.listen()
    return request


def test_first_ctrl_c_requests_stop_second_interrupts(stop: StopRequest, capfd: pytest.CaptureFixture[str]) -> None:
    signal.raise_signal(signal.SIGINT)
    assert stop.requested
    assert stop.preempted().by == "Ctrl-C"
    assert capfd.readouterr().err == "Ctrl-C: stopping after this step; a second Ctrl-C ends the job immediately\n"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("number", "by"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_interruptible_work_stops_immediately_once(
    stop: StopRequest, capfd: pytest.CaptureFixture[str], number: signal.Signals, by: str
) -> None:
    def work() -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGTERM)  # during cleanup

    with pytest.raises(Preempted) as caught, stop.interruptible(KEPT):
        work()
    assert (caught.value.by, caught.value.resume_hint) == (by, KEPT)
    with pytest.raises(Preempted), stop.interruptible(KEPT):
        raise AssertionError("it was asked before")
    assert capfd.readouterr().err == ""


class Stopping(BaseModel):
    """A model during whose serialisation SIGTERM arrives."""

    value: int = 1

    @field_serializer("value")
    def _serialise(self, value: int) -> int:
        signal.raise_signal(signal.SIGTERM)
        return value


def test_stop_that_a_library_reports_as_its_own_error_is_a_stop(stop: StopRequest) -> None:
    """pydantic turns an exception of a signal handler into an error of its own."""
    with pytest.raises(Preempted) as caught, stop.interruptible(KEPT):
        Stopping().model_dump_json()
    assert (caught.value.by, caught.value.resume_hint) == ("SIGTERM", KEPT)


def test_error_without_stop_stays_an_error(stop: StopRequest) -> None:
    with pytest.raises(ValueError, match="the text is wrong"), stop.interruptible(KEPT):
        raise ValueError("the text is wrong")


@pytest.mark.parametrize(("steps", "hint"), [(0, "no step was made, so there is no checkpoint"), (2, None)])
def test_stop_promises_a_checkpoint_only_if_there_is_one(tmp_path: Path, steps: int, hint: str | None) -> None:
    """With a checkpoint the job prints its own hint, that one is committed."""
    if steps:
        run(make_loop(ToyTask(), tmp_path, steps=steps))
    loop = make_loop(ToyTask(), tmp_path, steps=4, stop=StopRequest(requested=True))
    checkpoint = loop.services.checkpoints.newest()
    assert (checkpoint is not None) == bool(steps)
    if checkpoint:
        loop.restore(checkpoint)
    with pytest.raises(Preempted) as caught:
        run(loop)
    assert (caught.value.resume_hint or "").partition(";")[0] == (hint or "")


def test_eviction_interrupts_interruptible_work(stop: StopRequest) -> None:
    with pytest.raises(Preempted), stop.interruptible(KEPT):
        stop._handle_eviction("Preempt of this machine")


def test_ignored_sigint_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    StopRequest().listen()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("ending", "code", "expected"),
    [
        (Preempted(), 75, "stopped by SIGTERM; a checkpoint is committed"),
        (Preempted("Ctrl-C"), 130, "stopped by Ctrl-C; a checkpoint is committed"),
        (Preempted("Ctrl-C", resume_hint=KEPT), 130, f"stopped by Ctrl-C; {KEPT}"),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C; the same command resumes from the last saved state"),
    ],
)
def test_stopped_job_prints_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: BaseException, code: int, expected: str
) -> None:
    def job() -> None:
        raise ending

    assert boundary.run(job, tmp_path) == code
    captured = capsys.readouterr()
    assert captured.out.startswith(expected)
    assert (len(captured.out.splitlines()), captured.err) == (1, "")


def test_output_path_of_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StopRequest, "listen", lambda self: None)  # pytest keeps its signal handlers
    output = tmp_path / "out"
    output.write_text("a file")
    assert boundary.run(lambda: storage.require_writable(output), output) == 1
    assert pretrain.main(["--config", "tiny", "--output", str(output)]) == 1
    errors = capsys.readouterr().err
    assert errors.count("error[storage]: cannot write the output folder: a part of the path is a file") == 2
    assert "Traceback" not in errors


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody who may not read")
def test_unreadable_config_is_named(tmp_path: Path) -> None:
    config = tmp_path / "my job.yaml"
    config.write_text("train: {}")
    config.chmod(0)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(SpecError, match="permission denied") as caught:
            read_file(config)
    finally:
        os.seteuid(0)
    closed = next(folder for folder in reversed(config.parents) if not folder.stat().st_mode & 0o001)  # by pytest
    assert caught.value.fix == f"ask root for access, or: sudo chmod o+x {closed}"


@pytest.mark.slow
def test_training_saves_checkpoint_on_ctrl_c(tmp_path: Path) -> None:
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
    output, errors = job.communicate(timeout=240)
    assert job.returncode == 130, output + errors
    assert output.splitlines()[-1] == "stopped by Ctrl-C; a checkpoint is committed, the same command resumes from it"
    assert "a second Ctrl-C ends the job immediately" in errors
    assert "Traceback" not in errors
    assert len(list((out / "checkpoints").glob("step-*/COMMIT.json"))) == 1
