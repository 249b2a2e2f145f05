"""Measure and check on a machine with GPUs everything that could not be tested without one, in 25 minutes.

    python -m benchmarks.gpu_day                 # make gpu-day
    python -m benchmarks.gpu_day --rehearse      # every row on the CPU, with small sizes

On one GPU or several. Each row is a process of its own with a budget of seconds. A row that passed is not repeated:
start it again after an interruption. gpu-day/results.jsonl has all results, gpu-day/table.md the table: hardware,
versions, figures, which estimate of docs/speed.md was wrong by how much, and the output of all programs.
"""

from __future__ import annotations

import argparse
import json
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

SLOWER = 8  # times the budget for a row of a rehearsal: a busy CPU compiles slowly


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
    """Run a row in a process of its own, within its budget."""
    command = [sys.executable, "-m", "benchmarks.gpu_rows", row, str(folder), *(["--rehearse"] if rehearse else [])]
    limit = ROWS[row].budget * (SLOWER if rehearse else 1)
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as problem:
        said = problem.stderr.decode() if isinstance(problem.stderr, bytes) else problem.stderr or ""
        return Result(row, "late", limit, {}, {}, f"no result within {limit} s\n{said[-1500:]}")
    took = time.monotonic() - started
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode or not last.startswith("{"):
        return Result(row, "failed", took, {}, {}, (done.stdout + done.stderr)[-3000:])
    answer = json.loads(last)
    if "failed" in answer:
        return Result(row, "failed", took, {}, {}, answer["failed"])
    return Result(row, "passed", took, answer["figures"], answer["estimates"], answer["raw"])


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


def table(results: Mapping[str, Result], head: str) -> str:
    """Return the results in Markdown: figures, estimates with their errors, output; rows that did not run too."""
    text = ["# GPU day", "", head, "", "| row | result | s of budget | figures |", "| --- | --- | --- | --- |"]
    for name, row in ROWS.items():
        one = results.get(name)
        if one is None:
            text.append(f"| {name} | not run | - of {row.budget} | |")
            continue
        shown = "; ".join(f"{key} {value}" for key, value in one.figures.items()) or one.raw.strip().splitlines()[0]
        text.append(f"| {name} | {one.state} | {one.seconds:.0f} of {row.budget} | {shown.replace('|', '/')} |")
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
    """Run all rows that did not pass yet; return 1 if one did not pass."""
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
        (folder / "table.md").write_text(table(results, head), encoding="utf-8")
        first = "" if found.state == "passed" else f": {(found.raw.strip().splitlines() or ['no message'])[-1]}"
        print(f"{found.state:<7} {name} ({found.seconds:.0f} s){first}", flush=True)
    print(f"\n{folder / 'table.md'}")
    missing = [name for name in arguments.rows if name not in results or results[name].state != "passed"]
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
