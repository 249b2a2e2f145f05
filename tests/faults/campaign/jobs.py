"""Kinds of jobs that faults hit: how each is submitted, and which bytes must be the same as without the fault."""

from __future__ import annotations

import atexit
import hashlib
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import Console, write_corpus, write_spec
from tests.unit.finetuning.finetune_jobs import WORDS, write_model

# parts of names of figures that depend on the clock
PROGRESS = ("documents_", "tokens_")  # of a preparation, which reports what each of its starts did
METRICS = ("runs/*/outputs/metrics.jsonl", "sweeps/*/metrics.jsonl", "azure-double/**/metrics.jsonl")
NO_RESULT = "no result"
LARGE_BYTES = 18 << 20  # a step with fewer bytes has no workers
LARGE_ROWS, WINDOW = 12_000, ("--set", "batching.window=100")  # parts of predictions are there for some seconds
CLOCKED = ("second", "slowest", "mfu", "share", "peak_memory", "eta")


@dataclass(frozen=True)
class Job:
    """A kind of job."""

    words: tuple[str, ...]
    """Arguments of `orchestrator`."""
    write: Callable[[Path], None]
    """Write its inputs to a folder."""
    results: Callable[[Path], Iterator[Path]]
    """Files of a home folder that hold its result."""
    is_sweep: bool = False
    """Whether it is a sweep of runs."""
    is_cloud: bool = False
    """Whether it runs in a workspace of Azure."""

    def digest(self, home: Path) -> str:
        """Return a hash of the result of the job in a home folder."""
        found = [(path.name, _content(path)) for path in sorted(self.results(home))]
        return hashlib.sha256(repr(found).encode()).hexdigest() if found else NO_RESULT


def metric_points(home: Path) -> list[tuple[str, int, str, float]]:
    """Return run, step, metric and value of every reported figure that does not depend on the clock.

    Those of a sweep are listed under `sweeps`: it has one trial at a time, so their order is always the same.
    """
    return sorted(
        (path.parents[1].name, report["step"], name, value)
        for pattern in METRICS
        for path in home.glob(pattern)
        for report in map(json.loads, path.read_text().splitlines())
        for name, value in report["metrics"].items()
        if not any(part in name for part in CLOCKED) and not name.startswith(PROGRESS)
    )


def _content(path: Path) -> bytes:
    if path.name != "result.json":
        return path.read_bytes()
    document = json.loads(path.read_text())
    return json.dumps(
        {key: value for key, value in document.items() if _is_result(key, value)}, sort_keys=True
    ).encode()


def _is_result(key: str, value: Any) -> bool:
    return not any(part in key for part in CLOCKED) and not (isinstance(value, str) and "/" in value)


def _write_text(folder: Path) -> None:
    text = write_corpus(folder / "corpus.txt")
    train = {"steps": 40, "log_every": 4}
    write_spec(folder / "job.yaml", data={"text": [str(text)]}, train=train, validation={"every": 20})
    (folder / "prepare.yaml").write_text(yaml.safe_dump({"data": {"text": [str(text)], "vocab_size": 256}}))


def _write_large_text(folder: Path) -> None:
    """Write as much text as a preparation gives to worker processes: two parts."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnoprstuvw", k=draw.randint(2, 9))) for _ in range(2000)]
    with (folder / "corpus.txt").open("w") as stream:
        for _ in range(LARGE_BYTES // 20_000):
            stream.write(" ".join(draw.choices(words, k=3200)) + "\n\n")
    data = {"text": ["corpus.txt"], "vocab_size": 256, "workers": 2}
    (folder / "prepare.yaml").write_text(yaml.safe_dump({"data": data}))


def _write_tables(folder: Path) -> None:
    write_model(folder)
    draw, words = random.Random(0), {"good": WORDS[:15], "bad": WORDS[15:30]}
    for name, count in (("train", 64), ("dev", 24), ("large", LARGE_ROWS)):
        labels = [draw.choice(sorted(words)) for _ in range(count)]
        rows = [f"{' '.join(draw.choices(words[label], k=8))}\t{label}" for label in labels]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    task = {"train": "train.tsv", "validation": "dev.tsv", "max_length": 32}
    settings = {"threads_per_process": 1}
    finetune = {"data": task, "init_from": "model", "train": {"epochs": 3, "global_batch_size": 8}, "compute": settings}
    (folder / "finetune.yaml").write_text(yaml.safe_dump(finetune))


def _write_sweep(folder: Path) -> None:
    _write_text(folder)
    document = {"trial": "job.yaml", "space": {"optimizer.learning_rate": [0.01, 0.02]}, "sampling": "grid"}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(document))


def _files(*patterns: str) -> Callable[[Path], Iterator[Path]]:
    return lambda home: (path for pattern in patterns for path in home.glob(pattern) if "/." not in str(path))


WEIGHTS = _files("runs/*/outputs/model/model.safetensors", "runs/*/outputs/result.json")
CLOUD = ("--cluster", "cpu-ds3", "--sku", "Standard_DS3_v2", "--set", "azure.preflight=false")
STORE = _files("token-stores/*/*.arrow", "token-stores/*/vocab.txt", "token-stores/*/manifest.json")
JOBS = {
    "prepare": Job(("submit", "prepare", "-f", "prepare.yaml"), _write_text, STORE),
    "prepare-large": Job(("submit", "prepare", "-f", "prepare.yaml"), _write_large_text, STORE),
    "pretrain": Job(("submit", "pretrain", "-f", "job.yaml", "--processes", "2"), _write_text, WEIGHTS),
    "nodes-2": Job(
        ("submit", "pretrain", "-f", "job.yaml", "--set", "compute.nodes=2", "--set", "compute.processes_per_node=1"),
        _write_text,
        WEIGHTS,
    ),
    "finetune": Job(("submit", "finetune", "-f", "finetune.yaml"), _write_tables, WEIGHTS),
    "predict": Job(
        ("submit", "predict", "--model", "tuned", "--input", "large.tsv", *WINDOW),
        _write_tables,
        _files("runs/*/outputs/predictions.*"),
    ),
    "evaluate": Job(
        ("submit", "evaluate", "--model", "tuned", "--data", "large.tsv", *WINDOW),
        _write_tables,
        _files("runs/*/outputs/result.json"),
    ),
    "azure": Job(
        ("submit", "pretrain", "-f", "job.yaml", "-b", "azure", *CLOUD),
        _write_text,
        _files("azure-double/**/model/model.safetensors"),
        is_cloud=True,
    ),
    "sweep": Job(("submit", "sweep", "-f", "sweep.yaml"), _write_sweep, WEIGHTS, is_sweep=True),
}


_FOLDERS = ExitStack()  # inputs of all trials of this process
atexit.register(_FOLDERS.close)


@cache
def inputs(kind: str) -> Path:
    """Return the folder with the inputs of a kind, made once; prediction and evaluation need a fine-tuned model."""
    folder = Path(_FOLDERS.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
    JOBS[kind].write(folder)
    if "tuned" in JOBS[kind].words:
        done = Console(folder / "first", folder)("submit", "finetune", "-f", "finetune.yaml", "-o", "json")
        assert done.code == 0, done.err
        (folder / "tuned").symlink_to(done.json["model"])
    return folder
