"""Fine-tuning compared with transformers.Trainer, on real data and a real checkpoint.

    python -m benchmarks.finetune_parity --glue GLUE --model MINILM --exact --squad FILE
    python -m benchmarks.finetune_parity --glue GLUE --model MINILM --statistical --runs FILE
    python -m benchmarks.finetune_parity --glue GLUE --model MINILM --speed

--exact: one process after the other makes 50 steps from the same weights, head included, with the same batches, without
dropout, in fp32. One difference is removed: the k-th step of a linear schedule has our rate, (k + 1) / warmup and
1 - (k + 1) / steps, in both. Trainer's own begins with a step at rate 0, ours ends with one; the papers only state
"linear", so each is as right as the other.

--statistical: bf16, dropout, seeds; each has its own order of rows, schedule and random numbers, as they come. Every
run is a line of FILE as soon as it is done; the same command resumes after the last one.

--speed: MRPC, batches of 32, at most 128 tokens, bf16; rounds of one epoch each. Contestants in turn make a
few steps, so that a slow moment affects all equally and no two run at the same time. On a GPU, BERT-large:

    python -m benchmarks.finetune_parity --glue GLUE --model MINILM --speed --device gpu --model-size large \\
        --speed-task SQuAD-1.1 --squad FILE --max-length 384 --rows 3200 --peers ours "Trainer, dynamic padding"
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.finetune_data import TASKS, write_files
from benchmarks.finetune_peers import Outcome, ours, trainer
from benchmarks.finetune_setup import Contest, with_head
from benchmarks.finetune_speed import IN_BF16, speed
from benchmarks.finetune_speed import PEERS as PEERS_OF_SPEED
from benchmarks.machine import describe
from train_jobs.config.tasks import SQUAD_1
from train_jobs.tasks.sequences import epoch_batches

STEPS, RATE_OF_50 = 50, 2e-4  # at which so few steps teach more than the most frequent label
LOSSES_WITHIN, PREDICTIONS_ALIKE, NUMBERS_WITHIN = 1e-4, 0.995, 1e-3
BATCHES, LENGTHS = {SQUAD_1: 8}, {SQUAD_1: 384}  # others: 32 rows of up to 128 tokens
EPOCHS = 2
# Rows to learn from, and the rate: of less CoLA, or at a lower rate, this model learns the most frequent label alone
STATISTICAL = {"CoLA": (8551, 2e-4), "MRPC": (1200, 1e-4), "SST-2": (2000, 1e-4)}
PEERS = {"ours": ours, "Trainer": trainer}


def exact(arguments: argparse.Namespace) -> bool:
    """Print the differences of losses and predictions; return whether they are within the targets."""
    lines = [
        "| task | largest difference of 50 losses | equal predictions | different | score, ours | score, Trainer |",
        "|---|---|---|---|---|---|",
    ]
    passed = True
    for task in arguments.tasks or TASKS:
        size = BATCHES.get(task, 32)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            files = write_files(task, arguments.glue, arguments.squad, folder, STEPS * size)
            contest = Contest(
                **{"task": task, "model": arguments.model, **files},
                rate=RATE_OF_50,
                precision="fp32",
                dropout=0.0,
                batch=size,
                max_length=LENGTHS.get(task, 128),
            )
            # One head for both: heads that each program initialises itself would differ from the first step on.
            contest = replace(contest, model=with_head(contest, folder / "model"))
            batches = epoch_batches(
                np.zeros(STEPS * size), global_batch_size=size, seed=contest.seed, epoch=0, group_by_length=False
            )
            # Our order of rows, which the Trainer then follows.
            one, other = ours(contest), trainer(contest, np.concatenate(batches).tolist())
        apart = max(abs(a - b) for a, b in zip(one.losses, other.losses, strict=True))
        alike = share_alike(one, other)
        passed &= len(one.losses) == STEPS and apart <= LOSSES_WITHIN and alike >= PREDICTIONS_ALIKE
        print(f"{task}: every seventh loss of both {pairs(one, other)}", flush=True)
        lines.append(
            f"| {task} | {apart:.1e} | {100 * alike:.2f}% of {len(one.predictions):,} |"
            f" {len(set(one.predictions)):,} | {one.score:.4f} | {other.score:.4f} |"
        )
        print(lines[-1], flush=True)
    print("\n" + "\n".join(lines) + f"\n\n{'as asked' if passed else 'NOT AS ASKED'}")
    return passed


def pairs(one: Outcome, other: Outcome) -> str:
    """Return every seventh loss of both, as text."""
    return " ".join(f"{a:.6f}/{b:.6f}" for a, b in list(zip(one.losses, other.losses, strict=True))[::7])


def share_alike(one: Outcome, other: Outcome) -> float:
    """Return the share of equal predictions; numbers count as equal within 0.001, their printed precision."""
    each = zip(one.predictions, other.predictions, strict=True)
    return statistics.fmean(abs(a - b) <= NUMBERS_WITHIN if isinstance(a, float) else a == b for a, b in each)


def statistical(arguments: argparse.Namespace) -> bool:
    """Make the missing runs and print the differences of means; return whether all are within 2 standard errors."""
    file: Path = arguments.runs
    file.parent.mkdir(parents=True, exist_ok=True)
    made = {(run["task"], run["seed"], run["by"]): run for run in read_runs(file)}
    with file.open("a", encoding="utf-8") as stream, tempfile.TemporaryDirectory() as place:
        for seed in range(1, arguments.seeds + 1):
            for task in arguments.tasks or STATISTICAL:
                for by, train in PEERS.items():
                    if (task, seed, by) in made:
                        continue
                    rows, rate = STATISTICAL[task]
                    files = write_files(task, arguments.glue, None, Path(place, task), rows)
                    outcome = train(Contest(task, arguments.model, **files, epochs=EPOCHS, seed=seed, rate=rate))
                    run = {"task": task, "seed": seed, "by": by, "score": outcome.score}
                    run["seconds"] = round(outcome.seconds, 1)
                    made[task, seed, by] = run
                    stream.write(json.dumps(run) + "\n")
                    # Runs take minutes each: a killed benchmark loses only the current one.
                    stream.flush()
                    print(json.dumps(run), flush=True)
    return compare([run for (_, seed, _), run in made.items() if seed <= arguments.seeds], arguments)


def read_runs(file: Path) -> list[dict[str, Any]]:
    """Return the finished runs."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.startswith("{")]


def compare(runs: list[dict[str, Any]], arguments: argparse.Namespace) -> bool:
    """Print means, standard deviations and the interval of the difference; return whether all contain 0."""
    lines = [
        "| task, score | ours, mean +- sd | Trainer, mean +- sd | difference, +- 2 standard errors | |",
        "|---|---|---|---|---|",
    ]
    passed = True
    for task in arguments.tasks or STATISTICAL:
        each = [[run["score"] for run in runs if (run["task"], run["by"]) == (task, by)] for by in PEERS]
        means, spreads = [statistics.fmean(values) for values in each], [statistics.stdev(values) for values in each]
        difference = means[0] - means[1]
        # Standard error of a difference of two independent means (Welch): the programs share no random numbers.
        error = sum(spread**2 / len(values) for spread, values in zip(spreads, each, strict=True)) ** 0.5
        within = abs(difference) <= 2 * error
        passed &= within
        lines.append(
            f"| {task} | {means[0]:.4f} +- {spreads[0]:.4f} | {means[1]:.4f} +- {spreads[1]:.4f} |"
            f" {difference:+.4f}, from {difference - 2 * error:+.4f} to {difference + 2 * error:+.4f} |"
            f" {'0 is in it' if within else '0 IS NOT IN IT'} |"
        )
    print("\n" + "\n".join(lines))
    return passed


def main() -> int:
    """Print tables; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--glue", type=Path, required=True, help="folder of GLUE")
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face BERT, uncased")
    parser.add_argument("--squad", type=Path, help="a file of SQuAD 1.1")
    parser.add_argument("--tasks", nargs="*", choices=TASKS)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--statistical", action="store_true")
    parser.add_argument("--runs", type=Path, default=Path("finetune-parity-runs.txt"), help="of --statistical")
    parser.add_argument("--seeds", type=int, default=10, help="of --statistical")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--speed-task", choices=TASKS, default="MRPC")
    parser.add_argument("--model-size", choices=["base", "large"], help="of --speed: weights of this size, drawn")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS_OF_SPEED), default=IN_BF16)
    parser.add_argument("--rows", type=int, help="of --speed; default: all")
    parser.add_argument("--batch", type=int, default=32, help="of --speed")
    parser.add_argument("--max-length", type=int, default=128, help="of --speed")
    parser.add_argument("--rounds", type=int, default=3, help="of --speed: epochs")
    parser.add_argument("--steps", type=int, default=23, help="of --speed: made at a time")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu", help="of --speed")
    arguments = parser.parse_args()
    print(f"{describe('torch', 'transformers', 'accelerate')}\n", flush=True)
    passed = True
    if arguments.exact:
        passed &= exact(arguments)
    if arguments.statistical:
        passed &= statistical(arguments)
    if arguments.speed:
        passed &= speed(arguments)
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
