"""Measure and check on a machine with GPUs everything that could not be tested without one, in 25 minutes.

    python -m benchmarks.gpu_day                 # make gpu-day
    python -m benchmarks.gpu_day --rehearse      # every row on the CPU, with small sizes: at most 25 minutes

On one GPU or several. Each row is a process of its own with a budget of seconds. A row that passed is not repeated:
start it again after an interruption. The exit code is 1 until every row has passed, including rows that `--rows` left
out. gpu-day/results.jsonl has all results, gpu-day/table.md the table: hardware, versions, figures, which estimate of
docs/speed.md was wrong by how much, and the output of all programs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.gpu_rows import ROWS
from benchmarks.machine import describe
from train_jobs.engine.runtime import gpu_check


class Result(NamedTuple):
    """Result of a row."""

    row: str
    state: str
    """passed, failed or late."""
    seconds: float
    figures: dict[str, Any]
    estimates: dict[str, tuple[float, float]]
    raw: str
    """Output, or the reason of a failure."""


def measure(row: str, folder: Path, *, rehearse: bool) -> Result:
    """Run a row in a process of its own, within its budget; its processes end with it."""
    command = [sys.executable, "-m", "benchmarks.gpu_rows", row, str(folder), *(["--rehearse"] if rehearse else [])]
    limit = ROWS[row].rehearsal if rehearse else ROWS[row].budget
    started = time.monotonic()
    # A session of its own: rows start programs, which would outlive them and slow down every later row.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            _end(process)
            out, errors = process.communicate()
            return Result(row, "late", limit, {}, {}, f"no result within {limit} s\n{(out + errors)[-1500:]}")
        except BaseException:
            _end(process)
            raise
    took = time.monotonic() - started
    last = (out.strip().splitlines() or [""])[-1]
    if process.returncode or not last.startswith("{"):
        return Result(row, "failed", took, {}, {}, (out + errors)[-3000:])
    answer = json.loads(last)
    if "failed" in answer:
        return Result(row, "failed", took, {}, {}, answer["failed"])
    if not answer["figures"]:
        return Result(row, "failed", took, {}, {}, "no figures: the row measured nothing")
    return Result(row, "passed", took, answer["figures"], answer["estimates"], answer["raw"])


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a process and its descendants."""
    os.killpg(process.pid, signal.SIGKILL)


def read_results(folder: Path) -> dict[str, Result]:
    """Return the latest result of each row."""
    path = folder / "results.jsonl"
    found = [Result(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    return {one.row: one for one in found}


def hardware(*, rehearse: bool) -> str:
    """Return one line: GPUs, driver, versions."""
    packages = describe("torch", "transformers", "numba")
    if rehearse:
        return f"**A rehearsal on a CPU: no figure here was measured on a GPU.** {packages}"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    driver = gpu_check.driver_release() or "unknown"
    return f"{len(names)} x {names[0]}, driver {driver}, CUDA {torch.version.cuda}; {packages}"


def table(results: Mapping[str, Result], head: str, *, rehearse: bool) -> str:
    """Return the results in Markdown: figures, estimates with their errors, output; rows that did not run too."""
    text = ["# GPU day", "", head, "", "| row | result | s of budget | figures |", "| --- | --- | --- | --- |"]
    for name, row in ROWS.items():
        one, budget = results.get(name), row.rehearsal if rehearse else row.budget
        if one is None:
            text.append(f"| {name} | not run | - of {budget} | |")
            continue
        shown = "; ".join(f"{key} {value}" for key, value in one.figures.items()) or one.raw.strip().splitlines()[0]
        text.append(f"| {name} | {one.state} | {one.seconds:.0f} of {budget} | {shown.replace('|', '/')} |")
    text += [
        "",
        "| estimate of docs/speed.md | estimated | measured | measured / estimated |",
        "| --- | --- | --- | --- |",
    ]
    for one in results.values():
        for key, (expected, found) in one.estimates.items():
            text.append(f"| {key} | {expected:,.4g} | {found:,.4g} | {found / expected:.2f} |")
    for one in results.values():
        if one.raw:
            text += ["", f"## {one.row}", "", "```", one.raw.strip(), "```"]
    return "\n".join([*text, ""])


def main(words: list[str] | None = None) -> int:
    """Run the rows that did not pass yet; return 1 unless every row of the day has passed."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_day", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("gpu-day"), help="folder of the results")
    parser.add_argument("--rehearse", action="store_true", help="run every row on the CPU, with small sizes")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), help="rows to run (default: all)")
    arguments = parser.parse_args(words)
    if not arguments.rehearse and not torch.cuda.is_available():
        gpu_check.require_driver()
        parser.error("no GPU; --rehearse runs every row on the CPU")
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    results, head = read_results(folder), hardware(rehearse=arguments.rehearse)
    for name in arguments.rows:
        if name in results and results[name].state == "passed":
            continue
        found = results[name] = measure(name, folder, rehearse=arguments.rehearse)
        with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(found._asdict()) + "\n")
        (folder / "table.md").write_text(table(results, head, rehearse=arguments.rehearse), encoding="utf-8")
        first = "" if found.state == "passed" else f": {(found.raw.strip().splitlines() or ['no message'])[-1]}"
        print(f"{found.state:<7} {name} ({found.seconds:.0f} s){first}", flush=True)
    print(f"\n{folder / 'table.md'}")
    missing = [name for name in ROWS if name not in results or results[name].state != "passed"]
    if missing:
        print(f"incomplete: {', '.join(missing)}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
