"""Rows of the GPU day: each measures one thing with the engine as it is, on any device.

    python -m benchmarks.gpu_rows ROW FOLDER [--rehearse]     # one row, as benchmarks.gpu_day starts it

A row returns its figures, and the estimates that they test: name -> (estimated, measured); or it raises RowFailed or
NotApplicable. A rehearsal runs the same functions on the CPU; only `Day.device` and `Day.size` differ.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import re
import shutil
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.gpu_estimates import CARDS, PIECES, Workload, launch_seconds, lines, rate
from benchmarks.gpu_measurement import (
    GPU,
    REHEARSAL,
    Day,
    Measured,
    NotApplicable,
    RowFailed,
    apart,
    card,
    expect,
    loss_and_norm,
    random_model,
    reports,
    sync_mode,
)
from benchmarks.input_pipeline import MODES, batches_made, timed_steps
from orchestrator.estimates.memory import activation_memory, state_bytes
from train_jobs.config import OptimizerConfig
from train_jobs.config.arithmetic import parameter_count
from train_jobs.engine.loop.probe import try_micro_batch
from train_jobs.engine.runtime.devices import autocast, memory_bytes
from train_jobs.models.packing import packing_arrays
from train_jobs.optim.factory import build_optimizer
from train_jobs.tools import gpu_report

ALLOWED_SYNCHRONISATIONS = 2  # of a step that reports
ALLOWED_VARIANTS = 4  # of a compiled function
COMPILED_FUNCTIONS = 3  # all layers, sum of embeddings, heads with losses
PARITY_SEQUENCES = 48
PARITY, PACKED = 1e-3, 1e-4  # relative: fp32 on a GPU sums in another order
HALF = 1e-2  # relative: bf16 has 8 bits of precision


def machine(day: Day) -> Measured:
    found = list(gpu_report.checks(day.kind))
    bad = [f"{one.name}: {one.text}" for one in found if one.level == "fail"]
    expect(not bad, "; ".join(bad))
    return Measured({one.name: f"{one.text}{'' if one.level == 'ok' else ' (warning)'}" for one in found})


def synchronisations(day: Day) -> Measured:
    loop, task = day.loop(day.size.small)
    timed_steps(loop, 2)
    with warnings.catch_warnings(record=True) as said, sync_mode(day, "warn"):
        warnings.simplefilter("always")
        timed_steps(loop, 1)
    waits = sum("synchroniz" in str(one.message) for one in said)
    expect(
        waits <= ALLOWED_SYNCHRONISATIONS,
        f"{waits} synchronisations in a step: {[str(one.message)[:99] for one in said]}",
    )
    batch, _ = task.train_batch({})
    micro = batch.slice(0, day.size.micro_batch)
    totals = torch.ones(len(task.counts(batch)), device=day.device)
    with sync_mode(day, "error"), task.accumulating(), autocast(loop.policy.precision, day.device):
        loss, _ = task.loss(micro, totals)
        loss.backward()
    return Measured({"synchronisations of a step": waits, "of a micro batch": 0})


def compilations(day: Day) -> Measured:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    loop, task = day.loop(day.size.small, compile=True)
    _, plain = day.loop(day.size.small, compile=False)
    losses = [one.validate(day.size.micro_batch)["loss"] for one in (task, plain)]  # of equal weights
    compiled = abs(losses[0] - losses[1]) / losses[1]
    expect(compiled <= HALF, f"validation loss {losses[0]} compiled, {losses[1]} not compiled")
    started = time.perf_counter()
    timed_steps(loop, 2)
    took = time.perf_counter() - started
    for size in {1, 3, day.size.micro_batch // 2 or 1}:  # rests of validation, a halving
        task.validate(size)
    breaks, graphs = dict(counters["graph_break"]), counters["stats"]["unique_graphs"]
    expect(not breaks, f"graph breaks: {breaks}")
    expect(graphs <= COMPILED_FUNCTIONS * ALLOWED_VARIANTS, f"{graphs} graphs: recompiled for shapes of the job")
    figures = {"graph breaks": 0, "graphs": graphs, "first steps, s": round(took, 1)}
    return Measured({**figures, "loss compiled from not compiled": f"{compiled:.1e}"})


def parity(day: Day) -> Measured:
    def gradients(device: torch.device, unpad: bool, precision: str = "fp32") -> tuple[float, float]:
        made = day._replace(device=device)
        loop, task = made.loop(
            day.size.small, short=1.0, precision=precision, unpad=unpad, compile=False, global_batch_size=64
        )
        batch = task.train_batch({})[0].slice(0, PARITY_SEQUENCES)
        expect(bool(packing_arrays(batch.lengths, day.size.length)), "these sequences have no padding to leave out")
        return loss_and_norm(loop, task, batch, PARITY_SEQUENCES)

    here, there = gradients(day.device, True), gradients(torch.device("cpu"), True)
    padded = gradients(day.device, False)
    halves = [gradients(day.device, unpad, "bf16") for unpad in (True, False)]
    far, packed = apart(here, there), apart(here, padded)
    kernels, rounded = apart(*halves), max(apart(one, here) for one in halves)
    expect(far <= PARITY, f"loss and gradient norm {here} instead of {there} on a CPU")
    expect(packed <= PACKED, f"loss and gradient norm {here} packed, {padded} padded")
    # On a GPU packed and padded sequences have different attention kernels in bf16.
    expect(kernels <= HALF, f"loss and gradient norm {halves[0]} packed, {halves[1]} padded, in bf16")
    expect(rounded <= HALF, f"loss and gradient norm {halves} in bf16, {here} in fp32")
    figures = {"difference from a CPU": far, "packed from padded": packed}
    figures |= {"packed from padded, bf16": kernels, "bf16 from fp32": rounded}
    return Measured({name: f"{value:.1e}" for name, value in figures.items()})


def resume(day: Day) -> Measured:
    from train_jobs.artifacts.files import file_sha256

    def train(folder: Path) -> str:
        sets = ("train.steps=6", "checkpoint.every=3", "checkpoint.keep_last=2", "validation.every=6")
        sets += ("train.deterministic=true", "train.log_every=1", "train.global_batch_size=16")
        sets += ("train.micro_batch_size=8", f"data.sequence_length={day.size.length}")
        day.run("train_jobs.pretrain", "--config", "tiny", "--device", day.kind, "--output", str(folder),
                *(word for one in sets for word in ("--set", one)))  # fmt: skip
        return file_sha256(next(folder.rglob("model.safetensors")))

    straight, stopped = day.folder / "straight", day.folder / "stopped"
    for folder in (straight, stopped):
        shutil.rmtree(folder, ignore_errors=True)
    expected = train(straight)
    shutil.copytree(straight, stopped)
    newest = sorted(path for path in (stopped / "checkpoints").iterdir() if path.name.startswith("step-"))[-1]
    shutil.rmtree(newest)
    shutil.rmtree(stopped / "model")
    found = train(stopped)
    expect(found == expected, "the weights of a resumed run differ from those of an undisturbed one")
    return Measured({"weights after a resume": f"bit-exact ({found[:12]})"})


def memory_probe(day: Day) -> Measured:
    loop, _ = day.loop(day.size.small, micro_batch_size="auto", global_batch_size=max(day.size.probe))
    loop.find_micro_batch(day.size.probe)
    chosen = loop.micro_batch_size
    timed_steps(loop, 2)
    expect(loop.micro_batch_size == chosen, f"out of memory with the chosen micro batch of {chosen}")
    return Measured({"micro batch found": chosen, "peak memory, GB": round(memory_bytes(day.device) / 1e9, 2)})


def throughput(recipe: str, length: int) -> Callable[[Day], Measured]:
    """Return the row that compares with the Trainer, at a length and for a recipe."""

    def row(day: Day) -> Measured:
        gpu = day.device.type == "cuda"
        model = recipe if gpu else "tiny"
        tokens = length if gpu else day.size.length
        micro = {("base", 128): 128, ("base", 512): 32, ("large", 128): 64, ("large", 512): 16}[recipe, length]
        micro = micro if gpu else day.size.micro_batch
        # On a CPU Inductor would generate C++, several minutes of a compiler for each row; a GPU gets Triton, so that
        # rehearses nothing. The graphs are the same.
        out = day.run(
            "benchmarks.pretrain_throughput", "--device", day.kind, "--recipe", model, "--length", str(tokens),
            "--micro-batch", str(micro), "--accumulation", "2", "--rounds", str(day.size.rounds),
            "--steps", "5" if gpu else "1",
            "--warmup", "3" if gpu else "1", "--backend", "inductor" if gpu else "aot_eager",
            "--peers", "ours", "Trainer", "Trainer, torch_compile",
        )  # fmt: skip
        rates = dict(table_rows(out))
        expect(set(rates) == {"ours", "Trainer", "Trainer, torch_compile"}, f"rows are missing: {sorted(rates)}")
        ours = rates["ours"]
        figures = {f"{name}, sequences/s": value for name, value in rates.items()}
        figures |= {f"times {name}": round(ours / value, 2) for name, value in rates.items() if name != "ours"}
        name, mean = card(), re.search(r"\(([\d.]+) real tokens", out)
        if name is None or mean is None:
            return Measured(figures, raw=out)
        expected = rate(CARDS[name], Workload(recipe, length, 2 * micro, float(mean[1]), "adamw"), micro)
        return Measured(figures, {f"{recipe} at {length}, sequences/s": (expected, ours)}, out)

    return row


def table_rows(out: str) -> Iterator[tuple[str, float]]:
    """Yield name and median rate of the rows of `pretrain_throughput`'s table."""
    for line in out.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 7 and cells[1][:1].isdigit():
            yield cells[0], float(cells[1].split()[0].replace(",", ""))


def lamb(day: Day) -> Measured:
    taken = {}
    for name in ("lamb", "adamw"):
        loop, task = day.loop(day.size.large)
        optimizer = build_optimizer(OptimizerConfig(name=name), task.model.named_parameters())
        for parameter in task.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        taken[name] = gpu_report.fastest(optimizer.step, day.device)
        del loop, task, optimizer
        gc.collect()
    figures = {f"{name}, ms": round(1000 * seconds, 2) for name, seconds in taken.items()}
    name = card()
    expected = {} if name is None else {
        "LAMB of large, ms": (1e3 * lines(CARDS[name], Workload("large", 128, 256), 256).optimizer, 1e3 * taken["lamb"])
    }  # fmt: skip
    return Measured({**figures, "LAMB / AdamW": round(taken["lamb"] / taken["adamw"], 2)}, expected)


def input_pipeline(day: Day) -> Measured:
    loop, task = day.loop(day.size.small)
    timed_steps(loop, 2)
    taken = {mode: list[float]() for mode in MODES}
    for _ in range(day.size.rounds):
        for mode, seconds in taken.items():
            with batches_made(mode, loop, task):
                timed_steps(loop, 1)  # nothing is made ahead yet
                read = len(task.seconds)
                seconds.append(timed_steps(loop, day.size.steps) / day.size.steps)
            if mode == "thread":
                expect(task.reader is not threading.current_thread(), "the loop read its batches itself, not a thread")
            if mode == "process":
                expect(len(task.seconds) == read, "this process read batches, not the process for them")
    figures = {
        f"step with batches {mode}, ms": round(1000 * statistics.median(some), 2) for mode, some in taken.items()
    }
    for mode in MODES[1:]:
        ratio = statistics.median(b / a for a, b in zip(taken["resident"], taken[mode], strict=True))
        figures[f"{mode} / resident"] = round(ratio, 3)
    return Measured(figures)


def squad(day: Day) -> Measured:
    folder = day.folder / "squad"
    folder.mkdir(exist_ok=True)
    context = " ".join(f"word{number} answers question {number}." for number in range(60))

    def article(copy: int) -> dict[str, Any]:
        questions = [
            {"id": f"{copy}-{number}", "question": f"What answers question {number}?",
             "answers": [{"text": f"word{number}", "answer_start": context.index(f"word{number} ")}]}
            for number in range(60)
        ]  # fmt: skip
        return {"paragraphs": [{"context": context, "qas": questions}], "title": f"article {copy}"}

    for name, copies in (("train", 20 if day.device.type == "cuda" else 2), ("dev", 1)):
        document = {"version": "1.1", "data": [article(copy) for copy in range(copies)]}
        (folder / f"{name}-v1.1.json").write_text(json.dumps(document))
    model = random_model(day, "BertForPreTraining", positions=384 if day.device.type == "cuda" else 128)
    length = 384 if day.device.type == "cuda" else 128
    config = {
        "task": "SQuAD-1.1",
        "init_from": str(model),
        "data": {"squad": str(folder), "max_length": length},
        "train": {"epochs": 1, "log_every": 1, "global_batch_size": 12, "micro_batch_size": 12},
    }
    (day.folder / "squad.json").write_text(json.dumps(config))
    shutil.rmtree(day.folder / "tuned", ignore_errors=True)
    words = ("--config", str(day.folder / "squad.json"), "--output", str(day.folder / "tuned"))
    day.run("train_jobs.finetune", *words, "--device", day.kind)
    rates = [one["sequences_per_second"] for one in reports(day.folder / "tuned", "sequences_per_second")]
    return Measured({"sequences/s": round(statistics.median(rates[len(rates) // 3 :]), 1), "length": length})


def inference(day: Day) -> Measured:
    import transformers

    from train_jobs.config import PredictConfig
    from train_jobs.inference.loaded_model import load_predictor
    from train_jobs.readers.tables import RowTable

    folder = random_model(day, "BertForSequenceClassification")
    task = load_predictor(PredictConfig.model_validate({"model": folder, "input": "r.jsonl"}), day.device)
    dtype = torch.bfloat16 if day.device.type == "cuda" else torch.float32
    pipe = transformers.pipeline(
        "text-classification", model=str(folder), device=day.device, dtype=dtype, batch_size=64, top_k=None
    )
    texts = [" ".join(["what answers question", str(number)] * (1 + number % 9)) for number in range(64)]
    answers = {
        "ours": lambda some: task.predict(RowTable(Path("r"), {"text": some}, [0] * len(some)), 0),
        "pipeline": lambda some: pipe(some),
    }
    figures = {}
    for count in (1, 64):
        for name, answer in answers.items():
            seconds = gpu_report.fastest(lambda ask=answer, some=texts[:count]: ask(some), day.device)
            figures[f"{name}, {count} texts, per second"] = round(count / seconds, 1)
    return Measured(figures)


def memory(day: Day) -> Measured:
    loop, task = day.loop(day.size.large)
    if day.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(day.device)
    timed_steps(loop, 2)
    measured = memory_bytes(day.device)
    config = task._config
    parameters = parameter_count(config.model, PIECES)
    width = 4 if loop.policy.precision == "fp32" else 2
    estimated = state_bytes(parameters, activation_bytes=width, with_moments=parameters) + activation_memory(
        config, PIECES, micro_batch_size=day.size.micro_batch, activation_bytes=width, on_cpu=day.kind == "cpu"
    )
    pair = (round(estimated / 1e9, 3), round(measured / 1e9, 3))
    return Measured({"estimated, GB": pair[0], "measured, GB": pair[1]}, {f"memory of {day.size.large}, GB": pair})


def scaling(day: Day) -> Measured:
    require_two(day)
    counts = [count for count in (1, 2, 4, 8) if count <= max(day.gpus, 2)]
    rates = {count: day.pretrain(f"scaling-{count}", batch=2 * count, ranks=count)[0] for count in counts}
    figures = {f"{count} processes, sequences/s": round(value, 1) for count, value in rates.items()}
    last = counts[-1]
    efficiency = rates[last] / (last * rates[1])
    return Measured({**figures, f"efficiency of {last}": round(efficiency, 3)})


def overlap(day: Day) -> Measured:
    from train_jobs.artifacts.files import file_sha256

    require_two(day)
    weights, rates = {}, {}
    for setting in ("false", "true"):
        sets = ("train.deterministic=true", f"train.overlap_all_reduce={setting}")
        rates[setting], folder = day.pretrain(f"overlap-{setting}", *sets, batch=4, ranks=2)
        weights[setting] = file_sha256(next(folder.rglob("model.safetensors")))
    expect(weights["true"] == weights["false"], "two processes with and without overlap have other weights")
    figures = {"without, sequences/s": round(rates["false"], 1), "with overlap": round(rates["true"], 1)}
    return Measured({**figures, "with / without": round(rates["true"] / rates["false"], 3), "weights": "bit-equal"})


def require_two(day: Day) -> None:
    """Raise NotApplicable on a machine with one GPU; a CPU serves several processes."""
    if day.kind == "gpu" and day.gpus < 2:
        raise NotApplicable("it needs two GPUs")


def launches(day: Day) -> Measured:
    """Decides whether CUDA graphs help: without them a micro batch of one sequence takes as long as its launches."""
    figures: dict[str, Any] = {}
    sums: list[tuple[float, float]] = []
    taken: dict[tuple[int, bool], float] = {}
    for graphs in (False, True):
        loop, task = day.loop(day.size.small, cuda_graphs=graphs)
        # Graphs are recorded at the first two times, and replayed at the third.
        sums.append(loss_and_norm(loop, task, task.train_batch({})[0], day.size.micro_batch, times=3))
        for count in (1, 8, 32):
            taken[count, graphs] = gpu_report.fastest(
                lambda count=count, loop=loop, task=task: try_micro_batch(
                    task, count, world=day.world, precision=loop.policy.precision
                ),
                day.device,
            )
            how = "with graphs" if graphs else "without"
            figures[f"micro batch of {count} {how}, ms"] = round(1000 * taken[count, graphs], 2)
    far = apart(sums[1], sums[0])
    expect(far <= HALF, f"loss and gradient norm {sums[1]} with graphs, {sums[0]} without")
    figures["1 / 32, without"] = round(taken[1, False] / taken[32, False], 3)
    figures |= {f"{count}, with / without": round(taken[count, True] / taken[count, False], 3) for count in (1, 8, 32)}
    both = (1e3 * launch_seconds(task._config.model.num_hidden_layers), 1e3 * taken[1, False])
    expected = {} if card() is None else {"launches of a micro batch of base, ms": both}
    return Measured({**figures, "loss and norm with graphs from without": f"{far:.1e}"}, expected)


class Row(NamedTuple):
    """A row and the seconds that it may take."""

    measure: Callable[[Day], Measured]
    budget: int
    """On a GPU."""
    rehearsal: int
    """On two cores of a CPU, with the sizes of a rehearsal."""
    all_gpus: bool = False
    """Whether it uses all GPUs of the machine, not the first one only."""


ROWS = {
    "machine": Row(machine, 50, 90, all_gpus=True),
    "synchronisations": Row(synchronisations, 70, 80),
    "compilations": Row(compilations, 110, 180),
    "parity": Row(parity, 55, 60),
    "resume": Row(resume, 110, 160),
    "memory probe": Row(memory_probe, 50, 60),
    "base at 128": Row(throughput("base", 128), 110, 100),
    "base at 512": Row(throughput("base", 512), 100, 80),
    "large at 128": Row(throughput("large", 128), 170, 80),
    "large at 512": Row(throughput("large", 512), 170, 80),
    "LAMB": Row(lamb, 35, 50),
    "input pipeline": Row(input_pipeline, 45, 60),
    "SQuAD": Row(squad, 60, 90),
    "inference": Row(inference, 35, 60),
    "memory": Row(memory, 50, 50),
    "scaling": Row(scaling, 100, 90, all_gpus=True),
    "overlap": Row(overlap, 60, 100, all_gpus=True),
    "launches": Row(launches, 120, 30),
}


def main() -> None:
    """Run one row and print its result as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("row", choices=list(ROWS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    gpus = 0 if arguments.rehearse else torch.cuda.device_count()
    device = torch.device("cpu") if arguments.rehearse else torch.device("cuda", 0)
    place = arguments.folder / "files" / hashlib.sha256(arguments.row.encode()).hexdigest()[:8]
    place.mkdir(parents=True, exist_ok=True)
    day = Day(place, device, REHEARSAL if arguments.rehearse else GPU, gpus)
    try:
        found = ROWS[arguments.row].measure(day)
    except RowFailed as problem:
        print(json.dumps({"failed": str(problem)}))
        return
    except NotApplicable as reason:
        print(json.dumps({"not applicable": str(reason)}))
        return
    print(json.dumps({"figures": found.figures, "estimates": found.estimates, "raw": found.raw}))


if __name__ == "__main__":
    main()
