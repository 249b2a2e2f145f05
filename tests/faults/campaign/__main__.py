"""Run a slice of the campaign, or write its page."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.machine import machine
from tests.faults.campaign.faults import FAULTS
from tests.faults.campaign.page import PAGE, last_outcomes, page
from tests.faults.campaign.scene import Undisturbed
from tests.faults.campaign.trial import Outcome, adopt_processes, run_trial, undisturbed

RESULTS = Path(__file__).parent / "results.jsonl"
OWN = (":(top,exclude)tests/faults/campaign/results.jsonl", ":(top,exclude)docs/faults.md")  # written by the campaign
LEAST = 10  # trials of a fault and a kind


def read_results(path: Path = RESULTS) -> list[Outcome]:
    """Return the outcome of each trial so far; of one that was repeated, the last."""
    return last_outcomes(read_every_result(path))


def read_every_result(path: Path = RESULTS) -> list[Outcome]:
    """Return all outcomes so far in their order, also of trials that were repeated."""
    if not path.exists():
        return []
    return [Outcome.model_validate_json(line) for line in path.read_text().splitlines()]


def wanted(found: list[Outcome], faults: list[str], kinds: list[str]) -> list[tuple[str, str]]:
    """Return the cells (fault, kind) that need more trials, those with the fewest first."""
    done = Counter((one.fault, one.kind) for one in found)
    cells = [(fault, kind) for fault in faults for kind in FAULTS[fault].kinds if kind in kinds]
    goal = {fault: max(-(-FAULTS[fault].times // len(FAULTS[fault].kinds)), LEAST) for fault in faults}
    return sorted((cell for cell in cells if done[cell] < goal[cell[0]]), key=lambda cell: done[cell])


def main() -> int:
    """Run trials until the time is over; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no trial after this time (default: 9)")
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), help="only this fault; may be repeated")
    parser.add_argument("--kind", action="append", help="only this kind of job; may be repeated")
    parser.add_argument("--repeat", action="store_true", help="repeat the failing trials, each with its seed")
    parser.add_argument("--seed", action="append", type=int, help="only this seed, again if it was tried")
    parser.add_argument("--page", action="store_true", help="write docs/faults.md from the results, and run nothing")
    given = parser.parse_args()
    if given.page:
        PAGE.write_text(page(read_every_result()))
        return 0
    faults = [name for name in given.fault or FAULTS if not _skipped(name)]
    adopt_processes()
    kinds = given.kind or sorted({kind for fault in FAULTS.values() for kind in fault.kinds})
    until, references, failed = time.monotonic() + 60 * given.minutes, dict[tuple[str, bool], Undisturbed](), 0
    for fault, kind, seed, detail in due(faults, kinds, repeat=given.repeat, seeds=given.seed):
        # the jobs are short: half of them are copied to MLflow only at their end, as short ones are
        live = FAULTS[fault].hits_copy or seed % 2 == 1
        if (kind, live) not in references:
            references[kind, live] = undisturbed(kind, live=live)
        if time.monotonic() > until:
            break
        outcome = run_trial(fault, kind, seed, references[kind, live], stamp(), detail=detail)
        if outcome is None:
            print(f"{fault} {kind} {seed}: there was nothing to hit", flush=True)
            continue
        with RESULTS.open("a") as stream:
            stream.write(outcome.model_dump_json() + "\n")
        failed += not outcome.passed
        told = f"{fault} {kind} {seed} at {outcome.moment:.0%}, {outcome.cpu:.0f} s of CPU"
        print(f"{told}: {'ok' if outcome.passed else outcome}", flush=True)
    return int(failed > 0)


def due(
    faults: list[str], kinds: list[str], *, repeat: bool, seeds: list[int] | None = None
) -> Iterator[tuple[str, str, int, str]]:
    """Yield fault, kind and seed of each trial to run: those that failed, those of some seeds, or new ones.

    The last value is what a failed trial hit, to be hit again.
    """
    if seeds:
        yield from (
            (fault, kind, seed, "")
            for fault in faults
            for kind in FAULTS[fault].kinds
            if kind in kinds
            for seed in seeds
        )
        return
    if repeat:
        for one in read_results():
            if not one.passed and one.fault in faults and one.kind in kinds:
                yield one.fault, one.kind, one.seed, one.detail
        return
    tried = {(one.fault, one.kind, one.seed) for one in read_results()}
    while cells := wanted(read_results(), faults, kinds):
        fault, kind = cells[0]
        seed = next(number for number in range(10**6) if (fault, kind, number) not in tried)
        tried.add((fault, kind, seed))
        yield fault, kind, seed, ""


def _skipped(fault: str) -> bool:
    """Return whether a fault cannot be tried on this machine, and print why."""
    why = FAULTS[fault].needs()
    if why:
        print(f"skipped {fault}: {why}", file=sys.stderr, flush=True)
    return bool(why)


def stamp() -> dict[str, str]:
    """Return commit, date and machine of a trial; a commit with changed files ends with `+`."""
    commit, changed = (
        subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
        for words in (
            ("rev-parse", "--short", "HEAD"),
            ("status", "--porcelain", "--untracked-files=no", "--", ".", *OWN),
        )
    )
    date = datetime.now(UTC).date().isoformat()
    return {"commit": commit + "+" * bool(changed), "date": date, "machine": machine("torch")}


if __name__ == "__main__":
    sys.exit(main())
