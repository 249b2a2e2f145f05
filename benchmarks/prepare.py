"""From text to training examples: speed and memory compared with other programs, and time until training can read.

    pip install -e '.[benchmarks,datasets]'
    python -m benchmarks.prepare [--data ../shared/data] [--sizes 0.1 1 4] [--work FOLDER]

Prints tables in Markdown. Every figure comes from a separate process, from its start to its end, on one core or two;
memory is that of a process and all its children together (PSS: what they share counts once), looked at ten times a
second. Seconds are those of the clock; processor seconds show whether the machine was quiet: on one core they are the
same. The text is that of ../shared/data: 84 MB of books and Wikipedia articles, once (so the first 0.1 GB holds
little twice) or more often, with marked copies, so that no document counts as a duplicate. Google's uncased
vocabulary serves all. Expected before the first run: the whole pipeline at 10 MB/s on one core, 1.9 times that on
two; memory the same for each size; the plain pipeline at 0.4 MB/s, datasets.map at 3.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import prepare_corpus
from benchmarks.machine import describe

PLAIN_BYTES = 6_000_000  # for the plain pipeline, whose speed is the same for any
SECONDS_OF_READING = 10
ALSO_ALONE = 1.0  # GB of text at most that one worker takes as well
WIKIPEDIA_BZ2, WIKIPEDIA_TEXT = 24e9, 20e9  # bytes: articles of English Wikipedia, end of 2025; a guess for the text
CORES = 16


@dataclass(frozen=True)
class Measurement:
    """Measurements of a finished process."""

    seconds: float
    cpu: float
    """Seconds of processors, of all its processes."""
    peak: float
    """Megabytes."""
    printed_json: dict[str, float]
    """JSON of its last output line; empty without one."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of texts and vocabularies")
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.1, 1.0, 4.0], help="GB of text")
    parser.add_argument("--work", type=Path, help="where files go; 3 bytes for each of the largest text")
    arguments = parser.parse_args()
    print(describe("pyarrow", "numpy", "tokenizers", "datasets"), flush=True)
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
        Benchmark(arguments.data.resolve(), Path(folder)).run(sorted(arguments.sizes))


class Benchmark:
    """All measurements, in one folder."""

    def __init__(self, data: Path, work: Path) -> None:
        self.data, self.work = data, work
        self.vocabulary = data / "bert" / "vocab_uncased.txt"
        self.documents = prepare_corpus.documents(data)

    def run(self, sizes: Sequence[float]) -> None:
        """Print every table."""
        texts = {size: self.work / f"text-{size}" for size in sizes}
        written = {size: prepare_corpus.write(self.documents, texts[size], int(size * 1e9)) for size in sizes[:1]}
        smallest = sizes[0]
        one = self.peers(texts[smallest], written[smallest])
        self.stages(texts[smallest], one)
        stores: dict[float, Path] = {}
        self.sizes(texts, written, stores)
        self.reading(stores[sizes[-1]])
        self.wikipedia(written[smallest] / 1e6 / one.seconds)

    def peers(self, text: Path, size: int) -> Measurement:
        """Print pipelines and token steps on the same text; return our pipeline's run on one core."""
        print("\n| what | text in, MB | cores | s | MB/s | whole process: s | CPU s | peak memory, MB |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        lines = self.work / "lines.txt"
        lines.write_text("".join(path.read_text("utf-8") for path in sorted(text.iterdir())), encoding="utf-8")
        few = self.work / "sentences.txt"
        few_size = prepare_corpus.write_sentences(self.documents, few, PLAIN_BYTES)
        plain = self.peer("plain", few, cores=1)
        row("plain Python: sentences to ids of tokens", few_size, 1, plain.printed_json["tokenise"], plain)
        row(
            "plain Python: and to instances",
            few_size,
            1,
            plain.printed_json["tokenise"] + plain.printed_json["instances"],
            plain,
        )
        for count in (1, 2):
            found = self.peer("datasets", lines, str(count), cores=count)
            row("datasets.map: lines to ids", size, count, found.printed_json["tokenise"], found)
            row("datasets.map: loaded, to ids, grouped", size, count, sum(found.printed_json.values()), found)
        for name, title in (
            ("tokenizers", "tokenizers.encode_batch_fast: lines to ids"),
            ("ours", "our token step: lines to ids"),
        ):
            found = self.peer(name, lines, cores=1)
            row(title, size, 1, found.printed_json["tokenise"], found)
        for count in (2, 1):
            found = self.prepared(text, workers=count)
            row("our pipeline: text to token store", size, count, found.seconds, found)
        lines.unlink()
        return found

    def stages(self, text: Path, whole: Measurement) -> None:
        """Print the time of each step of our pipeline."""
        print("\n| stage | s of one core | share |\n|---|---|---|")
        printed_json = self.peer("stages", text, cores=1).printed_json
        printed_json.pop("mb")
        rest = whole.seconds - sum(printed_json.values())
        for name, seconds in {**printed_json, "all else: starting, writing, reading back": rest}.items():
            print(f"| {name} | {seconds:.2f} | {seconds / whole.seconds:.0%} |", flush=True)

    def sizes(self, texts: dict[float, Path], written: dict[float, int], stores: dict[float, Path]) -> None:
        """Print memory and speed by size with two workers, for small sizes also with one; keep the largest store."""
        print("\n| text, GB | workers | s | CPU s | MB/s | peak memory, MB |\n|---|---|---|---|---|---|", flush=True)
        for size, text in texts.items():
            if size not in written:
                written[size] = prepare_corpus.write(self.documents, text, int(size * 1e9))
            for count in (1, 2) if size <= ALSO_ALONE else (2,):
                stores[size] = self.work / "store"
                found = self.prepared(text, workers=count, keep=stores[size])
                speed = written[size] / 1e6 / found.seconds
                figures = f"{found.seconds:.1f} | {found.cpu:.1f} | {speed:.1f} | {found.peak:,.0f}"
                print(f"| {written[size] / 1e9:.2f} | {count} | {figures} |", flush=True)
            shutil.rmtree(text)

    def reading(self, store: Path) -> None:
        """Print the read speed of the largest store."""
        found = self.peer("reading", store, str(SECONDS_OF_READING), cores=1, vocabulary=False).printed_json
        print("\n| store, GB | first batch after opening, s | examples/s, planned and sliced | laid out as sequences |")
        print("|---|---|---|---|")
        print(
            f"| {found['bytes'] / 1e9:.2f} | {found['first']:.2f} | {found['slices']:,.0f} |"
            f" {found['sequences']:,.0f} |"
        )

    def wikipedia(self, text_speed: float) -> None:
        """Print an estimate for English Wikipedia."""
        sample = self.data / "wiki_xml" / "enwiki-latest-pages-articles1-shortened.xml.bz2"
        printed_json = self.peer("stages", sample, cores=1).printed_json
        dump_speed = printed_json["mb"] / printed_json["read"]
        read, rest = WIKIPEDIA_BZ2 / 1e6 / dump_speed / CORES, WIKIPEDIA_TEXT / 1e6 / text_speed / CORES
        print(
            f"\nEnglish Wikipedia on {CORES} cores: {WIKIPEDIA_BZ2 / 1e9:.0f} GB of bz2, at {dump_speed:.1f} MB/s a"
            f" core (decompressed, wikitext stripped: measured on the head of a dump), take {read / 60:.0f} minutes;"
            f" {WIKIPEDIA_TEXT / 1e9:.0f} GB of text, at {text_speed:.1f} MB/s a core, {rest / 60:.0f} more. Assumed:"
            " cores that do not slow one another down, a disk that keeps up, a given vocabulary, the index of the"
            " multistream dump, without which one core decompresses."
        )

    def prepared(self, text: Path, *, workers: int, keep: Path | None = None) -> Measurement:
        """Run `python -m train_jobs.prepare` from scratch."""
        store = keep or self.work / "passing"
        shutil.rmtree(store, ignore_errors=True)
        config = self.work / "prepare.json"
        section = {"text": [str(text)], "vocabulary": str(self.vocabulary), "workers": workers}
        config.write_text(json.dumps({"data": section, "store": str(store)}))
        output = self.work / "output"
        shutil.rmtree(output, ignore_errors=True)
        found = run(
            ["-m", "train_jobs.prepare", "--config", str(config), "--output", str(output)],
            cores=workers,
            cwd=Path.cwd(),
        )
        if keep is None:
            shutil.rmtree(store)
        return found

    def peer(self, name: str, text: Path, *options: str, cores: int, vocabulary: bool = True) -> Measurement:
        """Run one of benchmarks.prepare_peers."""
        words = ["-m", "benchmarks.prepare_peers", name, str(text), *([str(self.vocabulary)] if vocabulary else [])]
        return run([*words, *options], cores=cores, cwd=Path.cwd())


def row(title: str, size: int, cores: int, seconds: float, ran: Measurement) -> None:
    """Print a row of the first table."""
    figures = f"{size / 1e6:.1f} | {cores} | {seconds:.1f} | {size / 1e6 / seconds:.2f}"
    print(f"| {title} | {figures} | {ran.seconds:.1f} | {ran.cpu:.1f} | {ran.peak:,.0f} |", flush=True)


def run(words: list[str], *, cores: int, cwd: Path) -> Measurement:
    """Run Python on the first CORES available cores.

    Raises:
        RuntimeError: it failed.
    """
    usable = sorted(os.sched_getaffinity(0))[:cores]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    # One thread each: libraries would otherwise start as many as the machine has cores, on the one core of the
    # measurement.
    before, started = _cpu_of_children(), time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, usable)), sys.executable, *words], env=environment, cwd=cwd, stdout=out
        )
        peak = 0.0
        while process.poll() is None:
            # PSS of the whole family: memory that workers share, such as a mapped file, counts once
            peak = max(peak, sum(_megabytes(pid) for pid in _family(process.pid)))
            time.sleep(0.1)
        seconds = time.perf_counter() - started
        out.seek(0)
        printed = out.read()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}\n{printed}")
    last = printed.strip().rsplit("\n", 1)[-1]
    return Measurement(seconds, _cpu_of_children() - before, peak, json.loads(last) if last.startswith("{") else {})


def _cpu_of_children() -> float:
    """Return the processor seconds of finished child processes and their children."""
    times = os.times()
    return times.children_user + times.children_system


def _family(pid: int) -> Iterator[int]:
    """Yield the process and all of its descendants."""
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from _family(int(child))


def _megabytes(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    main()
