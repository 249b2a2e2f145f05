"""The same text to ids by our pipeline, datatrove and datasets.map: rate of a core, memory, a kill, a second run.

    python -m benchmarks.prepare_contenders [--data ../shared/data] [--mb 100] [--rounds 2] [--datatrove PYTHON]

Each contender is a separate process with two workers, on the same two cores, in turn. Text: JSON Lines in eight files,
seeded variations of the texts of ../shared/data. `ours` makes a token store (cleaned, without duplicates, in sentences,
split); `datatrove` reads, tokenises with the same WordPiece and writes token files; `datasets` loads, maps a fast
tokenizer and groups ids into sequences of 128. The rate is per processor second, summed over the whole family of
processes. `kill` ends the family in the middle of its run (SIGKILL) and starts the command again: the cost is the
processor time of both starts relative to an undisturbed run, minus 1. `same bytes` compares the data files of two
undisturbed runs. PYTHON is an interpreter with datatrove[io,processing].
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.machine import describe, spread

FILES, WORKERS, LENGTH = 8, 2, 128
POLL_SECONDS = 0.2
DATA_FILES = {"ours": "*.arrow", "datatrove": "*.ds*", "datasets": "**/*.arrow"}


def main() -> None:
    """Print the table, or run the contender that the first argument names."""
    if len(sys.argv) > 1 and sys.argv[1] in RUNS:
        RUNS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of texts and vocabularies")
    parser.add_argument("--mb", type=int, default=100, help="megabytes of text")
    parser.add_argument("--rounds", type=int, default=2, help="at least 2")
    parser.add_argument("--datatrove", default=sys.executable, metavar="PYTHON", help="interpreter with datatrove")
    parser.add_argument("--only", nargs="+", default=list(RUNS), help="contenders")
    arguments = parser.parse_args()
    print(describe("pyarrow", "tokenizers", "datasets"), f"\nload before: {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        size = write(arguments.data.resolve(), work / "text", arguments.mb * 1_000_000)
        print(f"\n{size / 1e6:.0f} MB, {WORKERS} workers\n")
        print("| | MB per CPU s | s | peak memory, MB | cost of a kill | same bytes |\n|---|---|---|---|---|---|")
        for name in arguments.only:
            python = arguments.datatrove if name == "datatrove" else sys.executable
            Contender(name, python, arguments.data.resolve(), work, size).report(arguments.rounds)


def write(data: Path, folder: Path, size: int) -> int:
    """Write documents as JSON Lines; copies of a document have their sentences in a seeded order. Return the bytes."""
    folder.mkdir()
    from benchmarks import prepare_corpus  # here and below: a contender does not load what measures it

    texts, draw, written = prepare_corpus.documents(data), random.Random(1), 0
    streams = [(folder / f"part-{number}.jsonl").open("w") for number in range(FILES)]
    copy = 0
    while written < size:
        for number, text in enumerate(texts):
            lines = text.split("\n")
            if copy:
                draw.shuffle(lines)
            document = "\n".join(lines)
            streams[number % FILES].write(json.dumps({"text": document, "id": f"{copy}-{number}"}) + "\n")
            written += len(document.encode())
            if written >= size:
                break
        copy += 1
    for stream in streams:
        stream.close()
    return written


class Contender:
    """Runs of one program."""

    def __init__(self, name: str, python: str, data: Path, work: Path, size: int) -> None:
        self.name, self.size, self.out = name, size, work / "out"
        script = ["-m", "benchmarks.prepare_contenders", name]
        self.words = [python, *script, str(work / "text"), str(data / "bert" / "vocab_uncased.txt"), str(self.out)]

    def report(self, rounds: int) -> None:
        """Print a row."""
        runs, digests = [], set()
        for _ in range(rounds):
            shutil.rmtree(self.out, ignore_errors=True)
            runs.append(self.run())
            digests.add(self.digest())
        cpu = min(run[1] for run in runs)
        shutil.rmtree(self.out, ignore_errors=True)
        # In the middle of the work, by processor time: the clock of a busy machine is unreliable.
        before = self.run(kill_at=cpu / 2)[1]
        after = self.run()[1]
        rates = [self.size / 1e6 / run[1] for run in runs]
        print(
            f"| {self.name} | {spread(rates, digits=2)} | {spread([run[0] for run in runs])} |"
            f" {max(run[2] for run in runs):.0f} | {(before + after) / cpu - 1:+.0%} |"
            f" {'yes' if len(digests) == 1 else 'no'} |",
            flush=True,
        )
        shutil.rmtree(self.out, ignore_errors=True)

    def run(self, kill_at: float | None = None) -> tuple[float, float, float]:
        """Run it; return seconds, processor seconds and the peak memory of the family in megabytes.

        Args:
            kill_at: processor seconds after which the family is killed. None: never.
        """
        from benchmarks.prepare import _family, _megabytes
        from benchmarks.prepare_dask import _cpu

        started = time.perf_counter()
        environ = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(self.words, stdout=log, stderr=log, env=environ, start_new_session=True)
            cpu: dict[int, float] = {}
            peak = 0.0
            while process.poll() is None:
                family = list(_family(process.pid))
                cpu.update({pid: max(cpu.get(pid, 0.0), _cpu(pid)) for pid in family})
                peak = max(peak, sum(map(_megabytes, family)))
                if kill_at is not None and sum(cpu.values()) > kill_at:
                    for pid in family:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                time.sleep(POLL_SECONDS)
            if process.returncode != 0 and kill_at is None:
                log.seek(0)
                raise RuntimeError(log.read().decode()[-3000:])
        return time.perf_counter() - started, sum(cpu.values()), peak

    def digest(self) -> str:
        """Return a hash over the data files, by name and content."""
        whole = hashlib.sha256()
        for path in sorted(self.out.rglob(DATA_FILES[self.name])):
            whole.update(path.read_bytes())
        return whole.hexdigest()


def ours(text: Path, vocabulary: Path, out: Path) -> None:
    """Make a token store with two workers."""
    from train_jobs.prepare import main as prepare

    sets = [f"data.text=[{text}]", f"data.vocabulary={vocabulary}", f"data.workers={WORKERS}", f"store={out / 'store'}"]
    words = [word for value in sets for word in ("--set", value)]
    sys.exit(prepare(["--config", "uncased", *words, "--output", str(out.with_name("run-of-ours"))]))


def datatrove(text: Path, vocabulary: Path, out: Path) -> None:
    """Tokenise with datatrove: eight tasks on two workers, resumable by its own records of completed tasks."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    tokenizer = out / "tokenizer.json"
    out.mkdir(parents=True, exist_ok=True)
    _wordpiece(vocabulary).save(str(tokenizer))
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(text)),
            DocumentTokenizer(str(out / "tokens"), str(tokenizer), local_working_dir=str(out / "local")),
        ],
        tasks=FILES,
        workers=WORKERS,
        logging_dir=str(out / "logs"),
    ).run()


def datasets(text: Path, vocabulary: Path, out: Path) -> None:
    """Tokenise and group with `datasets.map`, as run_mlm of transformers does."""
    import datasets as library

    cache = out / "cache"
    files = [str(path) for path in sorted(text.iterdir())]
    loaded = library.load_dataset("json", data_files=files, cache_dir=str(cache))["train"]
    tokenizer = _wordpiece(vocabulary)
    tokenizer_text = tokenizer.to_str()  # the fingerprint of the cache is that of the function and its values
    mapped = loaded.map(
        lambda batch: {"ids": [one.ids for one in _cached(tokenizer_text).encode_batch_fast(batch["text"])]},
        batched=True,
        num_proc=WORKERS,
        remove_columns=loaded.column_names,
    )
    mapped.map(_grouped, batched=True, num_proc=WORKERS)


def _grouped(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    flat = [token for ids in batch["ids"] for token in ids]
    return {"ids": [flat[start : start + LENGTH] for start in range(0, len(flat) - LENGTH + 1, LENGTH)]}


_TOKENIZERS: dict[str, object] = {}


def _cached(text: str):
    from tokenizers import Tokenizer

    if text not in _TOKENIZERS:
        _TOKENIZERS[text] = Tokenizer.from_str(text)
    return _TOKENIZERS[text]


def _wordpiece(vocabulary: Path):
    from tokenizers import BertWordPieceTokenizer

    return BertWordPieceTokenizer(str(vocabulary), lowercase=True)._tokenizer


RUNS = {"ours": ours, "datatrove": datatrove, "datasets": datasets}

if __name__ == "__main__":
    main()
