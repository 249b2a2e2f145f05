"""Loss with two sources of text against the same documents shuffled into one file.

    python -m benchmarks.source_mixing FIRST SECOND [--steps 350 --batch 32 --seeds 0 1 2]

FIRST and SECOND are folders or files of text, of a million tokens or more each, so that both fill several blocks. Their
documents are written to two JSON Lines files, and in random order to a third one. Both texts have the same documents,
vocabulary and held-out documents, so a difference of training losses comes from the order of examples alone: no run
reads an example twice. Printed are the mean training loss and the validation loss of each run, and the mean difference
of training losses over seeds with its 95% interval. Validation losses of the two texts are of different samples of the
held-out documents, which are drawn by source, and cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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


def losses(store: Path, output: Path, *, seed: int, steps: int, batch: int) -> tuple[float, float]:
    """Train on a store; return the mean MLM loss of training, and the MLM loss of the last validation."""
    settings: dict[str, object] = {"data.store": str(store), "train.seed": seed, "train.steps": steps}
    settings |= {"train.global_batch_size": batch, "train.micro_batch_size": batch, "train.log_every": 1}
    settings |= {
        "validation.max_sequences": 4096,
        "validation.every": steps,
        "train.precision": "fp32",
        "optimizer.learning_rate": RATE,
    }
    run("train_jobs.pretrain", RECIPE, output, settings)
    reports = [report["metrics"] for _, report in read_reports(output / "metrics.jsonl")]
    training = [found["train_mlm_loss"] for found in reports if "train_mlm_loss" in found]
    assert len(training) == steps
    result = json.loads((output / "result.json").read_text())
    return statistics.mean(training), result["validation_mlm_loss"]


def run(module: str, recipe: str, output: Path, settings: dict[str, object]) -> None:
    """Run a job in a process of its own."""
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    subprocess.run(
        [sys.executable, "-m", module, "--config", recipe, *words, "--output", str(output)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def difference(pairs: list[tuple[float, float]]) -> str:
    """Return the mean difference of pairs of losses, with its 95% interval."""
    each = [first - second for first, second in pairs]
    error = statistics.stdev(each) / len(each) ** 0.5
    reach = float(student.ppf(0.975, len(each) - 1)) * error
    mean = statistics.mean(each)
    return f"{mean:+.4f} ({mean - reach:+.4f} to {mean + reach:+.4f})"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs=2, type=Path)
    parser.add_argument("--steps", type=int, default=350)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    print(f"{describe('torch', 'numpy')}; recipe {RECIPE}, {given.steps} steps of {given.batch} sequences\n")
    print("| text | seed | mean training MLM loss | validation MLM loss |\n|---|---|---|---|")
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder, vocabulary = Path(place), None
        for name, files in write_texts(given.sources, folder).items():
            store = prepare(name, files, folder, vocabulary)
            vocabulary = vocabulary or store / "vocab.txt"
            for seed in given.seeds:
                output = folder / f"{name} {seed}"
                pair = losses(store, output, seed=seed, steps=given.steps, batch=given.batch)
                found.setdefault(name, []).append(pair)
                print(f"| {name} | {seed} | {pair[0]:.4f} | {pair[1]:.4f} |", flush=True)
    first, second = found.values()
    training = [(one[0], other[0]) for one, other in zip(first, second, strict=True)]
    print(f"\nDifference of training losses, nats (95% interval): {difference(training)}")


if __name__ == "__main__":
    main()
