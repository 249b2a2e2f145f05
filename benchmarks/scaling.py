"""One process and two: throughput, and what exchanging gradients costs an optimizer step. Then 8 x 8 GPUs, by a model.

    python -m benchmarks.scaling [--recipe small] [--vocabulary vocab.txt] [--rounds 9] ...

Every layout makes the same global batch of the same text with the engine's own loop, LAMB, bf16, in the same micro
batches. Layouts step in turn, so that a slow moment affects all equally; the processes of one that waits read
their stdin and hold no core. Two processes apart, of half the batch each and without any exchange, show what the cores
themselves yield when both are at work. The model of many GPUs: benchmarks/scaling_model.py.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import scaling_model
from benchmarks.machine import describe, spread
from train_jobs.artifacts.fingerprints import fingerprint
from train_jobs.artifacts.layers import ConfigLayer, build, merge, read_preset
from train_jobs.config import PretrainConfig
from train_jobs.corpus.preparation import prepare_store, store_key

Report = dict[str, dict[str, float]]
"""Report of a process about one step: seconds, bytes, collectives, each by stage."""


@dataclass(frozen=True)
class Layout:
    """Layout of a global batch."""

    name: str
    processes: int
    threads: int
    sharded: bool = False
    independent: bool = False
    """Each process trains a model of its own on its share."""

    @property
    def cores(self) -> int:
        """Number of cores that the layout can use."""
        return self.processes * self.threads


LAYOUTS = (
    Layout("1 process of 1 thread", 1, 1),
    Layout("2 processes of 1 thread", 2, 1),
    Layout("the same, `optimizer.sharded`", 2, 1, sharded=True),
    Layout("1 process of 2 threads", 1, 2),
    Layout("2 processes apart, no exchange", 2, 1, independent=True),
)


class Workers:
    """Processes of a layout."""

    def __init__(self, layout: Layout, config: PretrainConfig, folder: Path, cache: Path) -> None:
        self.layout = layout
        self.steps: list[list[Report]] = []
        """For each step the reports of all processes."""
        folder.mkdir()
        path = folder / "config.json"
        path.write_text(_config_of(layout, config).model_dump_json())
        command = [sys.executable, "-m", "benchmarks.scaling_worker", "--config", str(path), "--cache", str(cache)]
        common = {"OMP_NUM_THREADS": str(layout.threads), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        # Independent processes have a world of one each, so they never exchange anything.
        size = 1 if layout.independent else layout.processes
        self._logs = [(folder / f"{number}.err").open("w") for number in range(layout.processes)]
        self._processes = []
        for number, log in enumerate(self._logs):
            rank = str(0 if layout.independent else number)
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
            environment = {**os.environ, **common, **place, "CUDA_VISIBLE_DEVICES": ""}
            self._processes.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
                )
            )
        self.parameters: int = self._answers()[0]

    def make(self, steps: int) -> list[list[Report]]:
        """Make some steps in every process; return the reports of each step."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"steps": steps}) + "\n")
            process.stdin.flush()
        return [list(reports) for reports in zip(*self._answers(), strict=True)]

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process, log in zip(self._processes, self._logs, strict=True):
            process.wait()
            log.close()

    def seconds(self, *stages: str, less: Sequence[str] = ()) -> list[float]:
        """Return for each step the sum of `stages` minus that of `less`, in the process with the largest."""
        return [
            max(sum(one[name] for name in stages) - sum(one[name] for name in less) for one in map(_seconds, reports))
            for reports in self.steps
        ]

    def _answers(self) -> list[Any]:
        found = []
        for process, log in zip(self._processes, self._logs, strict=True):
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"{self.layout.name} died:\n{Path(log.name).read_text()[-3000:]}")
            found.append(json.loads(line))
        return found


def _seconds(report: Report) -> Counter[str]:
    return Counter(report["seconds"])  # 0 for a stage that there was not


def _config_of(layout: Layout, config: PretrainConfig) -> PretrainConfig:
    share = config.train.global_batch_size // (layout.processes if layout.independent else 1)
    return config.model_copy(
        update={
            "train": config.train.model_copy(update={"global_batch_size": share}),
            "optimizer": config.optimizer.model_copy(update={"sharded": layout.sharded}),
        }
    )


def _free_port() -> int:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def configure(arguments: argparse.Namespace) -> PretrainConfig:
    """Return the recipe with LAMB and this benchmark's batch."""
    changed: dict[str, Any] = {
        "data": {"text": arguments.data, "vocabulary": arguments.vocabulary, "sequence_length": arguments.length},
        "train": {"global_batch_size": arguments.batch, "micro_batch_size": arguments.micro_batch, "precision": "bf16"},
        "optimizer": {"name": "lamb"},
    }
    return build(PretrainConfig, merge([*read_preset(arguments.recipe), ConfigLayer("benchmark", changed)]))


def throughput(teams: list[Workers], batch: int) -> str:
    """Return a table of sequences per second, speed-up over the first layout, and the seconds of a step."""
    lines = [
        "| | sequences/s | times the first | efficiency of its cores, % | step, s | forward and backward, s |",
        "|---|---|---|---|---|---|",
    ]
    alone = teams[0].seconds("step")
    for team in teams:
        steps = team.seconds("step")
        ratios = [first / seconds for first, seconds in zip(alone, steps, strict=True)]
        cells = [
            team.layout.name,
            spread([batch / seconds for seconds in steps]),
            spread(ratios, digits=2),
            f"{100 * statistics.median(ratios) / team.layout.cores:.0f}",
            spread(steps, digits=2),
            spread(team.seconds("forward", "backward"), digits=2),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def exchange(teams: list[Workers]) -> str:
    """Return a table of the time after the backward pass: milliseconds, bytes and number of collectives."""
    columns = ["waits for the slower", "agreement", "bytes", "gradients' sum", "MB", "LAMB", "weights' way back", "MB"]
    lines = ["| ms | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    back = ("optimizer wait", "optimizer exchange")
    for team in teams:
        report = team.steps[-1][0]
        alone = team.layout.independent or team.layout.processes == 1
        shared = [
            spread(team.seconds("agreement wait", "reduction wait", "optimizer wait"), 1e3),
            spread(team.seconds("agreement exchange"), 1e3, 2),
            _exchanged(report, "agreement", 1, 0),
            spread(team.seconds("reduction exchange"), 1e3),
            _exchanged(report, "reduction", 1e6, 1),
        ]
        returned = [spread(team.seconds("optimizer exchange"), 1e3), _exchanged(report, "optimizer", 1e6, 1)]
        cells = [
            team.layout.name,
            *(["-"] * len(shared) if alone else shared),
            spread(team.seconds("optimizer", less=back), 1e3),
            *(returned if team.layout.sharded else ["-"] * len(returned)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _exchanged(report: Report, stage: str, unit: float, digits: int) -> str:
    return f"{report['bytes'].get(stage, 0) / unit:.{digits}f} in {report['collectives'].get(stage, 0):.0f}"


def main() -> None:
    """Print the measurements, then the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="small", help="whose model")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=64, help="sequences of an optimizer step")
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="text; default: embedded")
    parser.add_argument("--vocabulary", type=Path, help="vocab.txt; default: trained on the text")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--warmup", type=int, default=2, help="untimed steps before the first round")
    arguments = parser.parse_args()
    config = configure(arguments)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        cache = folder / "cache"
        found = fingerprint(config.data.text, None)
        prepare_store(config.data, cache / store_key(config.data, found), progress=lambda text: None, found=found)
        teams = []
        for number, layout in enumerate(LAYOUTS):
            teams.append(Workers(layout, config, folder / str(number), cache))
            teams[-1].make(arguments.warmup)
        for _ in range(arguments.rounds):
            for team in teams:
                team.steps += team.make(1)
        for team in teams:
            team.end()
    print(f"{describe('torch')}\n")
    print(
        f"{teams[0].parameters / 1e6:.2f} M parameters, {arguments.batch} sequences of {arguments.length} a step in"
        f" micro batches of {arguments.micro_batch}, bf16, LAMB;\n{arguments.rounds} rounds, medians (min-max)\n"
    )
    print("seconds a step:")
    for team in teams:
        print(f"  {team.layout.name}: {' '.join(f'{seconds:.3f}' for seconds in team.seconds('step'))}")
    print(f"\n{throughput(teams, arguments.batch)}\n\n{exchange(teams)}\n")
    scaling_model.main()


if __name__ == "__main__":
    main()
