"""Loss with two sources of text against the same documents shuffled into one file.

    python -m benchmarks.source_mixing FIRST SECOND [--steps 350 --batch 32 --seeds 0 1 2]

FIRST and SECOND are folders or files of text, of a million tokens or more each, so that both fill several blocks. Their
documents are written to two JSON Lines files, and in random order to a third one. Both texts have the same documents,
vocabulary and held-out documents, so a difference of losses comes from the order of examples alone: no run reads an
example twice. Each model is validated on the held-out documents of both token stores, because a store's sample of them
is drawn by source. Printed are the losses of each run, and the mean differences over seeds with their 95% intervals.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from scipy.stats import t as student

from benchmarks.machine import describe
from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.config.prepare import SourceConfig
from train_jobs.corpus.sources.text_parts import plan_parts, read_part

RECIPE = "tiny"
RATE = 5e-4  # a quarter of the recipe's: at its rate, the step at which a run leaves the plateau varies between seeds


def documents(path: Path) -> Iterator[str]:
    """Yield the documents of a file or folder."""
    sources = [SourceConfig(path=[str(path)])]
    for part in plan_parts(sources):
        yield from read_part(sources, part)


def write_texts(sources: list[Path], folder: Path) -> dict[str, list[Path]]:
    """Write both texts; return their files by the name of the text."""
    files, every = [], []
    for number, source in enumerate(sources):
        lines = [json.dumps({"text": document}) + "\n" for document in documents(source)]
        files.append(folder / f"source-{number}.jsonl")
        files[-1].write_text("".join(lines))
        every += lines
    random.Random(0).shuffle(every)
    shuffled = folder / "shuffled.jsonl"
    shuffled.write_text("".join(every))
    return {"two sources": files, "one shuffled file": [shuffled]}


def prepare(name: str, files: list[Path], folder: Path, vocabulary: Path | None) -> Path:
    """Return the token store of a text."""
    store = folder / f"store of {name}"
    settings = {"data.text": [str(file) for file in files], "store": str(store)}
    settings |= {"data.vocabulary": str(vocabulary)} if vocabulary else {"data.vocab_size": 4096}
    run("train_jobs.prepare", "uncased", folder / f"preparation of {name}", settings)
    return store


def train(store: Path, output: Path, *, seed: int, steps: int, batch: int) -> float:
    """Train on a store; return the mean MLM loss of training."""
    settings: dict[str, object] = {"data.store": str(store), "train.seed": seed, "train.steps": steps}
    settings |= {"train.global_batch_size": batch, "train.micro_batch_size": batch, "train.log_every": 1}
    settings |= {"validation.every": steps, "train.precision": "fp32", "optimizer.learning_rate": RATE}
    run("train_jobs.pretrain", RECIPE, output, settings)
    reports = [report["metrics"] for _, report in read_reports(output / "metrics.jsonl")]
    training = [found["train_mlm_loss"] for found in reports if "train_mlm_loss" in found]
    assert len(training) == steps
    return statistics.mean(training)


def validate(trained: Path, store: Path, output: Path, *, seed: int) -> float:
    """Return a trained model's MLM loss on the held-out documents of a store."""
    settings: dict[str, object] = {"init_from": str(trained / "model"), "data.store": str(store), "train.seed": seed}
    settings |= {"train.steps": 1, "optimizer.learning_rate": 1e-12, "train.precision": "fp32"}  # changes no weight
    run("train_jobs.pretrain", RECIPE, output, settings | {"validation.max_sequences": 4096})
    return float(json.loads((output / "result.json").read_text())["validation_mlm_loss"])


def run(module: str, recipe: str, output: Path, settings: dict[str, object]) -> None:
    """Run a job in a process of its own."""
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    subprocess.run(
        [sys.executable, "-m", module, "--config", recipe, *words, "--output", str(output)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def difference(figures: Sequence[float], others: Sequence[float]) -> str:
    """Return the mean difference of losses of the same seeds, with its 95% interval."""
    each = [first - second for first, second in zip(figures, others, strict=True)]
    error = statistics.stdev(each) / len(each) ** 0.5
    reach = float(student.ppf(0.975, len(each) - 1)) * error
    mean = statistics.mean(each)
    return f"{mean:+.4f} ({mean - reach:+.4f} to {mean + reach:+.4f})"


def main() -> None:
    """Print a table of losses and one of differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs=2, type=Path)
    parser.add_argument("--steps", type=int, default=350)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    print(f"{describe('torch', 'numpy')}; recipe {RECIPE}, {given.steps} steps of {given.batch} sequences\n")
    with tempfile.TemporaryDirectory() as place:
        folder, stores = Path(place), dict[str, Path]()
        for name, files in write_texts(given.sources, folder).items():
            vocabulary = next(iter(stores.values())) / "vocab.txt" if stores else None
            stores[name] = prepare(name, files, folder, vocabulary)
        columns = ["training", *(f"validation, {name}" for name in stores)]
        print(f"| trained on | seed | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 2)}")
        found: dict[str, list[list[float]]] = {}
        for name, seed in product(stores, given.seeds):
            output = folder / f"{name} {seed}"
            row = [train(stores[name], output, seed=seed, steps=given.steps, batch=given.batch)]
            row += [
                validate(output, store, folder / f"{output.name} on {other}", seed=seed)
                for other, store in stores.items()
            ]
            found.setdefault(name, []).append(row)
            print(f"| {name} | {seed} | {' | '.join(f'{loss:.4f}' for loss in row)} |", flush=True)
    print("\nMean MLM losses in nats; two sources minus one shuffled file, with 95% intervals:")
    first, second = (list(zip(*rows, strict=True)) for rows in found.values())
    for column, ours, theirs in zip(columns, first, second, strict=True):
        print(f"- {column}: {difference(ours, theirs)}")


if __name__ == "__main__":
    main()
