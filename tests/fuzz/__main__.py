"""Fuzz a reader for some minutes, continue where the last slice ended, and add a line to results.jsonl.

    python -m tests.fuzz spec --minutes 9     # one reader
    python -m tests.fuzz --minutes 9          # the reader with the fewest minutes
    python -m tests.fuzz spec --keep          # write the smallest inputs of the working corpus to tests/fuzz/corpus
    python -m tests.fuzz --table              # print the sums as a table in Markdown

The working corpora and the findings are in `.fuzz`. It needs atheris: pip install -e '.[fuzz]'.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.fuzz.readers import READERS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS, CORPUS, WORK = HERE / "results.jsonl", HERE / "corpus", ROOT / ".fuzz"
LONGEST = 4096  # bytes of an input
KEPT = 40  # inputs of a reader in the repository
KEPT_BYTES = 16_000
HANG = 60  # seconds of wall-clock time, since a busy machine stops the process; the target notes 2 s of CPU time
MEMORY = 2048  # MB of the whole process, with the instrumented code and libFuzzer's corpus


def read_results() -> list[dict[str, Any]]:
    """Return one entry per slice."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def minutes_of(reader: str) -> float:
    """Return the CPU minutes of a reader so far."""
    return sum(float(one["minutes"]) for one in read_results() if one["reader"] == reader)


def fuzz(reader: str, seconds: float) -> dict[str, Any]:
    """Fuzz a reader; return the entry for results.jsonl."""
    work, findings = WORK / reader / "corpus", WORK / reader / "findings"
    for folder in (work, findings, CORPUS / reader):
        folder.mkdir(parents=True, exist_ok=True)
    before, begin, until = set(findings.iterdir()), cpu_seconds(), time.monotonic() + seconds
    executions = edges = 0
    while (left := int(until - time.monotonic())) > 5:  # libFuzzer ends at an input that hangs or kills the process
        command = [sys.executable, "-m", "tests.fuzz.target", reader, str(findings), str(work), str(CORPUS / reader)]
        command += [f"-max_total_time={left}", f"-max_len={LONGEST}", f"-timeout={HANG}", f"-rss_limit_mb={MEMORY}"]
        command += [f"-report_slow_units={HANG}"]  # by the wall clock, as the time-out
        command += [f"-artifact_prefix={findings}/", "-print_final_stats=1", "-reload=0"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
        found = re.findall(r"#(\d+)\s+\w+\s+cov: (\d+)", done.stderr)
        if not found:
            sys.stderr.write(done.stdout[-2000:] + done.stderr[-4000:])
            break
        counts = re.findall(r"number_of_executed_units: (\d+)", done.stderr)
        executions += int(counts[-1] if counts else found[-1][0])
        edges = max(edges, *(int(one) for _, one in found))
    new = {path.name for path in findings.iterdir()} - {path.name for path in before}
    return {
        "reader": reader,
        "minutes": round((cpu_seconds() - begin) / 60, 2),
        "executions": executions,
        "edges": edges,
        "findings": len([name for name in new if not name.endswith(".txt")]),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
    }


def cpu_seconds() -> float:
    """Return the CPU time of ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def commit() -> str:
    """Return the commit of the code, with a + if other files than the results differ from it."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=ROOT)
    differs = ["git", "diff", "--quiet", "HEAD", "--", ".", f":(exclude){RESULTS.relative_to(ROOT)}"]
    return head.stdout.strip() + "+" * subprocess.run(differs, cwd=ROOT, check=False).returncode


def keep(reader: str) -> None:
    """Write inputs that reach all edges of the working corpus to the repository, the smallest first."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "tests.fuzz.target", reader, str(WORK / reader / "findings"), name]
        command += [str(WORK / reader / "corpus"), "-merge=1", f"-max_len={LONGEST}", f"-timeout={HANG}"]
        subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        chosen = sorted(Path(name).iterdir(), key=lambda path: path.stat().st_size)[:KEPT]
        total = 0
        for path in chosen:
            total += path.stat().st_size
            if total <= KEPT_BYTES:
                shutil.copyfile(path, CORPUS / reader / f"kept-{path.name[:12]}")


def table() -> str:
    """Return the sums of all slices in Markdown."""
    lines = ["| reader | CPU minutes | executions | edges | findings |", "| --- | --- | --- | --- | --- |"]
    for reader in READERS:
        own = [one for one in read_results() if one["reader"] == reader]
        sums = [sum(one[key] for one in own) for key in ("minutes", "executions", "findings")]
        edges = max((one["edges"] for one in own), default=0)
        lines.append(f"| {reader} | {sums[0]:.1f} | {sums[1]:,} | {edges:,} | {sums[2]} |")
    return "\n".join(lines)


def main() -> int:
    """Run a slice; return 1 if it found anything."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("reader", nargs="?", choices=sorted(READERS), help="default: the one with the fewest minutes")
    parser.add_argument("--minutes", type=float, default=9.0, help="wall-clock time (default: 9)")
    parser.add_argument("--keep", action="store_true", help="write inputs to the repository instead of fuzzing")
    parser.add_argument("--table", action="store_true", help="print the sums, and run nothing")
    given = parser.parse_args()
    if given.table:
        print(table())
        return 0
    reader = given.reader or min(READERS, key=minutes_of)
    if given.keep:
        keep(reader)
        return 0
    entry = fuzz(reader, 60 * given.minutes)
    with RESULTS.open("a") as stream:
        stream.write(json.dumps(entry) + "\n")
    print(json.dumps(entry))
    return int(entry["findings"] > 0)


if __name__ == "__main__":
    sys.exit(main())
