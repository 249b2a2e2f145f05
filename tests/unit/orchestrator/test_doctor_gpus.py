"""`doctor --gpu`: findings of the report about this machine's GPUs, and the exit code."""

from __future__ import annotations

import argparse
import os

import pytest
import torch

from orchestrator.cli.verbs import setup
from orchestrator.doctor import gpus
from orchestrator.support.finding import fail, ok


@pytest.mark.skipif(torch.version.cuda is not None, reason="for a build of torch without CUDA")
def test_build_without_cuda_is_reported() -> None:
    *_, last = gpus.gpu_findings(os.environ)
    assert (last.name, last.level) == ("gpu driver", "fail")
    assert "without CUDA" in last.text


def test_report_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "REPORT", ("-c", "import time; time.sleep(600)"))
    (found,) = gpus.gpu_findings(os.environ, seconds=0.5)
    assert (found.level, found.text) == ("fail", "no answer within 0.5 s")


def test_report_that_dies_is_reported_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "REPORT", ("-c", "raise SystemError('the driver')"))
    (found,) = gpus.gpu_findings(os.environ)
    assert found.text == "the check ended early: SystemError: the driver"


@pytest.mark.parametrize(
    ("machine", "gpu", "code"), [("ok", "ok", 0), ("fail", "ok", 1), ("ok", "fail", 8), ("fail", "fail", 8)]
)
def test_exit_code_says_which_check_failed(
    monkeypatch: pytest.MonkeyPatch, machine: str, gpu: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def finding(name: str, level: str):  # type: ignore[no-untyped-def]
        return ok(name, "fine") if level == "ok" else fail(name, "broken", "replace it")

    monkeypatch.setattr("orchestrator.doctor.examine", lambda **words: iter([finding("disk", machine)]))
    monkeypatch.setattr("orchestrator.doctor.gpu_findings", lambda environ: iter([finding("gpu 0", gpu)]))
    arguments = argparse.Namespace(backend=None, gpu=True, output="text")
    assert setup.doctor(arguments) == code
    assert "gpu 0" in capsys.readouterr().out
    arguments.gpu = False
    assert setup.doctor(arguments) == (1 if machine == "fail" else 0)
    assert "gpu 0" not in capsys.readouterr().out
