"""Predicts with a BERT that has a head, or scores it: file in, file out. Reads top to bottom.

    python -m train_jobs.predict --model out/model --input new.csv --output out
    python -m train_jobs.predict --model out/model --input dev.csv --set evaluate=true --output out
    torchrun --nproc-per-node 8 -m train_jobs.predict --config predict.yaml --output out   # one node with 8 GPUs

What is predicted is what the model has a head for: labels or numbers, answers, entities, words for [MASK]; and vectors
of texts if it has none, or with --set task=embeddings. The same command again goes on behind the last window of rows
that is complete:

    out/predictions.jsonl    a line for each row of the input, in its order; there when all of it is
    out/metrics.jsonl        what is reported           out/result.json    final figures

Exit codes: 0 done, 75 stopped by SIGTERM with all complete windows kept, 130 so by Ctrl-C, 76 hung (the stacks
say where), 2 wrong input, 1 anything else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.layers import Layer, build, merge, read_assignments, read_overlays
from train_jobs.artifacts.lineage import METRICS_FILE
from train_jobs.artifacts.start_model import CONFIG, TOKENIZER, VOCABULARY, initial_weights
from train_jobs.artifacts.tuned_columns import tuned_columns
from train_jobs.config import PredictConfig, SpecError
from train_jobs.config.predict import EMBEDDINGS
from train_jobs.engine.reporting.metrics import MetricsLog, clock
from train_jobs.engine.runtime import boundary, distributed, storage
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.precision import resolve
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.engine.runtime.watchdog import Watchdog
from train_jobs.inference.answer_predictor import Answers
from train_jobs.inference.input_windows import Input, Window, open_readers, read_input
from train_jobs.inference.loaded_model import make_task
from train_jobs.inference.model_folder import TOKENIZER_FILE
from train_jobs.inference.prediction_files import FORMS, Parts
from train_jobs.inference.predictor import Task
from train_jobs.inference.readers import SquadReader
from train_jobs.tasks.rows.tables import Table
from train_jobs.tools.mirror import MirrorThread

RESULT = "result.json"
CUT = "cut"  # rows of which something was cut off
HELD_OUT = "validation_"  # how metrics of text that nothing is learned from are called in metrics.jsonl


@dataclass(frozen=True)
class Job:
    """What is predicted, and by whom."""

    config: PredictConfig
    task: Task
    input: Input
    parts: Parts
    identity: dict[str, Any]
    world: World
    stop: StopRequest


@dataclass(frozen=True)
class Done:
    """What one start of the job has done, all processes together."""

    rows: int = 0
    seconds: float = 0.0


def predict(config: PredictConfig, *, output: Path, device: str = "auto") -> dict[str, Any]:
    """The whole job on this process.

    Args:
        config: validated configuration.
        output: folder of the run.
        device: "auto", "cpu" or "gpu".

    Returns:
        The final figures, as in result.json.

    Raises:
        UserError: input or environment that the user can mend.
        Preempted: SIGTERM came; what is complete is kept.
    """
    stop = StopRequest()
    stop.listen()
    storage.require_writable(output)
    world = distributed.start(device, hang_seconds=config.watchdog.hang_seconds)
    task = make_task(config, world.device, world.activity.beat)
    rows = read_rows(task)
    path = output / config.output
    job = Job(config, task, rows, Parts(path, form(task)), identity(config, world.device), world, stop)
    world.say(describe(job))
    known = finished(job, output)
    if known is not None:
        world.say(f"nothing to do: {path} is there already")
        result = known
    else:
        with Watchdog(config.watchdog, world, output):
            result = run(job, output)
    world.barrier()
    distributed.stop()
    return result


def run(job: Job, output: Path) -> dict[str, Any]:
    """Predicts all windows that are not done, and joins them."""
    world, parts = job.world, job.parts
    metrics = MetricsLog(output / METRICS_FILE if world.is_main else None)
    mirror = MirrorThread(output / METRICS_FILE, job.config)
    metrics.open(from_step=sys.maxsize)  # reports of an earlier start stay
    result: dict[str, Any] = {}
    if world.is_main:
        mirror.start()
    try:
        going_on = world.is_main and parts.begin(job.identity, anew=job.config.resume == "never")
        windows = undone(job)
        before = job.input.rows - sum(window.rows for _, window in windows)
        if going_on and before:
            world.say(f"goes on    {before:,} of {job.input.rows:,} rows are predicted already")
        done = go_through(job, windows, before, metrics)
        if world.is_main:
            with world.activity.doing("joining", step=job.input.rows):
                result = finish(job, output, done, metrics)
                storage.write_json(output / RESULT, result)
                parts.remove()
            print(f"predicted {parts.path}", flush=True)
    finally:
        metrics.close()
        if world.is_main:
            mirror.close(completed=bool(result))
    return result


def go_through(job: Job, windows: list[tuple[int, Window]], before: int, metrics: MetricsLog) -> Done:
    """Predicts windows, each process one at a time; all of them stop together.

    Raises:
        Preempted: SIGTERM came to one of them.
    """
    world, began = job.world, time.monotonic()
    done = Done()
    mine = windows[world.rank :: world.size]
    rounds = -(-len(windows) // world.size)
    tables = read_ahead(job.input, [window for _, window in mine])
    for number in range(rounds):
        rows = 0
        if number < len(mine):
            part, window = mine[number]
            with world.activity.doing("window", step=part):
                found = job.task.predict(table := next(tables), window.first)
                records = with_kept(table, job.config.data.keep, found.records)
                job.parts.write(part, records, {**found.judged, CUT: found.cut})
            rows = window.rows
        told = world.sum_(torch.tensor([rows, job.stop.asked], dtype=torch.int64, device=world.device)).tolist()
        done = Done(done.rows + told[0], time.monotonic() - began)
        report(job, done, before, metrics)
        if told[1] and number + 1 < rounds:
            raise job.stop.ending()
    return done


def read_ahead(input: Input, windows: list[Window]) -> Iterator[Table]:  # noqa: A002  # the word for it
    """The rows of each window, read while the one before is predicted."""
    with ThreadPoolExecutor(1, thread_name_prefix="rows") as thread:
        following = thread.submit(input.read, windows[0]) if windows else None
        for number in range(len(windows)):
            assert following is not None, "it was asked for"
            table = following.result()
            if number + 1 < len(windows):
                following = thread.submit(input.read, windows[number + 1])
            yield table


def report(job: Job, done: Done, before: int, metrics: MetricsLog) -> None:
    """A line for people and one of metrics."""
    total, rate = job.input.rows, done.rows / max(done.seconds, 1e-6)
    rows = before + done.rows
    left = clock((total - rows) / max(rate, 1e-6))
    job.world.say(f"rows {rows:>{len(f'{total:,}')},}/{total:,}  {rate:,.1f} rows/s  eta {left}")
    metrics.report(rows, {"rows": float(rows), "rows_per_second": rate})


def finish(job: Job, output: Path, done: Done, metrics: MetricsLog) -> dict[str, Any]:
    """Scores the predictions, if they are to be, and joins their parts."""
    count, config = len(job.input.windows), job.config
    judged = job.parts.judged(count)
    result: dict[str, Any] = {
        "task": job.task.folder.kind,
        "model": str(config.model),
        "predictions": str(job.parts.path),
        "rows": job.input.rows,
        CUT: sum(one[CUT] for one in judged),
        "seconds": round(done.seconds, 3),
        "rows_per_second": round(done.rows / max(done.seconds, 1e-6), 1),
    }
    if config.evaluate:
        scores = job.task.scores(judged)
        result["metrics"] = scores
        metrics.report(job.input.rows, {HELD_OUT + name: value for name, value in scores.items()})
        print("  ".join(f"{name} {value:.4f}" for name, value in scores.items()), flush=True)
    with storage.storage_errors(job.parts.path, "the result"):  # it speaks of the predictions that now go
        (output / RESULT).unlink(missing_ok=True)
    job.parts.join(count)
    return {**result, "identity": digest(job.identity)}


def undone(job: Job) -> list[tuple[int, Window]]:
    """Windows with their numbers that have no part yet; as the main process finds them, which all believe."""
    windows, world = job.input.windows, job.world
    mine = [number for number in range(len(windows)) if not job.parts.has(number)] if world.is_main else []
    found = json.loads(world.texts(json.dumps(mine))[0])
    return [(number, windows[number]) for number in found]


def finished(job: Job, output: Path) -> dict[str, Any] | None:
    """The figures of an earlier start that has done all of this; None if none has, or it does not count."""
    try:
        known: dict[str, Any] = json.loads((output / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    there = job.config.resume == "auto" and known.get("identity") == digest(job.identity) and job.parts.path.is_file()
    return known if job.world.from_main(int(there)) else None


def with_kept(table: Table, keep: list[str], records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records with the columns of the input that they are to have."""
    return [{**{name: table.columns[name][row] for name in keep}, **record} for row, record in enumerate(records)]


def read_rows(task: Task) -> Input:
    """All files, checked.

    Raises:
        UserError: files that the task cannot read, or rows that cannot be used: each with its line.
    """
    readers = open_readers(task.config, task.columns, forms=task.forms, kind=task.folder.kind)
    if isinstance(task, Answers):
        task.squad = [reader for reader in readers if isinstance(reader, SquadReader)]
        if task.config.evaluate and not task.squad:
            raise SpecError("answers are scored by a file of SQuAD's form", fix="--set input=dev-v1.1.json")
    return read_input(readers, task.check, rows=task.config.batching.window)


def form(task: Task) -> Any:
    """What the predictions are written as.

    Raises:
        SpecError: an archive of numbers is asked for, and there is something else to write; or a column of the input
            has the name of one of the output.
    """
    keep, suffix, fields = task.config.data.keep, task.config.output.suffix, task.fields()
    if suffix == ".npz" and (task.folder.kind != EMBEDDINGS or keep):
        raise SpecError("output: .npz holds embeddings, and nothing else", fix="--set output=predictions.parquet")
    if both := [name for name in keep if name in fields]:
        raise SpecError(
            f"data.keep: the output has a column {', '.join(both)} of its own", fix="rename it in the input"
        )
    return FORMS[suffix](keep, fields)


def identity(config: PredictConfig, device: torch.device) -> dict[str, Any]:
    """What decides the predictions."""
    shaping = config.model_dump(mode="json", exclude={"model", "input", "output", "watchdog", "resume", "batching"})
    known = [config.model / name for name in (CONFIG, TOKENIZER, TOKENIZER_FILE, VOCABULARY)]
    return {
        "config": {**shaping, "window": config.batching.window, "form": config.output.suffix},
        "precision": resolve(config.batching.precision, device),
        "weights": initial_weights(config.model),
        "model": [file_sha256(path) if path.is_file() else None for path in known],
        "input": [file_sha256(path) for path in config.input],
    }


def digest(document: dict[str, Any]) -> str:
    """SHA-256 of a JSON document."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def describe(job: Job) -> str:
    """What is about to be predicted, in a few lines, and what is to be known of its files."""
    config, folder, world = job.config, job.task.folder, job.world
    what = f"{folder.kind}, scored" if config.evaluate else folder.kind
    shown = ", ".join(folder.labels[:5]) + (f" and {len(folder.labels) - 5} more" if len(folder.labels) > 5 else "")
    lines = [
        f"task       {what}" + (f": {shown}" if folder.labels else ""),
        f"rows       {job.input.rows:,} of {', '.join(map(str, config.input[:3]))}{' ...' if config.input[3:] else ''}",
        f"model      {config.model}, sequences of up to {job.task.max_length} tokens",
        f"arithmetic {job.identity['precision']} on {world.device.type}, {torch.get_num_threads()} threads a process,"
        f" torch {torch.__version__}",
    ]
    return "\n".join([*lines, *(f"warning: {note}" for note in job.input.notes)])


def read_config(source: str | None, sets: list[str], flags: dict[str, Any]) -> PredictConfig:
    """Reads a file, with what the flags say and `a.b=c` assignments on top, and the columns of the model below.

    Raises:
        SpecError: every wrong key and value.
    """
    layers = read_overlays(Path(source)) if source else []
    layers.append(Layer("flags", {name: value for name, value in flags.items() if value is not None}))
    layers.append(read_assignments(sets, "--set"))
    return build(PredictConfig, merge([*tuned_columns(merge(layers).tree), *layers]))


def main(argv: list[str] | None = None) -> int:
    """Parses, runs, and turns what went wrong into words and an exit code."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="train_jobs.predict",
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", help="YAML or JSON file")
    parser.add_argument("--model", help="folder of the model: its key model")
    parser.add_argument("--input", nargs="+", metavar="FILE", help="what to predict: its key input")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="A.B=C", help="change one value")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder of the run (default: ./output)")
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto")
    arguments = parser.parse_args(argv)

    def job() -> None:
        flags = {"model": arguments.model, "input": arguments.input}
        config = read_config(arguments.config, arguments.sets, flags)
        predict(config, output=arguments.output, device=arguments.device)

    return boundary.run(job, arguments.output, kept="what is predicted is kept, the same command goes on from there")


if __name__ == "__main__":
    boundary.leave(main())
