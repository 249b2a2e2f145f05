"""docs/faults.md, from the results of the campaign."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults.campaign.faults import FAULTS
from tests.faults.campaign.trial import Outcome

PAGE = Path(__file__).resolve().parents[3] / "docs" / "faults.md"
HEAD = """# Faults

What holds when something dies, counted. A trial submits a real job as a user does. A fault happens at a moment drawn
uniformly from the duration of an undisturbed run, start-up and end included; if it hits a rank, from that of its ranks,
counted from the start of the first. If there is nothing to hit nevertheless, it is no trial, and another seed is drawn.
A system call is drawn uniformly from all of an undisturbed run; a full disk has room for a uniformly drawn part of what
such a run leaves. Then the commands that a status proposes bring the job to its end: `resume`, or the same `submit` if
no run exists yet. The reference is an undisturbed run. The goal is 100 trials of each fault, at least 10 with each kind
of job; of a network that is away for 100 s, it is 10. `times` is the number of trials that ran, 0 in a row that is not
tried yet. A trial that failed is repeated with its seed after a repair. The last outcome counts, and `failed before` is
the number of seeds that failed in an earlier trial and pass now.

Each trial has a home and a folder for temporary files (`TMPDIR`) of its own. The second must be empty at the end; only
an empty cache of torch (`torchinductor_USER`) may remain. `reason true` is `true of ended`: of the trials in which the
fault ended a run or the sweep, how many reasons name the fault. It is `-` where none ended. A fault that may not end a
run has no true reason.

The jobs last some seconds, and runs of less than 15 s are copied to MLflow only at their end. Half of the trials, and
all with faults of the copy, are copied from their start (`ORCHESTRATOR_MLFLOW_AFTER=0`).

The clock of a trial is `time.time` of its Python processes. Times of files, `datetime.now` and programs in other
languages keep the real clock. libfaketime is not used, because it also changes the time since the boot, which a clock
that is set does not.

| column | counted as held if |
| --- | --- |
| same bytes | weights, token store, predictions or scores have the same SHA-256 as those of the undisturbed run |
| metrics once | every figure of every step is reported once, with the same value |
| one MLflow run | every run is one MLflow run; where the fault hits the copy or its store, after `mlflow sync --all` |
| nothing left | no process and no temporary file remains |
| reason true | every run, and the sweep, that ended by the fault names it |
| noticed | median and maximum of the seconds until the status reported the end |

"""
FOOT = """
`make faults` runs a slice of nine minutes and resumes where the last one ended. `python -m tests.faults.campaign
--repeat` repeats the failing trials, each with its seed. `--page` writes this page from
[the results](../tests/faults/campaign/results.jsonl).
"""
EXPLAINED = {
    ("call-rank", "nodes-2", 4): (
        "Python's `tempfile` tries a folder with a file of four bytes. The kill came as a rank deleted it."
        " Nothing of ours can delete it afterwards: another program's file would look the same."
    )
}
"""Fault, kind and seed of a failing trial that is not repaired -> the cause."""
COLUMNS = (
    "fault",
    "job",
    "times",
    "failed before",
    "same bytes",
    "metrics once",
    "one MLflow run",
    "nothing left",
    "reason true",
    "noticed (s)",
)


def last_outcomes(every: Sequence[Outcome]) -> list[Outcome]:
    """Return the last outcome of each trial: of a fault, a kind of job and a seed."""
    return list({(one.fault, one.kind, one.seed): one for one in every}.values())


def page(every: Sequence[Outcome]) -> str:
    """Return the page.

    Args:
        every: all outcomes in their order, also of trials that were repeated.
    """
    found = last_outcomes(every)
    repaired = list(_repaired(every, found))
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + " --- |" * len(COLUMNS), *_rows(found, repaired)]
    lists = [*_failures(found), *_failed_before(repaired)]
    return HEAD + " ".join(_summary(found)) + "\n\n" + "\n".join(lines) + "\n" + "".join(lists) + _costs(found) + FOOT


def _summary(found: Sequence[Outcome]) -> Iterator[str]:
    """Yield sentences on all trials: dates, machines, commits and seeds."""
    if not found:
        return
    dates = sorted({one.date for one in found})
    yield f"{len(found)} trials, {dates[0]} to {dates[-1]}."
    machines = Counter(one.machine for one in found).most_common()
    yield f"Trials by machine: {'; '.join(f'{times} on {machine}' for machine, times in machines)}."
    yield f"Commits: `{' '.join(sorted({one.commit for one in found}))}`."
    gone = [one.commit for one in found if not one.in_history]
    if gone:
        what = f"commit of {len(gone)} trial is" if len(gone) == 1 else f"commits of {len(gone)} trials are"
        yield f"The {what} not in the history of the project: {', '.join(sorted(set(gone)))}."
    seeds = dict[tuple[str, str], list[int]]()
    for one in found:
        seeds.setdefault((one.fault, one.kind), []).append(one.seed)
    if missing := sum(max(drawn) + 1 - len(drawn) for drawn in seeds.values()):
        yield f"At the moments of {missing} more seeds there was nothing to hit."


def _repaired(every: Sequence[Outcome], found: Sequence[Outcome]) -> Iterator[tuple[list[Outcome], Outcome]]:
    """Yield the failures and the last outcome of each trial that failed before and passes now."""
    for last in found:
        trial = (last.fault, last.kind, last.seed)
        failures = [one for one in every if (one.fault, one.kind, one.seed) == trial and not one.passed]
        if last.passed and failures:
            yield failures, last


def _rows(found: Sequence[Outcome], repaired: Sequence[tuple[list[Outcome], Outcome]]) -> Iterator[str]:
    for name, fault in FAULTS.items():
        for kind in fault.kinds:
            ours = [one for one in found if (one.fault, one.kind) == (name, kind)]
            before = sum((last.fault, last.kind) == (name, kind) for _, last in repaired)
            cells = [str(before), *_cells(ours)] if ours else ["-"] * (len(COLUMNS) - 3)
            yield f'| <a id="{name}-{kind}"></a>{fault.text} | {kind} | {len(ours)} | {" | ".join(cells)} |'


def _cells(ours: Sequence[Outcome]) -> Iterator[str]:
    kept = (
        [one.same_bytes for one in ours],
        [one.metrics_once for one in ours],
        [one.mlflow_runs for one in ours],
        [not (one.processes_left or one.files_left) for one in ours],
    )
    for column in kept:
        yield f"{sum(column)}" if all(column) else f"**{sum(column)}**"
    true = [one.reason_true for one in ours if one.ended]
    count = f"{sum(true)} of {len(true)}" if true else "-"
    yield count if all(true) else f"**{count}**"
    seconds = [one.noticed for one in ours if one.noticed is not None]
    yield f"{statistics.median(seconds):.1f} (at most {max(seconds):.1f})" if seconds else "-"


def _costs(found: Sequence[Outcome]) -> str:
    """Return a table with the processor time of trials by kind of job."""
    seconds: dict[str, list[float]] = {}
    for one in found:
        if one.cpu:
            seconds.setdefault(one.kind, []).append(one.cpu)
    if not seconds:
        return ""
    rows = "".join(f"| {kind} | {statistics.median(found):.0f} |\n" for kind, found in seconds.items())
    return f"\n| job | processor seconds of a trial with the commands after the fault, median |\n| --- | --- |\n{rows}"


def _failures(found: Sequence[Outcome]) -> Iterator[str]:
    failing = [one for one in found if not one.passed]
    if failing:
        yield "\n## Failing trials\n\n"
    for one in failing:
        yield f"- {_trial(one)}: {_what_failed(one)}\n"
        if (reason := EXPLAINED.get((one.fault, one.kind, one.seed))) is not None:
            yield f"  {reason}\n"


def _failed_before(repaired: Sequence[tuple[list[Outcome], Outcome]]) -> Iterator[str]:
    if repaired:
        yield "\n## Trials that failed before and pass now\n\n"
    for failures, last in repaired:
        commits = ", ".join(dict.fromkeys(_commit(one) for one in failures))
        yield f"- {_trial(last)}: failed on {commits}, passes on {_commit(last)}: {_what_failed(failures[-1])}\n"
        if last.commit in {one.commit for one in failures}:
            yield "  **It failed and passed on the same commit: no repair explains the difference.**\n"


def _commit(one: Outcome) -> str:
    return one.commit if one.in_history else f"{one.commit} (not in the history)"


def _trial(one: Outcome) -> str:
    where = f"at {one.moment:.0%}" + (f", {one.detail}" if one.detail else "")
    return f"{one.fault}, {one.kind}, seed {one.seed} ({where})"


def _what_failed(one: Outcome) -> str:
    facts = {
        "bytes differ": not one.same_bytes,
        "metrics differ": not one.metrics_once,
        "MLflow runs differ": not one.mlflow_runs,
        f"processes left: {', '.join(one.processes_left)}": bool(one.processes_left),
        f"files left: {', '.join(one.files_left)}": bool(one.files_left),
        f"reason: {one.reason or 'none'}": not one.reason_true,
        f"not completed: {_error_alone(one.problem)}": bool(one.problem),
    }
    return " ".join("; ".join(text for text, holds in facts.items() if holds).split())


def _error_alone(problem: str) -> str:
    """Return the end of an error, without the next commands and without the folder of the trial."""
    return re.sub(r"/tmp/tmp\w+/", "", re.split(r"^next$", problem, flags=re.MULTILINE)[0])
