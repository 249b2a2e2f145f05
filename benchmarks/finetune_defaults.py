"""Fine-tuning of a small model with the default settings, compared with the best of 12 trials of a sweep.

    python -m benchmarks.finetune_defaults --data DATA --work FOLDER [--minutes 60] [--task MRPC] [--rows 200]
    python -m benchmarks.finetune_defaults --table

The model is pretrained once in FOLDER: recipe `tiny` without any setting, on articles and books. DATA contains `glue`,
`gutenberg` and `wiki_extracted`; `benchmarks.defaults_data` describes the tables. Every training is one line of
results/finetune-defaults-cpu.jsonl. The same command resumes after the last line, and begins nothing after --minutes.

A cell is a task and a number of rows. The job itself divides off a fifth of the rows as dev set.

default  three seeds without any setting, only the data and the model.
trial    12 points of SPACE, drawn by the sampler of `orchestrator submit sweep`, each trained once and judged on dev.
best     the point with the best dev score, with three seeds.

`default` and `best` are scored on held-back rows that choose nothing. Scores are those of your own tables: accuracy; of
two labels its mean with macro F1; of numbers the mean of Pearson and Spearman correlation. After a change of the
default rules, the missing lines of `default` are trained, and the table shows the newest. Lines of another pretraining
count as missing, because two models are not comparable.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks.defaults_data import TASKS, write_corpus, write_tables
from benchmarks.machine import commit, describe
from orchestrator.jobs.finetune.spec import FinetuneSpec
from orchestrator.jobs.resolve import resolve_spec
from orchestrator.specs.resolved import Flag
from orchestrator.specs.sweep_spec import SweepSpec
from orchestrator.sweeps.design.points import draw
from train_jobs.artifacts.start_model import initial_weights
from train_jobs.config import FinetuneConfig
from train_jobs.engine.runtime.stop import Preempted
from train_jobs.finetune import finetune
from train_jobs.pretrain import pretrain, read_config

RESULTS = Path(__file__).parent / "results" / "finetune-defaults-cpu.jsonl"
ROWS = (200, 1000, 5000)
TRIALS, SEEDS, SEARCH_SEED = 12, (1, 2, 3), 42
SPACE = {
    "optimizer.learning_rate": {"low": 1e-5, "high": 5e-4, "log": True},
    "train.global_batch_size": [16, 32],
    "train.epochs": [3, 5, 10, 20],
    "schedule.warmup_fraction": [0.0, 0.06, 0.1],
}
SWEEP = SweepSpec.model_validate({"space": SPACE, "sampling": {"name": "random", "seed": 26}})
RECORDED = (*SPACE, "evaluation.patience")
HEADER = """\
| task | rows | best of 12: rate, batch, epochs, warm-up | its score | default | its score | difference | error of the \
rows | within one standard error |
|---|---:|---|---:|---|---:|---:|---:|---|"""
INTERVAL = 2 * 1.96  # width of a 95% interval in standard errors

Line = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """One training of a cell."""

    task: str
    rows: int
    role: str
    """default, trial or best."""
    number: int
    """Seed, or number of the trial."""
    settings: dict[str, Any]
    """Settings of the user; empty for the default."""

    @property
    def name(self) -> str:
        """Text for the log."""
        return f"{self.task} {self.rows} {self.role} {self.number}"


@dataclass(frozen=True)
class Benchmark:
    """The folders and the results so far."""

    data: Path
    work: Path
    results: Path = RESULTS

    def lines(self) -> list[Line]:
        """Return the results of this model, the oldest first."""
        identity = weights(self.model())
        return [line for line in read_lines(self.results) if line["model"] == identity]

    def model(self) -> Path:
        """Return the folder of the pretrained model; train it unless it exists."""
        output, corpus = self.work / "pretrained", self.work / "corpus.jsonl"
        if not (output / "result.json").is_file():
            if not corpus.is_file():
                write_corpus(self.data, corpus)
            config = read_config("tiny", [f"data.text={json.dumps([str(corpus)])}"])
            pretrain(config, output=output, cache=self.work / "stores", device="cpu")
        return output / "model"

    def missing(self, task: str, rows: int) -> Iterator[Training]:
        """Yield the trainings of a cell without a result; the best point after its trials."""
        for seed in SEEDS:
            yield from self._unless_done(Training(task, rows, "default", seed, {}))
        for number in range(TRIALS):
            yield from self._unless_done(Training(task, rows, "trial", number, draw(SWEEP, number)))
        point = best_trial(self.lines(), task, rows)["settings"]
        for seed in SEEDS:
            yield from self._unless_done(Training(task, rows, "best", seed, {key: point[key] for key in SPACE}))

    def config(self, training: Training) -> FinetuneConfig:
        """Return the configuration of the job, as `orchestrator submit finetune` resolves it."""
        train, test = write_tables(training.task, training.rows, self.data, self.work)
        paired = train.read_text(encoding="utf-8").startswith("text,pair,")
        values = {
            "init_from": str(self.model()),
            "data.train": str(train),
            "seeds": [SEARCH_SEED if training.role == "trial" else training.number],
            **({"data.pair": "pair"} if paired else {}),
            **({"data.regression": True} if training.task == "STS-B" else {}),
            **({} if training.role == "trial" else {"data.test": str(test)}),
            **training.settings,
        }
        flags = {key: Flag(value, "benchmark") for key, value in values.items()}
        spec = resolve_spec("finetune", flags=flags).spec
        assert isinstance(spec, FinetuneSpec)
        return spec.job_config()

    def run(self, training: Training) -> Line:
        """Train, and append the line of the result."""
        config, begin = self.config(training), time.process_time()
        with (
            tempfile.TemporaryDirectory(dir=self.work) as output,
            (self.work / "log.txt").open("a") as log,
            contextlib.redirect_stdout(log),
        ):
            result = finetune(config, output=Path(output), device="cpu")
        metrics = result["metrics"]
        line: Line = {
            "task": training.task,
            "rows": training.rows,
            "role": training.role,
            "number": training.number,
            "settings": recorded(config),
            "dev": metrics["score"],
            "best_step": result["best_step"],
            "steps": result["steps"],
            "cpu_seconds": round(time.process_time() - begin, 1),
            "commit": commit(),
            "model": weights(config.init_from),
        }
        held_back = {name: value for name, value in metrics.items() if name.startswith("test_")}
        if held_back:
            scored = score_metrics(held_back)
            intervals = [result["intervals"][name] for name in scored]
            line["held_back"] = held_back
            line["score"] = statistics.fmean(held_back[name] for name in scored)
            line["row_error"] = statistics.fmean(high - low for low, high in intervals) / INTERVAL
        with self.results.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
        return line

    def _unless_done(self, training: Training) -> Iterator[Training]:
        wanted = recorded(self.config(training))
        for line in cell(self.lines(), training.task, training.rows, training.role):
            if line["number"] == training.number and line["settings"] == wanted:
                return
        yield training


def read_lines(path: Path) -> list[Line]:
    """Return all results, the oldest first."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def weights(model: Path) -> str:
    """Return the beginning of the hash of a model's weights: another machine's pretraining gives others."""
    return str(initial_weights(model))[:8]


def score_metrics(held_back: dict[str, float]) -> list[str]:
    """Return the metrics of held-back rows whose mean is the score of own tables."""
    if "test_pearson" in held_back:
        return ["test_pearson", "test_spearman"]
    return ["test_accuracy", "test_macro_f1"] if "test_auroc" in held_back else ["test_accuracy"]


def recorded(config: FinetuneConfig) -> dict[str, Any]:
    """Return the settings that a line contains."""
    return {key: attrgetter(key)(config) for key in RECORDED}


def cell(lines: list[Line], task: str, rows: int, role: str) -> list[Line]:
    """Return the lines of a cell and a role."""
    return [line for line in lines if (line["task"], line["rows"], line["role"]) == (task, rows, role)]


def newest(lines: list[Line], model: str) -> list[Line]:
    """Return the lines of a model with the same settings as its last one."""
    own = [line for line in lines if line["model"] == model]
    return [line for line in own if line["settings"] == own[-1]["settings"]]


def best_trial(lines: list[Line], task: str, rows: int) -> Line:
    """Return the trial with the best dev score; the first of equal ones."""
    return max(cell(lines, task, rows, "trial"), key=lambda line: line["dev"])


def standard_error(scores: list[float]) -> float:
    """Return the standard error of the mean."""
    return statistics.stdev(scores) / math.sqrt(len(scores))


def settings_text(settings: dict[str, Any]) -> str:
    """Return learning rate, batch size, epochs and warm-up as text."""
    rate, batch, epochs, warmup = (settings[key] for key in SPACE)
    return f"{rate:.1e}, {batch}, {epochs}, {warmup:g}"


def print_table(lines: list[Line]) -> None:
    """Print a row for each complete cell, and the sums."""
    print(HEADER)
    differences, within = list[float](), list[bool]()
    for task in TASKS:
        for rows in ROWS:
            best_lines = cell(lines, task, rows, "best")
            if not best_lines:
                continue
            sides = [
                newest(found, best_lines[-1]["model"]) for found in (best_lines, cell(lines, task, rows, "default"))
            ]
            if any(len(side) < len(SEEDS) for side in sides):
                continue
            scores = [[line["score"] for line in side] for side in sides]
            (best, default), errors = map(statistics.fmean, scores), [standard_error(side) for side in scores]
            differences.append(default - best)
            within.append(default >= best - errors[0])
            best_text, default_text = (settings_text(side[-1]["settings"]) for side in sides)
            rows_error = statistics.fmean(line["row_error"] for side in sides for line in side)
            print(
                f"| {task} | {rows:,} | {best_text} | {best:.3f} ± {errors[0]:.3f} | {default_text}"
                f" | {default:.3f} ± {errors[1]:.3f} | {default - best:+.3f} | {rows_error:.3f}"
                f" | {'yes' if within[-1] else 'no'} |"
            )
    if differences:
        print(f"\n{sum(within)} of {len(within)} cells; mean difference {statistics.fmean(differences):+.4f}", end="")
        print(f" ± {standard_error(differences):.4f}" if len(differences) > 1 else "")


def main() -> None:
    """Train the missing cells, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with glue, gutenberg and wiki_extracted")
    parser.add_argument("--work", type=Path, help="folder for the model, tables and the log")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no training after this time")
    parser.add_argument("--task", action="append", choices=TASKS, help="may be repeated; default: all")
    parser.add_argument("--rows", action="append", type=int, choices=ROWS, help="may be repeated; default: all")
    parser.add_argument("--table", action="store_true", help="print the results as Markdown")
    arguments = parser.parse_args()
    if arguments.table:
        print_table(read_lines(RESULTS))
        return
    if arguments.data is None or arguments.work is None:
        parser.error("--data and --work are required")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    end = time.monotonic() + 60 * arguments.minutes
    arguments.work.mkdir(parents=True, exist_ok=True)
    benchmark = Benchmark(arguments.data.absolute(), arguments.work.absolute())
    print(f"{describe('torch')}, commit {commit()}", flush=True)
    with contextlib.suppress(Preempted):  # Ctrl-C or SIGTERM: the same command resumes
        for rows, task in itertools.product(arguments.rows or ROWS, arguments.task or TASKS):
            for training in benchmark.missing(task, rows):
                if time.monotonic() > end:
                    return
                line = benchmark.run(training)
                held_back = f", held back {line['score']:.4f}" if "score" in line else ""
                print(f"{training.name}: dev {line['dev']:.4f}{held_back}, {line['cpu_seconds']} s", flush=True)


if __name__ == "__main__":
    main()
