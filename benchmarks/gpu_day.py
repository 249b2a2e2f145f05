"""Measure and check on a machine with GPUs everything that could not be tested without one, in 25 minutes.

    python -m benchmarks.gpu_day                 # make gpu-day
    python -m benchmarks.gpu_day --rehearse      # every row on the CPU, with small sizes: at most 25 minutes

On one GPU or several. Each row is a process of its own with a budget of seconds. A row that passed is not repeated with
the same GPUs, driver, torch and commit: start it again after an interruption. The exit code is 1 until every row has
passed, including rows that `--rows` left out. On a GPU day a row may be not applicable instead, such as one that needs
two GPUs. gpu-day/results.jsonl has all results, gpu-day/table.md the table: hardware, versions, figures, which estimate
of docs/speed.md was wrong by how much, and the output of all programs. A rehearsal writes to gpu-rehearsal.
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
from benchmarks.machine import commit, describe
from train_jobs.engine.runtime import gpu_check


class Result(NamedTuple):
    """Result of a row."""

    row: str
    state: str
    """passed, failed, late or not applicable."""
    seconds: float
    figures: dict[str, Any]
    estimates: dict[str, tuple[float, float]]
    raw: str
    """Output, or the reason of another state."""
    setting: dict[str, Any] = {}  # noqa: RUF012 - never changed
    """What the result holds for, see `setting_of`."""


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
        said = (out + errors).strip()[-3000:] or f"ended with {process.returncode} and no output"
        return Result(row, "failed", took, {}, {}, said)
    answer = json.loads(last)
    for state in ("failed", "not applicable"):
        if state in answer:
            return Result(row, state, took, {}, {}, answer[state])
    if not answer["figures"]:
        return Result(row, "failed", took, {}, {}, "no figures: the row measured nothing")
    return Result(row, "passed", took, answer["figures"], answer["estimates"], answer["raw"])


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a process and its descendants."""
    os.killpg(process.pid, signal.SIGKILL)


def setting_of(*, rehearse: bool) -> dict[str, Any]:
    """Return what a result holds for: with another mode, GPU, number of GPUs, version or commit it is void."""
    gpus = 0 if rehearse else torch.cuda.device_count()
    return {
        "mode": "rehearsal" if rehearse else "day",
        "gpu": torch.cuda.get_device_name(0) if gpus else None,
        "gpus": gpus,
        "driver": (gpu_check.driver_release() or "unknown") if gpus else None,
        "torch": torch.__version__,
        "commit": commit(),
    }


def read_results(folder: Path, setting: Mapping[str, Any]) -> dict[str, Result]:
    """Return the latest result of each row that holds for a setting."""
    path = folder / "results.jsonl"
    found = [Result(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    return {one.row: one for one in found if one.row in ROWS and _holds(one, setting)}


def _holds(one: Result, setting: Mapping[str, Any]) -> bool:
    # Most rows use one GPU, however many there are.
    gpus = {} if ROWS[one.row].all_gpus else {"gpus": setting["gpus"]}
    return bool(one.setting) and {**one.setting, **gpus} == setting


def hardware(setting: Mapping[str, Any]) -> str:
    """Return one line: GPUs, driver, versions, commit."""
    packages = f"{describe('torch', 'transformers', 'numba')}, commit {setting['commit']}"
    if setting["mode"] == "rehearsal":
        return f"**A rehearsal on a CPU: no figure here was measured on a GPU.** {packages}"
    gpus = f"{setting['gpus']} x {setting['gpu']}, driver {setting['driver']}"
    return f"{gpus}, CUDA {torch.version.cuda}; {packages}"


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
        if one.raw and one.state != "not applicable":
            text += ["", f"## {one.row}", "", "```", one.raw.strip(), "```"]
    return "\n".join([*text, ""])


def main(words: list[str] | None = None) -> int:
    """Run the rows that are open; return 1 unless every row passed or, on a GPU day, is not applicable."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_day", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="folder of the results (default: gpu-day or gpu-rehearsal)")
    parser.add_argument("--rehearse", action="store_true", help="run every row on the CPU, with small sizes")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), help="rows to run (default: all)")
    arguments = parser.parse_args(words)
    if not arguments.rehearse and not torch.cuda.is_available():
        gpu_check.require_driver()
        parser.error("no GPU; --rehearse runs every row on the CPU")
    folder: Path = arguments.folder or Path("gpu-rehearsal" if arguments.rehearse else "gpu-day")
    folder.mkdir(parents=True, exist_ok=True)
    setting = setting_of(rehearse=arguments.rehearse)
    results, head = read_results(folder, setting), hardware(setting)
    # A rehearsal runs every row, so that the day itself has no row that never ran.
    done = ("passed",) if arguments.rehearse else ("passed", "not applicable")
    for name in arguments.rows:
        if name in results and results[name].state in done:
            continue
        found = results[name] = measure(name, folder, rehearse=arguments.rehearse)._replace(setting=setting)
        with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(found._asdict()) + "\n")
        (folder / "table.md").write_text(table(results, head, rehearse=arguments.rehearse), encoding="utf-8")
        first = "" if found.state == "passed" else f": {(found.raw.strip().splitlines() or ['no message'])[-1]}"
        print(f"{found.state:<7} {name} ({found.seconds:.0f} s){first}", flush=True)
    print(f"\n{folder / 'table.md'}")
    missing = [name for name in ROWS if name not in results or results[name].state not in done]
    if missing:
        print(f"incomplete: {', '.join(missing)}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
