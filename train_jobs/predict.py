"""Predict with a BERT that has a head, or score it: file in, file out.

    python -m train_jobs.predict --model out/model --input new.csv --output out
    python -m train_jobs.predict --model out/model --input dev.csv --set evaluate=true --output out
    torchrun --nproc-per-node 8 -m train_jobs.predict --config predict.yaml --output out   # one node with 8 GPUs

The head decides the kind of prediction: labels or numbers, answers, entities, words for [MASK]; without a head, or with
--set task=embeddings, vectors of texts. The same command again resumes after the last complete window of rows:

    out/predictions.jsonl    a line for each row of the input, in its order; written at the end
    out/metrics.jsonl        metrics                    out/result.json    final figures

Exit codes: 0 done, 75 stopped by SIGTERM with all complete windows kept, 130 the same by Ctrl-C, 76 hung (see the
stacks), 2 invalid input, 8 this machine cannot run it, 1 any other error.
"""

from __future__ import annotations

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

from train_jobs.artifacts.files import content_record, file_sha256, has_content, read_object, write_text
from train_jobs.artifacts.layers import ConfigLayer, build, merge, read_assignments, read_overlays
from train_jobs.artifacts.lineage import METRICS_FILE
from train_jobs.artifacts.model_tokenizer import TOKENIZER, TOKENIZER_FILE, VOCABULARY
from train_jobs.artifacts.start_model import CONFIG, initial_weights
from train_jobs.artifacts.task_files import finetuned_tables
from train_jobs.config import PredictConfig, SpecError
from train_jobs.config.predict import EMBEDDINGS
from train_jobs.engine.reporting.metrics import MetricsLog, clock
from train_jobs.engine.reporting.system_metrics import SystemMonitor
from train_jobs.engine.runtime import boundary, distributed, storage
from train_jobs.engine.runtime.devices import describe_arithmetic, resolve_precision
from train_jobs.engine.runtime.diagnostics import Watchdog
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.evaluation.scored_rows import SCORED_ROWS, scored_rows_text
from train_jobs.inference.input_windows import Input, RowWindow, SquadReader, open_readers, read_input
from train_jobs.inference.int8_agreement import Agreement
from train_jobs.inference.loaded_model import load_predictor
from train_jobs.inference.onnx_model import GRAPH_FILE
from train_jobs.inference.prediction_files import OUTPUT_FORMATS, PredictionParts
from train_jobs.inference.predictor import Predictor
from train_jobs.inference.span_predictors import AnswerPredictor
from train_jobs.models.bert.kernels import agree_on_kernels
from train_jobs.readers.squad_data import require_scorable
from train_jobs.readers.tables import RowTable
from train_jobs.tools.mirror import MirrorThread

RESULT = "result.json"
CUT = "cut"  # key of a result: number of truncated rows
# keys of a result: size and hash of the joined file, and of the scored rows of an evaluation
FILE, ROWS_FILE = "predictions_file", "scored_rows_file"
HELD_OUT = "validation_"  # prefix of held-out metrics in metrics.jsonl


@dataclass(frozen=True)
class PredictJob:
    """State of one prediction job."""

    config: PredictConfig
    task: Predictor
    """Loaded model with the functions of its kind of prediction."""
    input: Input
    """Windows of rows."""
    parts: PredictionParts
    """Predictions of finished windows, and the file that joins them."""
    identity: dict[str, Any]
    """Everything that determines the predictions."""
    world: World
    stop: StopRequest


@dataclass(frozen=True)
class Done:
    """Progress of one start of the job, over all processes."""

    rows: int = 0
    """Rows predicted."""
    seconds: float = 0.0
    """Duration."""


def predict(config: PredictConfig, *, output: Path, device: str = "auto") -> dict[str, Any]:
    """Run the complete job in this process.

    Args:
        config: validated configuration.
        output: folder of the run.
        device: "auto", "cpu" or "gpu".

    Returns:
        The final figures, as in result.json.

    Raises:
        UserError: input or environment that the user can fix.
        Preempted: SIGTERM stopped the job; complete windows are kept.
    """
    path = output / config.output
    config.require_other_file(path, fix=f"--set output=OTHER{path.suffix}")
    stop = StopRequest()
    stop.listen()
    storage.require_writable(output)
    world = distributed.start(device, hang_seconds=config.watchdog.hang_seconds)
    task = load_predictor(config, world.device, world.activity.beat)
    rows = read_rows(task)
    job = PredictJob(config, task, rows, PredictionParts(path, form(task)), identity(config, world.device), world, stop)
    world.log(describe(job))
    known = finished(job, output)
    if known is not None:
        world.log(f"nothing to do: {path} already exists")
        result = known
        tidy(job, output)
    else:
        with Watchdog(config.watchdog, world, output):
            result = run(job, output)
    world.barrier()
    distributed.stop()
    return result


def run(job: PredictJob, output: Path) -> dict[str, Any]:
    """Predict all pending windows and join their parts.

    Returns:
        The final figures on the main process; empty on the others.

    Raises:
        Preempted: SIGTERM stopped the job; complete windows are kept.
    """
    world, parts = job.world, job.parts
    metrics, mirror = reporters(job, output)
    result: dict[str, Any] = {}
    resumed = world.is_main and parts.begin(job.identity, restart=job.config.resume == "never")
    windows = pending_windows(job)
    before = job.input.rows - sum(window.rows for _, window in windows)
    # Later reports are of windows that are predicted again, after damage to the parts or to the joined file.
    with metrics.mirrored(mirror, from_step=before):
        if resumed and before:
            world.log(f"resume     {before:,} of {job.input.rows:,} rows are predicted already")
            # the earlier start may have been killed between the last window and its report
            metrics.report_once(before, {"rows": float(before)})
        with SystemMonitor.of(world, output):
            done = predict_windows(job, windows, before, metrics)
        if world.is_main:
            with world.activity.doing("joining", step=job.input.rows):
                result = finish(job, output, done, metrics)
                # Before the result, which ends the job: a crash of the machine after it must not lose the scores.
                with storage.storage_errors(output, METRICS_FILE):
                    metrics.sync()
                storage.write_json(output / RESULT, result)
                parts.remove()
            print(f"predicted {parts.path}", flush=True)
    return result


def tidy(job: PredictJob, output: Path) -> None:
    """Do what a kill right after the result prevented: remove the parts and copy the last metrics."""
    metrics, mirror = reporters(job, output)
    with metrics.mirrored(mirror, from_step=sys.maxsize):
        if job.world.is_main:
            job.parts.remove()


def reporters(job: PredictJob, output: Path) -> tuple[MetricsLog, MirrorThread | None]:
    """Return the log of metrics and its mirror; on other processes than the main one they do nothing."""
    path = output / METRICS_FILE
    return (MetricsLog(path), MirrorThread(path, job.config)) if job.world.is_main else (MetricsLog(None), None)


def predict_windows(job: PredictJob, windows: list[tuple[int, RowWindow]], before: int, metrics: MetricsLog) -> Done:
    """Predict windows, one at a time per process; all processes stop after the same round.

    Args:
        job: state of the job.
        windows: pending windows with their numbers.
        before: rows predicted by earlier starts.
        metrics: log of progress.

    Raises:
        Preempted: a process received SIGTERM.
    """
    world, began = job.world, time.monotonic()
    done, agreement = Done(), Agreement(job.task)
    mine = windows[world.rank :: world.size]
    rounds = -(-len(windows) // world.size)
    tables = read_ahead(job.input, [window for _, window in mine])
    for number in range(rounds):
        rows = 0
        if number < len(mine):
            part, window = mine[number]
            with world.activity.doing("window", step=part):
                found = job.task.predict(table := next(tables), window.first)
                agreement.add(table, window.first, found.records)
                kept = ({name: table.columns[name][row] for name in job.config.data.keep} for row in range(len(table)))
                records = [{**some, **record} for some, record in zip(kept, found.records, strict=True)]
                job.parts.write(part, records, {**found.score_inputs, CUT: found.truncated})
            rows = window.rows
        # One collective per round shares progress and the request to stop: if a single process left the loop, the
        # others would wait for it until they time out.
        shared = world.sum_(torch.tensor([rows, job.stop.requested], dtype=torch.int64, device=world.device)).tolist()
        done = Done(done.rows + shared[0], time.monotonic() - began)
        report(job, done, before, metrics)
        if shared[1] and number + 1 < rounds:
            raise job.stop.preempted()
    if agreement.rows:
        world.log(str(agreement))
    return done


def read_ahead(input: Input, windows: list[RowWindow]) -> Iterator[RowTable]:  # noqa: A002  # the word for it
    """Yield the rows of each window; the next one is read in a thread while the current one is predicted."""
    with ThreadPoolExecutor(1, thread_name_prefix="rows") as thread:
        following = thread.submit(input.read, windows[0]) if windows else None
        for number in range(len(windows)):
            assert following is not None, "submitted above"
            table = following.result()
            if number + 1 < len(windows):
                following = thread.submit(input.read, windows[number + 1])
            yield table


def report(job: PredictJob, done: Done, before: int, metrics: MetricsLog) -> None:
    """Print a line of progress and report its metrics."""
    total, rate = job.input.rows, done.rows / max(done.seconds, 1e-6)
    rows = before + done.rows
    left = clock((total - rows) / max(rate, 1e-6))
    job.world.log(f"rows {rows:>{len(f'{total:,}')},}/{total:,}  {rate:,.1f} rows/s  eta {left}")
    metrics.report(rows, {"rows": float(rows), "rows_per_second": rate})


def finish(job: PredictJob, output: Path, done: Done, metrics: MetricsLog) -> dict[str, Any]:
    """Score the predictions if `evaluate` is set, join their parts, and return the final figures."""
    count, config = len(job.input.windows), job.config
    score_inputs = job.parts.score_inputs(count)
    result: dict[str, Any] = {
        "task": job.task.folder.kind,
        "model": str(config.model),
        "predictions": str(job.parts.path),
        "rows": job.input.rows,
        CUT: sum(one[CUT] for one in score_inputs),
    }
    if done.rows:  # else earlier starts predicted everything, and this one measured nothing
        seconds, rate = done.seconds, done.rows / max(done.seconds, 1e-6)
        result |= {"seconds": round(seconds, 3), "rows_per_second": round(rate, 1)}
    if config.evaluate:
        scores = job.task.scores(score_inputs)
        result |= {"metrics": scores, **job.task.score_details(score_inputs)}
        # an earlier start may have been killed between its report and the result
        metrics.report_once(job.input.rows, {HELD_OUT + name: value for name, value in scores.items()})
        print("  ".join(f"{name} {value:.4f}" for name, value in scores.items()), flush=True)
    # The old result describes the predictions that are replaced below; a kill between the two must not leave it.
    with storage.storage_errors(job.parts.path, "the result"):
        (output / RESULT).unlink(missing_ok=True)
        if config.evaluate:
            write_text(output / SCORED_ROWS, scored_rows_text(job.task.scored_rows(score_inputs)))
            result[ROWS_FILE] = content_record(output / SCORED_ROWS)
    return {**result, FILE: job.parts.join(count), "identity": digest(job.identity)}


def pending_windows(job: PredictJob) -> list[tuple[int, RowWindow]]:
    """Return windows without a part, with their numbers; call it on every process."""
    # Only the main process looks: on a shared disk the others may see another state.
    windows, world = job.input.windows, job.world
    mine = []
    for number in range(len(windows) if world.is_main else 0):
        with world.activity.doing("verification", step=number):  # reads each part, for minutes if they are large
            mine += [] if job.parts.has(number) else [number]
    return [(number, windows[number]) for number in json.loads(world.gather_texts(json.dumps(mine))[0])]


def finished(job: PredictJob, output: Path) -> dict[str, Any] | None:
    """Return the result of an earlier start with the same identity.

    Returns:
        None without a result, if `resume` is never, or if the scored rows, or the file of predictions in the run's
        folder, have changed.

    Raises:
        SpecError: the file of predictions has changed elsewhere; it may be the user's work, so it is not replaced.
    """
    known, path, world = read_object(output / RESULT) or {}, job.parts.path, job.world
    there = job.config.resume == "auto" and known.get("identity") == digest(job.identity) and path.is_file()
    if not world.from_main(int(there)):
        return None
    # A result of an earlier version has no record of the files.
    files = ((FILE, path), (ROWS_FILE, output / SCORED_ROWS)) if world.is_main else ()
    changed = [file for key, file in files if key in known and not has_content(file, known[key])]
    if not world.from_main(len(changed)):
        return known
    if world.from_main(int(path in changed)) and not path.resolve().is_relative_to(output.resolve()):
        raise SpecError(
            f"cannot resume: {path} has changed since it was written",
            fix="move it to predict again, or --set resume=never to replace it",
        )
    world.log(f"{', '.join(map(str, changed))} changed after it was written: predicting again")
    return None


def read_rows(task: Predictor) -> Input:
    """Open and check all input files.

    Raises:
        UserError: the task cannot read a file, or rows are invalid; the error lists each with its line.
    """
    readers = open_readers(task.config, task.folder.kind)
    if isinstance(task, AnswerPredictor):
        task.squad = [reader for reader in readers if isinstance(reader, SquadReader)]
        if task.config.evaluate:
            require_scorable([reader.squad for reader in task.squad])
    return read_input(readers, task.check, rows=task.config.batching.window)


def form(task: Predictor) -> Any:
    """Return the writer of the prediction file's format.

    Raises:
        SpecError: .npz is requested for anything but embeddings, or a copied column has the name of a predicted one.
    """
    keep, suffix, fields = task.config.data.keep, task.config.output.suffix, task.fields()
    if suffix == ".npz" and task.folder.kind != EMBEDDINGS:
        raise SpecError("invalid output: .npz holds only embeddings", fix="--set output=predictions.parquet")
    if both := [name for name in keep if name in fields]:
        raise SpecError(
            f"invalid data.keep: the output already has a column {', '.join(both)}", fix="rename it in the input"
        )
    return OUTPUT_FORMATS[suffix](keep, fields)


def identity(config: PredictConfig, device: torch.device) -> dict[str, Any]:
    """Return everything that determines the predictions, as JSON.

    A later start resumes only with the same identity.

    Args:
        config: validated configuration.
        device: device of the predictions, which decides precision `auto`.
    """
    shaping = config.model_dump(
        mode="json", exclude={"model", "input", "output", "trust", "watchdog", "resume", "batching"}
    )
    known = [config.model / name for name in (CONFIG, TOKENIZER, TOKENIZER_FILE, VOCABULARY)]
    return {
        "config": {**shaping, "window": config.batching.window, "form": config.output.suffix},
        "precision": _precision(config, device),
        "weights": initial_weights(config.model),
        "model": [file_sha256(path) if path.is_file() else None for path in known],
        "input": [file_sha256(path) for path in config.input],
        **({"graph": file_sha256(config.model / GRAPH_FILE)} if config.runtime == "onnx" else {}),
    }


def _precision(config: PredictConfig, device: torch.device) -> str:
    return "fp32" if config.runtime == "onnx" else resolve_precision(config.batching.precision, device)


def digest(document: dict[str, Any]) -> str:
    """Return the SHA-256 of a JSON document."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def describe(job: PredictJob) -> str:
    """Return a summary of the job, with warnings about its files and its arithmetic; call it on every process."""
    config, folder, world = job.config, job.task.folder, job.world
    what = f"{folder.kind}, scored" if config.evaluate else folder.kind
    shown = ", ".join(folder.labels[:5]) + (f" and {len(folder.labels) - 5} more" if len(folder.labels) > 5 else "")
    precision, shape = _precision(config, world.device), folder.shape
    lines = [
        f"task       {what}" + (f": {shown}" if folder.labels else ""),
        f"rows       {job.input.rows:,} of {', '.join(map(str, config.input[:3]))}{' ...' if config.input[3:] else ''}",
        f"model      {config.model}, sequences of up to {job.task.max_length} tokens",
        *describe_arithmetic(precision, world.device),
        *agree_on_kernels(
            world,
            precision,
            shape.hidden_size // shape.num_attention_heads,
            compile_wanted=config.batching.compile == "auto",
            section="batching",
        ),
    ]
    return "\n".join([*lines, *(f"warning: {note}" for note in job.input.notes)])


def read_config(source: str | None, sets: list[str], flags: dict[str, Any]) -> PredictConfig:
    """Read a configuration file; flags and `a.b=c` assignments override it, the model's tables give defaults.

    Args:
        source: path of a YAML or JSON file. None: flags and assignments only.
        sets: assignments.
        flags: key -> value, or None for a flag that was not given.

    Raises:
        SpecError: keys or values are invalid.
    """
    layers = read_overlays(Path(source)) if source else []
    layers.append(ConfigLayer("flags", {name: value for name, value in flags.items() if value is not None}))
    layers.append(read_assignments(sets, "--set"))
    return build(PredictConfig, merge([*finetuned_tables(merge(layers).tree), *layers]))


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the job and return an exit code."""
    parser = boundary.job_parser("predict", __doc__, needs_config=False)
    parser.add_argument("--model", help="folder of the model (key model)")
    parser.add_argument("--input", nargs="+", metavar="FILE", help="files to predict (key input)")
    arguments = parser.parse_args(argv)

    def job() -> None:
        flags = {"model": arguments.model, "input": arguments.input}
        config = read_config(arguments.config, arguments.sets, flags)
        predict(config, output=arguments.output, device=arguments.device)

    return boundary.run(job, arguments.output, resume_hint="predicted windows are kept, the same command resumes")


if __name__ == "__main__":
    boundary.exit_process(main())
