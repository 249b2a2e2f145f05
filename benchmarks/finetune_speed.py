"""Speed of fine-tuning compared with transformers.Trainer: the speed part of benchmarks.finetune_parity, and its peers.

Each is a process of its own that holds its model and makes steps when it is its turn. Ours is the whole job, as a user
starts it; the clock runs over batches, forward, backward, clipping and optimizer of both.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from benchmarks.contestants import Contestant
from benchmarks.finetune_data import write_files
from benchmarks.finetune_setup import Contest, with_head
from benchmarks.machine import spread

PEERS = {
    "ours": ["--by", "ours"],
    "ours, grouped by length": ["--by", "ours", "--grouped"],
    "Trainer, padded": ["--by", "trainer", "--padded"],
    "Trainer, dynamic padding, grouped by length": ["--by", "trainer", "--grouped"],
    "Trainer, dynamic padding": ["--by", "trainer"],
    "Trainer, padded, fp32": ["--by", "trainer", "--padded", "--precision", "fp32"],
    "Trainer, dynamic padding, grouped by length, fp32": ["--by", "trainer", "--grouped", "--precision", "fp32"],
    "ours, compiled": ["--by", "ours", "--compiled"],
}
IN_BF16 = list(PEERS)[:4]
WANTED = {"Trainer, padded": 2.5, "Trainer, dynamic padding, grouped by length": 1.5}
WARMUP = 3  # steps
EPOCHS = 1000  # more than are made


@dataclass
class Epoch:
    """Duration of one epoch of one contestant."""

    seconds: float
    rows: int

    @property
    def rate(self) -> float:
        """Examples per second."""
        return self.rows / self.seconds


def speed(arguments: argparse.Namespace) -> bool:
    """Print a table; return whether the targets are met."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files = write_files(arguments.speed_task, arguments.glue, arguments.squad, folder, arguments.rows, short=False)
        setup = {
            "task": arguments.speed_task,
            "model": str(arguments.model),
            "batch": arguments.batch,
            "max_length": arguments.max_length,
            "device": arguments.device,
            **{name: str(path) for name, path in files.items()},
        }
        contest = _contest(setup, precision="bf16", grouped=False)
        if arguments.model_size is not None:
            setup["model"] = str(with_head(contest, folder / "model", size=arguments.model_size))
        rows = contest.row_count
        print(f"{arguments.speed_task}, {rows:,} rows, {json.dumps(setup)}, {torch.get_num_threads()} threads\n")
        contestants = []
        for number, name in enumerate(arguments.peers):
            command = [sys.executable, "-m", "benchmarks.finetune_speed", "--setup", json.dumps(setup), *PEERS[name]]
            contestants.append(Contestant(name, command, folder / f"{number}.err"))
            print(f"{name}: {json.dumps(contestants[-1].ready)}", flush=True)
        steps = -(-rows // arguments.batch)
        turns = [arguments.steps] * (steps // arguments.steps) + [steps % arguments.steps] * bool(
            steps % arguments.steps
        )
        for _ in range(arguments.rounds):
            for turn in turns:
                for one in contestants:
                    one.steps(turn)
        endings = {one.name: one.finish() for one in contestants}
    for one in contestants:
        print(f"{one.name}: seconds of each turn {' '.join(f'{seconds:.2f}' for seconds in one.seconds)}")
    epochs = {one.name: _epochs(one.seconds, len(turns), rows) for one in contestants}
    return _table(epochs, endings)


def _epochs(seconds: Sequence[float], turns: int, rows: int) -> list[Epoch]:
    return [Epoch(sum(seconds[start : start + turns]), rows) for start in range(0, len(seconds), turns)]


def _table(epochs: Mapping[str, list[Epoch]], endings: Mapping[str, dict[str, Any]]) -> bool:
    print("\n| | examples/s | peak memory, GB | ours, times as fast | ours, grouped, times as fast | asked for |")
    print("|---|---|---|---|---|---|")
    passed = True
    for name, found in epochs.items():
        ratios = [
            [theirs.seconds / one.seconds for theirs, one in zip(found, epochs[ours], strict=True)]
            for ours in list(PEERS)[:2]
            if ours in epochs
        ]
        wanted = WANTED.get(name)
        if wanted is not None and ratios:
            passed &= statistics.median(ratios[-1]) >= wanted
        cells = [name, spread([one.rate for one in found]), f"{endings[name]['memory'] / 1e9:.1f}"]
        cells += [spread(ratio, digits=2) for ratio in ratios] + [""] * (2 - len(ratios))
        print("| " + " | ".join([*cells, "" if wanted is None else f"{wanted:g}"]) + " |")
    return passed


class Turns:
    """Turn-taking of a contestant, and the duration of all steps of a turn, including the preparation of batches."""

    def __init__(self, answers: TextIO, *, gpu: bool) -> None:
        self._answers, self._gpu = answers, gpu
        self._left, self._warming, self._started = WARMUP, True, time.perf_counter()

    def next(self) -> None:
        """Wait for a turn before each step; at the end of a turn, print its duration.

        Raises:
            Finished: no turn is left.
        """
        if self._left == 0:
            if self._gpu:
                torch.cuda.synchronize()
            seconds = time.perf_counter() - self._started
            self._send({"warm": round(seconds, 2)} if self._warming else {"seconds": [seconds]})
            self._warming = False
            self._left = json.loads(sys.stdin.readline())["steps"]
            if self._left == 0:
                raise Finished
            self._started = time.perf_counter()
        self._left -= 1

    def end(self) -> None:
        """Print the remaining facts."""
        peak = (
            torch.cuda.max_memory_allocated() if self._gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        )
        self._send({"memory": peak})

    def _send(self, what: dict[str, Any]) -> None:
        print(json.dumps(what), file=self._answers, flush=True)


class Finished(Exception):  # noqa: N818 - not an error
    """Raised after the last step."""


def ours(contest: Contest, turns: Turns, *, compiled: bool) -> None:
    """Run our job, whose steps wait for their turn."""
    from train_jobs.config.finetune import FinetuneConfig
    from train_jobs.engine.loop.loop import Loop
    from train_jobs.finetune import finetune

    original_step = Loop._step

    def step(loop: Loop) -> bool:
        turns.next()
        return original_step(loop)

    Loop._step = step  # type: ignore[method-assign]
    # Neither validation nor a checkpoint during the measurement: the Trainer is configured without them as well.
    settings = contest.settings() | {"evaluation": {"every": 10**9}, "checkpoint": {"every_minutes": 1e6}}
    settings["train"] |= {"log_every": 10, "compile": compiled}
    with tempfile.TemporaryDirectory() as place, suppress(Finished):
        finetune(FinetuneConfig.model_validate(settings), output=Path(place), device=contest.device)


def trainer(contest: Contest, turns: Turns, *, padded: bool) -> None:
    """Run transformers.Trainer, whose steps wait for their turn."""
    from transformers import TrainerCallback

    from benchmarks.finetune_trainer import make_trainer

    class TurnCallback(TrainerCallback):
        """Callback that waits for the turn."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            turns.next()

    with tempfile.TemporaryDirectory() as place, suppress(Finished):
        make_trainer(contest, place, padded=padded, callbacks=[TurnCallback()])[0].train()


def _contest(setup: Mapping[str, Any], *, precision: str, grouped: bool) -> Contest:
    paths = {name: Path(setup[name]) for name in ("model", "train", "dev", "test") if name in setup}
    return Contest(**{**setup, **paths}, epochs=EPOCHS, precision=precision, group_by_length=grouped)


def main() -> None:
    """Run the contestant that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--setup", type=json.loads, required=True)
    parser.add_argument("--by", choices=["ours", "trainer"], required=True)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--padded", action="store_true")
    parser.add_argument("--grouped", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse_args()
    contest = _contest(arguments.setup, precision=arguments.precision, grouped=arguments.grouped)
    turns = Turns(sys.stdout, gpu=contest.device == "gpu")
    # stdout is the channel of the answers; anything else that a library prints would break its JSON lines
    with redirect_stdout(sys.stderr):
        if arguments.by == "ours":
            ours(contest, turns, compiled=arguments.compiled)
        else:
            trainer(contest, turns, padded=arguments.padded)
    turns.end()


if __name__ == "__main__":
    main()
