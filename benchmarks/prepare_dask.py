"""Preparation on Dask: its rate against the pool of processes, the cost of a task, scaling, and 1 TB of text.

    python -m benchmarks.prepare_dask pool [--data ../shared/data] [--mb 200] [--rounds 3]
    python -m benchmarks.prepare_dask plain --base CHECKOUT [--mb 100] [--rounds 3]
    python -m benchmarks.prepare_dask tasks [--count 1000]
    python -m benchmarks.prepare_dask idle
    python -m benchmarks.prepare_dask scaling [--seconds 0.5] [--tasks-per-worker 16]
    python -m benchmarks.prepare_dask serial --worker-mb 8.3

Prints tables in Markdown. `pool` prepares the same text with two workers of the pool and with two of Dask, in turn.
`plain` does so with one worker of this checkout and one of another checkout. Processor seconds are the sum over the
whole family of processes, read five times a second; on a machine that others use, their ratio is more reliable.
Memory is PSS. `tasks` gives empty tasks to the executor. `idle` reads the processor time of a cluster
of two workers without work. `scaling` gives tasks that sleep for lengths drawn around a mean, with a fixed seed, to 1,
2, 4 and 8 workers: it measures scheduling, not the cores. `serial` measures the work that the first node does alone,
and computes what 1 TB of text takes on 32 nodes of 16 cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks import prepare_corpus
from benchmarks.machine import describe, spread
from benchmarks.prepare import _family, _megabytes
from train_jobs.artifacts.files import file_sha256
from train_jobs.config import TextConfig
from train_jobs.corpus.executors.dask_cluster import OwnCluster
from train_jobs.corpus.executors.dask_executor import DaskExecutor
from train_jobs.corpus.executors.node import Node
from train_jobs.corpus.sources.text_parts import Part
from train_jobs.corpus.steps.documents import HASHES, find_duplicates, hashes_file
from train_jobs.corpus.steps.records import PartTask, PreparationSetting

TICKS = os.sysconf("SC_CLK_TCK")
POLL_SECONDS, IDLE_SECONDS = 0.2, 20
TEXT_BYTES, NODES, CORES = 1e12, 32, 16
PART_BYTES = 64e6
SCHEDULER_SECONDS = 6.8e-3  # of its processor for each task, the largest of the table `tasks`
SERIAL_BYTES, SERIAL_PARTS, SERIAL_DOCUMENTS = 256 << 20, 8, 500_000
VALIDATION_SHARE = 0.05 * 0.5  # of the text: 5% of the documents, half a byte of shard for each byte of text
DOCUMENT_BYTES = 3000  # of web text; decides the number of hashes


@dataclass(frozen=True)
class Family:
    """Time and memory of a process and its descendants."""

    seconds: float
    cpu: float
    peak_worker: float
    """Megabytes of the largest worker process."""


def main() -> None:
    """Print the table that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("table", choices=["pool", "plain", "tasks", "idle", "scaling", "serial"])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of texts and vocabularies")
    parser.add_argument("--base", type=Path, help="plain: another checkout")
    parser.add_argument("--mb", type=int, default=200, help="megabytes of text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=1000, help="tasks: number of empty tasks")
    parser.add_argument("--seconds", type=float, default=0.5, help="scaling: mean length of a task")
    parser.add_argument("--worker-mb", type=float, help="serial: MB of text per processor second, of the table `pool`")
    parser.add_argument("--tasks-per-worker", type=int, default=16)
    arguments = parser.parse_args()
    print(describe("pyarrow", "numpy", "tokenizers", "distributed"), flush=True)
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}", flush=True)
    match arguments.table:
        case "pool":
            with _text(arguments.data, arguments.mb) as (work, size):
                compare_executors(arguments.data.resolve(), work, size, arguments.rounds)
        case "plain":
            with _text(arguments.data, arguments.mb) as (work, size):
                compare_checkouts(arguments.data.resolve(), work, size, arguments.base.resolve(), arguments.rounds)
        case "tasks":
            empty_tasks(arguments.count)
        case "idle":
            idle()
        case "scaling":
            scaling(arguments.seconds, arguments.tasks_per_worker)
        case "serial":
            serial(arguments.worker_mb * 1e6)


@contextmanager
def _text(data: Path, megabytes: int) -> Iterator[tuple[Path, int]]:
    """Write text into a temporary folder; yield the folder and the bytes."""
    with tempfile.TemporaryDirectory() as folder:
        documents = prepare_corpus.documents(data.resolve())
        yield Path(folder), prepare_corpus.write(documents, Path(folder, "text"), megabytes * 1_000_000)


def compare_executors(data: Path, work: Path, size: int, rounds: int) -> None:
    """Print the rates of the pool and of Dask with two workers, and whether their stores are equal."""
    print("\n| two workers | s | MB/s | CPU s | peak memory of a worker, MB |\n|---|---|---|---|---|", flush=True)
    found: dict[str, list[Family]] = {"processes": [], "dask": []}
    for number in range(rounds):
        for name in sorted(found, reverse=number % 2 == 0):
            found[name].append(_prepare(data, work, Path.cwd(), name, workers=2, executor=name))
            _row(name, size, found[name][-1])
    _equal(work, "processes", "dask")
    _ratios("Dask's rate relative to the pool's", found["processes"], found["dask"])


def compare_checkouts(data: Path, work: Path, size: int, base: Path, rounds: int) -> None:
    """Print the rates of this checkout and of another one with one worker."""
    print("\n| one worker | s | MB/s | CPU s | peak memory of a worker, MB |\n|---|---|---|---|---|", flush=True)
    found: dict[str, list[Family]] = {"base": [], "this": []}
    for number in range(rounds):
        for name in sorted(found, reverse=number % 2 == 0):
            place = base if name == "base" else Path.cwd()
            found[name].append(_prepare(data, work, place, name, workers=1, executor=None))
            _row(name, size, found[name][-1])
    _equal(work, "base", "this")
    _ratios("this rate relative to the other's", found["base"], found["this"])


def _row(name: str, size: int, found: Family) -> None:
    figures = f"{found.seconds:.1f} | {size / 1e6 / found.seconds:.1f} | {found.cpu:.1f} | {found.peak_worker:.0f}"
    print(f"| {name} | {figures} |", flush=True)


def _ratios(what: str, before: Sequence[Family], after: Sequence[Family]) -> None:
    clock = [one.seconds / other.seconds for one, other in zip(before, after, strict=True)]
    cpu = [one.cpu / other.cpu for one, other in zip(before, after, strict=True)]
    print(f"\n{what}, median (min-max) of pairs: {spread(clock, digits=2)} by the clock, {spread(cpu, digits=2)} by")
    print("processor seconds", flush=True)


def _equal(work: Path, one: str, other: str) -> None:
    first, second = ({p.name: p.read_bytes() for p in Path(work, f"store-{name}").iterdir()} for name in (one, other))
    print(f"\nstores byte-equal: {first == second}")


def _prepare(data: Path, work: Path, place: Path, name: str, *, workers: int, executor: str | None) -> Family:
    """Run `python -m train_jobs.prepare` of a checkout from scratch."""
    store, output, config = work / f"store-{name}", work / "output", work / "prepare.json"
    for folder in (store, output):
        shutil.rmtree(folder, ignore_errors=True)
    section = {"text": [str(work / "text")], "vocabulary": str(data / "bert" / "vocab_uncased.txt"), "workers": workers}
    section |= {"executor": executor} if executor else {}
    config.write_text(json.dumps({"data": section, "store": str(store)}))
    words = ["-m", "train_jobs.prepare", "--config", str(config), "--output", str(output)]
    return _watched(words, place)


def _watched(words: list[str], place: Path) -> Family:
    """Run Python and watch its family.

    Raises:
        RuntimeError: it failed.
    """
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], cwd=place, stdout=subprocess.DEVNULL)
    cpu: dict[int, float] = {}
    peak = 0.0
    while process.poll() is None:
        for pid in _family(process.pid):
            cpu[pid] = max(cpu.get(pid, 0.0), _cpu(pid))
            if pid != process.pid:
                peak = max(peak, _megabytes(pid))
        time.sleep(POLL_SECONDS)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}")
    return Family(time.perf_counter() - started, sum(cpu.values()), peak)


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def sleep_task(setting: str, task: str, topic: str, versions: str) -> str:
    """Sleep for the length of a task, which is its size in microseconds; run on a Dask worker."""
    time.sleep(json.loads(task)["size"] / 1e6)
    return json.dumps({"record": "{}", "read": [0, 0]})


def _run(workers: int, lengths: Sequence[float]) -> tuple[float, float]:
    """Run tasks of given lengths on a cluster of its own; return the seconds, and the scheduler's CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        setting = PreparationSetting(data=TextConfig(), store=place, folder=place, block_tokens=1)
        part = Part(0, "part", 0, "text", ())
        tasks = [
            PartTask(step="documents", number=number, part=part, key="0" * 16, size=int(length * 1e6))
            for number, length in enumerate(lengths)
        ]
        cluster = OwnCluster(place, Node(), "key", workers)
        with DaskExecutor(setting, cluster, lambda text: None, function=sleep_task) as executor:
            first = [task.model_copy(update={"size": 100_000}) for task in tasks[: 2 * workers]]
            while executor.workers < workers:
                list(executor.run(first, lambda count, documents: None))
            before, started = _cpu(cluster.scheduler_pid), time.perf_counter()
            assert len(list(executor.run(tasks, lambda count, documents: None))) == len(tasks)
            return time.perf_counter() - started, _cpu(cluster.scheduler_pid) - before


def empty_tasks(count: int) -> None:
    """Print what a task costs that does nothing."""
    print("\n| workers | empty tasks | tasks/s | ms per task | CPU ms of the scheduler per task |")
    print("|---|---|---|---|---|", flush=True)
    for workers in (1, 2, 4):
        seconds, cpu = _run(workers, [0.0] * count)
        print(
            f"| {workers} | {count} | {count / seconds:.0f} | {1e3 * seconds / count:.2f} | {1e3 * cpu / count:.2f} |",
            flush=True,
        )


def idle() -> None:
    """Print the share of a core that a cluster of two workers takes without work."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        setting = PreparationSetting(data=TextConfig(), store=place, folder=place, block_tokens=1)
        task = PartTask(step="documents", number=0, part=Part(0, "part", 0, "text", ()), key="0" * 16, size=0)
        with DaskExecutor(setting, OwnCluster(place, Node(), "key", 2), lambda text: None, sleep_task) as executor:
            while executor.workers < 2:
                list(executor.run([task], lambda count, documents: None))
            family = list(_family(os.getpid()))
            before, started = sum(map(_cpu, family)), time.perf_counter()
            time.sleep(IDLE_SECONDS)
            share = (sum(map(_cpu, family)) - before) / (time.perf_counter() - started)
    print(f"\na cluster of two workers without work: {share:.1%} of a core", flush=True)


def scaling(seconds: float, each: int) -> None:
    """Print the efficiency of scheduling for tasks of a mean length."""
    print("\n| workers | tasks | mean s of a task | s | ideal s | efficiency | of which the tail |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for workers in (1, 2, 4, 8):
        draw = random.Random(workers)
        lengths = [seconds * draw.uniform(0.5, 1.5) for _ in range(each * workers)]
        took, _ = _run(workers, lengths)
        ideal = sum(lengths) / workers
        greedy = _greedy(lengths, workers)
        print(
            f"| {workers} | {len(lengths)} | {statistics.mean(lengths):.2f} | {took:.1f} | {ideal:.1f} |"
            f" {ideal / took:.1%} | {(greedy - ideal) / took:.1%} |",
            flush=True,
        )


def _greedy(lengths: Sequence[float], workers: int) -> float:
    """Return the seconds of a schedule without any cost, each task to the first free worker."""
    free = [0.0] * workers
    for length in lengths:
        index = free.index(min(free))
        free[index] += length
    return max(free)


def serial(worker: float) -> None:
    """Print the rates of what the first node does alone, and the model of 1 TB.

    Args:
        worker: bytes of text per processor second of a worker, all steps together.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text")
        path.write_bytes(random.Random(1).randbytes(1 << 20) * (SERIAL_BYTES >> 20))
        started = time.process_time()
        file_sha256(path)
        hashing = SERIAL_BYTES / (time.process_time() - started)
        draw = np.random.default_rng(1)
        for part in range(SERIAL_PARTS):
            high = np.sort(draw.integers(0, 1 << 63, SERIAL_DOCUMENTS, dtype=np.uint64) * np.uint64(2))
            low, place = high.copy(), np.arange(SERIAL_DOCUMENTS, dtype=np.uint32)
            with Path(folder, hashes_file(part)).open("wb") as stream, pa.ipc.new_file(stream, HASHES) as writer:
                writer.write_batch(pa.record_batch([pa.array(column) for column in (high, low, place)], schema=HASHES))
        started = time.process_time()
        find_duplicates(Path(folder), [SERIAL_DOCUMENTS] * SERIAL_PARTS, key="k")
        duplicates = SERIAL_PARTS * SERIAL_DOCUMENTS / (time.process_time() - started)
    model(hashing, duplicates, worker, VALIDATION_SHARE)


def model(hashing: float, duplicates: float, worker: float, validation: float) -> None:
    """Print what 1 TB takes.

    Args:
        hashing: bytes per second of one core that hashes files.
        duplicates: documents per second in the search for duplicates.
        worker: bytes of text per processor second of a worker, all steps together.
        validation: bytes of validation shards for each byte of text, which the first node reads for the manifest.
    """
    documents, workers, parts = TEXT_BYTES / DOCUMENT_BYTES, NODES * CORES, TEXT_BYTES / PART_BYTES
    work, scheduler = TEXT_BYTES / worker / workers, 2 * parts * SCHEDULER_SECONDS
    rows = {
        f"hash the text, {CORES} cores of the first node, {hashing / 1e6:,.0f} MB/s each": TEXT_BYTES / hashing / CORES,
        f"documents and tokens, {workers} workers, {worker / 1e6:.1f} MB/s each": max(work, scheduler),
        f"duplicates, one core, {duplicates / 1e3:,.0f} thousand documents/s": documents / duplicates,
        "held-out shards for the manifest, one core": TEXT_BYTES * validation / hashing,
    }
    print(f"\n{TEXT_BYTES / 1e12:.0f} TB, {documents / 1e6:.0f} million documents, {NODES} x {CORES} cores, given")
    print(f"vocabulary, {parts:,.0f} parts, two tasks each\n\n| what | minutes |\n|---|---|")
    for what, seconds in rows.items():
        print(f"| {what} | {seconds / 60:.1f} |")
    print(f"| together | {sum(rows.values()) / 60:.1f} |", flush=True)
    print(f"\nThe scheduler is busy for {scheduler / 60:.1f} of the {work / 60:.1f} minutes of the workers: it becomes")
    print(f"the limit at {workers * work / scheduler:,.0f} workers.", flush=True)


if __name__ == "__main__":
    main()
