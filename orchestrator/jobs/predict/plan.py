"""The plan of a prediction or an evaluation: rows, model, place of the predictions, resources."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.estimates.memory import FP32, LIBRARIES, activation_width, layer_activation_bytes, memory_warnings
from orchestrator.estimates.pace import LAUNCH_OF_FORWARD, cost_of, seconds_of, tokens_per_row
from orchestrator.jobs.base import Plan, SharedFacts, files_fingerprint
from orchestrator.jobs.facts import memory_text, plan_rows, start_text
from orchestrator.jobs.inputs import DATA, START, At, JobInput, Needs, model_input
from orchestrator.jobs.predict.spec import PredictSpec
from orchestrator.jobs.row_counts import RowEstimates, count_table, portable_names
from orchestrator.runs.status import Counts
from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.resolved import Resolved
from orchestrator.support.home import FINGERPRINT_CACHE
from train_jobs.artifacts.files import file_sha256, read_object
from train_jobs.artifacts.layers import dotted
from train_jobs.artifacts.lineage import LINEAGE_FILE, ExternalFacts, Link, read_lineage
from train_jobs.artifacts.model_tokenizer import VOCABULARY
from train_jobs.artifacts.model_trust import SETTING, require_trusted
from train_jobs.artifacts.regular_files import read_bytes, require_regular
from train_jobs.artifacts.start_model import (
    CONFIG,
    SHAPE,
    WEIGHTS,
    initial_weights,
    label_names,
    stated_positions,
    usable_positions,
)
from train_jobs.artifacts.tracking.model_registry import registry_identity
from train_jobs.artifacts.unreadable import unreadable
from train_jobs.artifacts.weight_shapes import stated_shape_problems
from train_jobs.config import ModelConfig, PredictConfig
from train_jobs.config.arithmetic import encoder_parameters, flops_per_token
from train_jobs.config.errors import DataError, SpecError
from train_jobs.config.finetune import require_length
from train_jobs.config.predict import (
    AUTO,
    CLASSIFICATION,
    DEFAULT_LABELS,
    EMBEDDINGS,
    HEADS,
    READABLE,
    REGRESSION,
    SEVERAL_LABELS,
    require_labels,
)
from train_jobs.config.pretrain import OBSERVERS
from train_jobs.config.tasks import sentence_task
from train_jobs.readers.class_labels import require_positive_label
from train_jobs.readers.table_check import (
    QUICK_BYTES,
    CheckedTable,
    PredictedTable,
    check_inputs,
    checked_text,
    length_warnings,
)

NEWER_DEFAULTS = [("runtime", "auto"), ("int8", False)]
TRUNCATED = (CLASSIFICATION, EMBEDDINGS)  # other kinds split long texts, or read short ones
NOT_SHAPING = {*OBSERVERS, "model", "input", "output", "resume"}


BATCH_TOKENS = {"cpu": 2048, "gpu": 65_536}  # what `batching.batch_tokens: auto` is


class PredictEstimates(RowEstimates):
    """Resources that a prediction needs: memory by a formula, time by a rule of thumb."""

    parameters: int
    """Of the model, without its head, which is small."""
    process_bytes: int
    """Memory of each process: weights, one layer of a batch, libraries."""


def estimate_prediction(
    job: PredictConfig,
    model: ModelConfig,
    vocab_size: int,
    *,
    compute: ResolvedCompute,
    rows: int | None,
    tokens: float | None,
) -> PredictEstimates:
    """Return the estimates of a prediction.

    Args:
        job: what is predicted.
        model: the shape.
        vocab_size: rows of the embedding table.
        compute: machines.
        rows: of the input; None: not known.
        tokens: of a row; None: not known.
    """
    parameters = encoder_parameters(model, vocab_size)
    width = activation_width(job.batching.precision, compute.device)
    requested = job.batching.batch_tokens
    batch = BATCH_TOKENS[compute.device] if requested == "auto" else requested
    seconds = None
    if rows is not None and tokens is not None:  # a third of training: no backward pass
        each = tokens * flops_per_token(model, vocab_size, sequence_length=tokens, max_predictions=0) / 3
        launches = max(rows * tokens / batch, 1) * model.num_hidden_layers * LAUNCH_OF_FORWARD
        seconds = seconds_of(rows * each, compute, launches=launches)
    layer = batch * layer_activation_bytes(model, activation_bytes=width)
    libraries = LIBRARIES if compute.device == "cpu" else 0
    return PredictEstimates(
        parameters=parameters,
        tokens_per_row=tokens,
        seconds=seconds,
        cost=cost_of(seconds, compute),
        process_bytes=parameters * FP32 + layer + libraries,
    )


class PredictPlan(Plan):
    """A prediction, or an evaluation."""

    spec: PredictSpec
    """What the user wants."""
    job: PredictConfig
    """What the job itself will read."""
    parent: Link
    """The model, as the last link of its lineage."""
    rows: int | None
    """Rows of the input; None: only the job can count them."""
    estimates: PredictEstimates
    """What it will need."""

    @property
    def steps(self) -> int | None:
        """Rows."""
        return self.rows

    @property
    def counts(self) -> Counts:
        """Rows."""
        return "rows"

    def facts(self) -> list[tuple[str, str]]:
        """Return the plan for humans: label and fact; an empty label continues the row above."""
        place = str(self.delivery) if self.delivery else f"{self.job.output} in the outputs of the run"
        rows = [
            ("rows", f"{self.rows:,}" if self.rows is not None else "known to the job alone"),
            ("by", start_text(self, "model")),
            ("predictions", place),
            *self.estimates.time_rows(),
            ("memory", f"{memory_text(self.estimates.process_bytes, self)} (estimate)"),
        ]
        return plan_rows(self, rows)


def plan_prediction(resolved: Resolved, home: Path, reuse: Plan | None) -> PredictPlan:
    """Read model, rows and code, and return the plan.

    Args:
        resolved, home, like: see `resolve.make_plan`.

    Raises:
        DataError: a file is missing.
        SpecError: there is no model in the folder, no folder to put the predictions into, or they would overwrite an
            input.
        ConflictError: the lineage of the model does not verify.
    """
    spec = resolved.spec
    assert isinstance(spec, PredictSpec)
    job, cache = spec.job_config(), home / FINGERPRINT_CACHE
    if resolved.site.remote_data(spec) is not None:
        raise SpecError(
            f"{dotted(resolved.site.data_key)}: predictions read files of this machine only", fix="--input FILE"
        )
    for path in job.input:
        try:
            require_regular(path)
        except OSError as problem:
            raise unreadable(path, problem) from None
        if not path.is_file():
            raise DataError(f"no such file: {path}", facts={"where": "input"}, fix="--input FILE")
    if spec.delivery is not None:
        if not spec.delivery.parent.is_dir():
            raise SpecError(f"no such folder: {spec.delivery.parent}", facts={"where": f"output: {spec.delivery}"})
        job.require_other_file(spec.delivery, fix=f"--output OTHER{spec.delivery.suffix}")
    require_trusted(job.model, job.trust)
    model, vocab_size = _shape(job.model)
    parent = _model_link(job.model, cache)
    files = portable_names(job.input)
    data = files_fingerprint(", ".join(map(str, job.input)), files, cache)
    document = read_object(job.model / CONFIG) or {}
    kind = _kind(job, document)
    if kind in READABLE:
        job.require_readable(kind)
    seen = _checked_tables(job, document, spec.check) if reuse is None else {}
    shared = SharedFacts.of(resolved, home, [job.model, *job.input], reuse)
    settings = job.model_dump(mode="json", exclude=NOT_SHAPING)
    shaping: dict[str, Any] = {
        # a newer key with its default must not change the names of runs that existed before
        **{key: value for key, value in settings.items() if (key, value) not in NEWER_DEFAULTS},
        "model": parent.weights,
        "input": data.sha256,
        "output": job.output.suffix,
    }
    forms = [job.form(path, kind) for path in job.input]
    header = _header(job)
    counts = [
        count_table(path, form, quoting=job.data.quoting, header=header)
        for path, form in zip(job.input, forms, strict=True)
    ]
    rows = None if None in counts else sum(count for count in counts if count is not None)
    positions = model.max_position_embeddings
    usable = usable_positions(positions, *stated_positions(document, job.model / CONFIG))
    require_length(job.data.max_length, job.model, positions, usable)
    longest = min(job.data.max_length or usable, usable)
    tokens = tokens_per_row(data.total_bytes, rows, longest) if rows is not None else None
    estimates = estimate_prediction(job, model, vocab_size, compute=shared.compute, rows=rows, tokens=tokens)
    warnings = [
        *(note for table in seen.values() for note in table.notes),
        *length_warnings(seen if kind in TRUNCATED else {}, longest, usable),
        *memory_warnings(estimates.process_bytes, shared.compute, "--set batching.batch_tokens=N lessens that"),
    ]
    return PredictPlan(
        **shared.fields(shaping, data, warnings),
        needs=prediction_needs(job, files, data.sha256, parent.weights),
        job=job,
        checked=checked_text(seen) if seen else None,
        parent=parent,
        rows=rows,
        delivery=spec.delivery,
        estimates=estimates,
    )


def _kind(job: PredictConfig, config: Mapping[str, Any]) -> str | None:
    """Return the kind of prediction; None for a model of another class, which the job refuses."""
    if job.task != AUTO:
        return job.task
    names = config.get("architectures")
    known = (HEADS.get(str(name)) for name in (names if isinstance(names, list) else ()))
    return next(filter(None, known), None)


def _checked_tables(job: PredictConfig, config: Mapping[str, Any], check: str) -> dict[str, CheckedTable]:
    """Check the user's own tables; of a built-in task only its labels, since the job accepts flaws of its files."""
    kind, task = _kind(job, config), sentence_task(job.task)
    if kind is None:
        return {}
    table = PredictedTable(kind)
    if job.evaluate and (task is not None or kind == CLASSIFICATION):
        names: Sequence[str] = DEFAULT_LABELS
        problem = config.get("problem_type")
        with suppress(ValueError):  # the job refuses such a model
            names = tuple(label_names(config)) or DEFAULT_LABELS
        if problem == REGRESSION or (problem is None and len(names) == 1):
            table = PredictedTable(kind, numbers=True)
        elif problem != SEVERAL_LABELS:
            table = PredictedTable(kind, names)
            if task is None:
                require_positive_label(job.data.positive_label, names)
        if task is not None:
            require_labels(task, job.model, names, number=table.numbers)
    if task is not None:
        return {}
    return check_inputs(job, table, most_bytes=None if check == "all" else QUICK_BYTES)


def _header(job: PredictConfig) -> bool:
    """Return whether the first line of a table has the names of its columns."""
    return job.data.header is None and job.task != "CoLA"


def _shape(folder: Path) -> tuple[ModelConfig, int]:
    """Return shape and rows of the embedding table, from config.json.

    Raises:
        SpecError: there is no model in the folder, or its weights have other shapes than config.json states.
    """
    try:
        config = json.loads(read_bytes(folder / CONFIG))
        known = {key: config[key] for key in SHAPE if key in config}
        model, rows = ModelConfig(**known, pad_vocab_to_multiple_of=1), int(config["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as problem:
        why = problem.errors()[0]["msg"] if isinstance(problem, ValidationError) else problem
        raise SpecError(f"{folder} contains no BERT", facts={"why": why}, fix="--model RUN, or a FOLDER") from None
    sizes = {**model.model_dump(include=set(SHAPE)), "vocab_size": rows}
    if problems := stated_shape_problems(folder / WEIGHTS[0], sizes):
        raise SpecError(f"cannot predict with {folder}: its files contradict each other", problems=problems)
    return model, rows


def _model_link(folder: Path, cache: Path) -> Link:
    """Return the model as the head of its lineage; without a lineage, as an external model.

    Raises:
        SpecError: it has no weights.
        ConflictError: its lineage does not verify.
    """
    weights = initial_weights(folder, cache)
    if weights is None:
        raise SpecError(f"{folder} contains no weights", fix="--model RUN, or a FOLDER")
    lineage = read_lineage(folder / LINEAGE_FILE)
    if lineage is not None and lineage.head.weights == weights:
        return lineage.head
    vocabulary = folder / VOCABULARY
    name, revision = registry_identity(folder) or (folder.resolve().name, None)
    facts = ExternalFacts(
        weights=weights,
        file="",
        architectures=[],
        vocabulary=file_sha256(vocabulary) if vocabulary.is_file() else "",
        revision=revision,
    )
    return Link.make("external", name, facts)


def prediction_needs(job: PredictConfig, files: Mapping[str, Path], sha256: str, weights: str | None) -> Needs:
    """Return the needs of a prediction.

    Args:
        job: what is predicted.
        files: name below the input's folder -> file.
        sha256: of the files.
        weights: SHA-256 of the model.
    """
    return Needs(
        (JobInput(DATA, "tables", sha256, list_files=lambda: files), model_input(job.model, weights or "")),
        {"input": [At(DATA, name) for name in files], "model": At(START)},
        ("model", "input", SETTING),
    )
