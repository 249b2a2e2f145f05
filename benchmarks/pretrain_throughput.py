"""Pretraining throughput compared with Hugging Face: same weights, batches, precision and optimizer steps, in one run.

    python -m benchmarks.pretrain_throughput [--device gpu] [--recipe large] [--length 512] [--micro-batch 16] ...

The peers are `transformers.BertForPreTraining` under `transformers.Trainer`, as it comes and with torch_compile. Every
contestant is a process of its own that holds its model and waits; rounds go around, a few optimizer steps each, so that
a slow moment affects all equally and no two run at the same time. A step is the whole step: forward, backward,
accumulation, clipping, optimizer. Batches lie ready in memory for all (benchmarks/input_pipeline.py is about reading
them), made by our own pipeline from real text, padded to their length.

To measure as on a CPU without half precision, set ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2, and give
--peers "ours, fp32" "Trainer, fp32" "Trainer, fp32, torch_compile". On an Intel processor set
MKL_ENABLE_INSTRUCTIONS=AVX2 too. To compare two commits, give --before with a checkout of the earlier one.

Raw output of the runs that are quoted: benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.contestants import Contestant
from benchmarks.machine import describe, spread
from benchmarks.throughput_setup import Setup, prepare
from train_jobs.engine.runtime.devices import peak_flops
from train_jobs.engine.runtime.distributed import World

PEERS = {
    "ours": ["--peer", "ours"],
    "Trainer": ["--peer", "trainer"],
    "Trainer, torch_compile": ["--peer", "trainer", "--compile"],
    "Trainer, fp32": ["--peer", "trainer", "--precision", "fp32"],
    "ours, fp32": ["--peer", "ours", "--precision", "fp32"],
    "Trainer, fp32, torch_compile": ["--peer", "trainer", "--precision", "fp32", "--compile"],
}
USUAL = ("ours", "Trainer", "Trainer, torch_compile", "Trainer, fp32")


def table(setup: Setup, contestants: list[Contestant], endings: dict[str, dict[str, Any]]) -> str:
    """Return a table of sequences and real tokens per second, arithmetic, memory, and relative slowdown."""
    first = contestants[0]
    lines = [
        "| | sequences/s | real tokens/s | model TFLOP/s | peak memory, GiB | step, times the first's | last loss |",
        "|---|---|---|---|---|---|---|",
    ]
    for peer in contestants:
        rates = [setup.global_batch / seconds for seconds in peer.seconds]
        # Ratios of the same round, not of medians: a slow moment of the machine affects both sides of a ratio.
        ratios = [theirs / ours for theirs, ours in zip(peer.seconds, first.seconds, strict=True)]
        rate = statistics.median(rates)
        cells = [
            peer.name,
            spread(rates, digits=2),
            f"{rate * setup.real_tokens:,.0f}",
            f"{rate * setup.flops_per_sequence / 1e12:.2f}",
            f"{endings[peer.name]['memory'] / 2**30:.1f}",
            spread(ratios, digits=2),
            f"{endings[peer.name]['loss']:.3f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def recompilations(log: str) -> str:
    """Return what torch.compile wrote about functions that it compiled again, and why."""
    said = [line.partition("[__recompiles]")[2].strip() for line in log.splitlines() if "[__recompiles]" in line]
    return "".join(f"    {line}\n" for line in said)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--recipe", default="base", help="whose model: base or large")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--optimizer", choices=["adamw", "lamb"], default="adamw", help="ours; the Trainer has AdamW")
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="text of the batches; default: embedded")
    parser.add_argument("--vocabulary", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1, help="optimizer steps in a round")
    parser.add_argument("--warmup", type=int, default=2, help="untimed steps before the first round")
    parser.add_argument("--backend", default="inductor", help="of the compiled Trainer; aot_eager generates no code")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(USUAL))
    parser.add_argument("--before", type=Path, help="checkout of an earlier commit: the first peer from there competes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        setup = prepare(arguments, folder)
        print(f"{describe('torch', 'transformers', 'accelerate')}\n{setup.describe()}\n", flush=True)
        entrants = [(name, name, None) for name in arguments.peers]
        if arguments.before:
            entrants.append((f"{arguments.peers[0]}, before", arguments.peers[0], arguments.before))

        def enter(number: int) -> Contestant:
            name, peer, checkout = entrants[number]
            command = [sys.executable, "-m", "benchmarks.throughput_peers", "--setup", str(folder), *PEERS[peer]]
            return Contestant(name, command, folder / f"{number}.err", checkout)

        os.environ.setdefault("TORCH_LOGS", "recompiles")  # see `recompilations`
        contestants = []
        # With a GPU they warm up together: most of that is compilation, by one core each.
        with ThreadPoolExecutor(len(entrants) if arguments.device == "gpu" else 1) as starting:
            for started in starting.map(enter, range(len(entrants))):
                contestants.append(started)
                print(f"{started.name}: {json.dumps(started.ready)}", flush=True)
        for _ in range(arguments.rounds):
            for peer in contestants:
                peer.steps(arguments.steps)
        endings = {peer.name: peer.finish() for peer in contestants}
        print("\nseconds a step:")
        for number, peer in enumerate(contestants):
            faults = endings[peer.name].get("faults", "unknown")  # an earlier checkout may not report them
            seconds = " ".join(f"{one:.3f}" for one in peer.seconds)
            print(f"  {peer.name}: {seconds}; page faults a step: {faults}")
            print(recompilations((folder / f"{number}.err").read_text()), end="")
        # next to the rates: model FLOP/s mean little without what the machine reaches in the same minute
        world = World(0, 0, 1, torch.device("cuda" if arguments.device == "gpu" else "cpu"))
        peaks = ((kind, peak_flops(world, kind)) for kind in ("bf16", "fp32"))
        shown = ", ".join(f"{(peak or 0) / 1e12:.2f} TFLOP/s in {kind}" for kind, peak in peaks)
        print(f"\nlarge products: {shown} (a CPU: measured now; a GPU: its data sheet)")
        print(f"\nmedians (min-max) of {arguments.rounds} rounds\n\n{table(setup, contestants, endings)}")


if __name__ == "__main__":
    main()
