"""The default run, timed part by part, with its validation curve.

    python -m benchmarks.first_light [RUN_FOLDER] [--picture docs/first-light.png]

Without a folder it submits `orchestrator submit pretrain` in a new home and measures that. The picture is the top of
the run's report as headless Chromium shows it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.picture import draw
from train_jobs.config.verdict import margin_text, verdict


def submit() -> tuple[Path, float]:
    """Run the default job; return its folder and the seconds of the command."""
    # An empty home: the first run of a new user also creates the MLflow store and the token store.
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


def take_picture(folder: Path, to: Path) -> None:
    """Write the top of a run's report as a PNG; needs Chromium."""
    environ = {**os.environ, "ORCHESTRATOR_HOME": str(folder.parent.parent)}
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch, "report.html")
        words = ["-m", "orchestrator.cli.main", "report", folder.name, "--to", str(page)]
        subprocess.run([sys.executable, *words], env=environ, check=True, stdout=subprocess.DEVNULL)
        home = str(folder.parent.parent)
        page.write_text(page.read_text(encoding="utf-8").replace(home, "/home/you/.orchestrator"), encoding="utf-8")
        draw(page, to, height=760)


def main() -> None:
    """Print the parts and the curve as Markdown."""
    parser = argparse.ArgumentParser(description="The default run, timed part by part.")
    parser.add_argument("folder", nargs="?", type=Path, metavar="RUN_FOLDER", help="a run that there is already")
    parser.add_argument("--picture", type=Path, metavar="PNG", help="write the top of its report as a picture")
    arguments = parser.parse_args()
    folder, seconds = (arguments.folder, None) if arguments.folder else submit()
    if arguments.picture:
        take_picture(folder, arguments.picture)
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
    last = next(report["metrics"] for report in reversed(reports) if "validation_mlm_loss" in report["metrics"])
    names = ("mlm_loss", "unigram_entropy", "unigram_margin_error")
    loss, entropy, error = (last[f"validation_{name}"] for name in names)
    print(f"\nThe loss is {margin_text(loss, entropy, error)}: {verdict(loss, entropy, error).value}.")


if __name__ == "__main__":
    main()
