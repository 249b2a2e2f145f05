"""Checks of the GPUs for training: driver, compiler, links, attention kernel, rates, and a compiled step.

They need torch, so they run in a process of their own (`train_jobs.tools.gpu_report`), which a broken driver may hang.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from threading import Timer

from orchestrator.support.finding import Finding, fail

REPORT = ("-m", "train_jobs.tools.gpu_report")
SECONDS = 600.0  # the compilation of a layer takes a minute, and eight GPUs are checked one after the other


def gpu_findings(environ: Mapping[str, str], *words: str, seconds: float = SECONDS) -> Iterator[Finding]:
    """Yield the findings as the checks end.

    Args:
        environ: environment variables.
        words: arguments of the report.
        seconds: time limit of all checks.
    """
    command = [sys.executable, *REPORT, *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(environ)
    ) as report:
        assert report.stdout is not None
        assert report.stderr is not None
        limit = Timer(seconds, report.kill)
        limit.start()
        try:
            for line in report.stdout:
                yield Finding.model_validate(json.loads(line))
            words_left = report.stderr.read().strip().splitlines()
            code = report.wait()
        finally:
            limit.cancel()
    if code not in (0, 8):
        late = f"no answer within {seconds:g} s" if code == -9 else "the check ended early"
        text = f"{late}: {words_left[-1]}" if words_left else late
        yield fail("gpu checks", text, "nvidia-smi, and dmesg for errors of the driver")
