"""The default run, timed part by part, with its validation curve.

    python -m benchmarks.first_light [RUN_FOLDER]

Without a folder it submits `orchestrator submit pretrain` in a new home and measures that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe


def submit() -> tuple[Path, float]:
    """Runs the default job; returns its folder and the seconds that the command took."""
    home = tempfile.mkdtemp(prefix="first-light-")
    started = time.perf_counter()
    done = subprocess.run(
        [str(Path(sys.executable).parent / "orchestrator"), "submit", "pretrain", "-o", "json"],
        env={**os.environ, "ORCHESTRATOR_HOME": home},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Path(json.loads(done.stdout)["folder"]), time.perf_counter() - started


def main() -> None:
    """Prints the parts and the curve as Markdown."""
    folder, seconds = (Path(sys.argv[1]), None) if len(sys.argv) > 1 else submit()
    state = json.loads((folder / "state.json").read_text())
    result = json.loads((folder / "outputs" / "result.json").read_text())
    reports = [json.loads(line) for line in (folder / "outputs" / "metrics.jsonl").read_text().splitlines()]
    first = next(report["time"] for report in reports if "train_loss" in report["metrics"])
    print(f"{describe('torch')}\n")
    print("| part | seconds |\n|---|---|")
    if seconds is not None:
        print(f"| the whole command | {seconds:.0f} |")
    print(f"| the run, from its supervisor's start to its last word | {state['ended'] - state['started']:.0f} |")
    before = first - state["started"]
    print(f"| of that, before the first report (MLflow store, launcher, vocabulary, tokens) | {before:.0f} |")
    print(f"| training, validation, checkpoints | {reports[-1]['time'] - first:.0f} |\n")
    print("| step | sequences | validation MLM loss | unigram entropy | MLM accuracy | NSP accuracy |")
    print("|---|---|---|---|---|---|")
    batch = result["sequences"] // result["steps"]
    for report in reports:
        found = report["metrics"]
        if "validation_mlm_loss" in found:
            print(
                f"| {report['step']} | {report['step'] * batch} | {found['validation_mlm_loss']:.3f} |"
                f" {found['validation_unigram_entropy']:.3f} | {found['validation_mlm_accuracy']:.1%} |"
                f" {found['validation_nsp_accuracy']:.1%} |"
            )


if __name__ == "__main__":
    main()
