"""The plan of a prediction or an evaluation: which rows, by which model, and where the predictions go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.estimates.rows import tokens_per_row
from orchestrator.estimates.shortages import memory_warnings
from orchestrator.jobs.base import Plan
from orchestrator.jobs.facts import _memory, plan_rows
from orchestrator.jobs.ground import SharedFacts, files_fingerprint
from orchestrator.jobs.predict.estimate import PredictEstimates, estimate_prediction
from orchestrator.jobs.predict.inputs import prediction_needs
from orchestrator.jobs.predict.spec import PredictSpec
from orchestrator.jobs.row_counts import count_table, portable_names
from orchestrator.runs.status import Counts
from orchestrator.specs.resolved import Resolved
from orchestrator.support.formatting import duration_text
from orchestrator.support.home import FINGERPRINT_CACHE
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.layers import dotted
from train_jobs.artifacts.lineage import LINEAGE_FILE, ExternalFacts, Link, read_lineage
from train_jobs.artifacts.start_model import CONFIG, SHAPE, VOCABULARY, initial_weights
from train_jobs.config import ModelConfig, PredictConfig
from train_jobs.config.errors import DataError, SpecError
from train_jobs.config.pretrain import OBSERVERS

NOT_SHAPING = {*OBSERVERS, "model", "input", "output", "resume"}


class PredictPlan(Plan):
    """A prediction, or an evaluation."""

    spec: PredictSpec
    """What the user wants."""
    job: PredictConfig
    """What the job itself will read."""
    parent: Link
    """The model, as the last link of its lineage."""
    rows: int | None
    """Rows of the input; None: only the job can tell."""
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
        """The plan for humans: label and fact; a label that is empty goes on with the one before."""
        return plan_rows(self, prediction_rows(self))


def plan_prediction(resolved: Resolved, home: Path, like: Plan | None) -> PredictPlan:
    """Read model, rows and code, and return the plan.

    Args:
        resolved, home, like: see `resolve.make_plan`.

    Raises:
        DataError: a file is missing.
        SpecError: there is no model in the folder, or no folder to put the predictions into.
        ConflictError: the lineage of the model does not verify.
    """
    spec = resolved.spec
    assert isinstance(spec, PredictSpec)
    job, cache = spec.job_config(), home / FINGERPRINT_CACHE
    if resolved.site.remote_data(spec) is not None:
        raise SpecError(
            f"{dotted(resolved.site.data_key)}: files to predict are those of this machine", fix="--input FILE"
        )
    for path in job.input:
        if not path.is_file():
            raise DataError(f"no such file: {path}", facts={"where": "input"}, fix="--input FILE")
    if spec.delivery is not None and not spec.delivery.parent.is_dir():
        raise SpecError(f"no such folder: {spec.delivery.parent}", facts={"where": f"output: {spec.delivery}"})
    model, vocab_size = _shape(job.model)
    parent = _model_link(job.model, cache)
    files = portable_names(job.input)
    data = files_fingerprint(", ".join(map(str, job.input)), files, cache)
    shared = SharedFacts.of(resolved, home, [job.model, *job.input], like)
    shaping: dict[str, Any] = {
        **job.model_dump(mode="json", exclude=NOT_SHAPING),
        "model": parent.weights,
        "input": data.sha256,
        "output": job.output.suffix,
    }
    counts = [count_table(path, job.form(path), quoting=job.data.quoting, header=_header(job)) for path in job.input]
    rows = None if None in counts else sum(count for count in counts if count is not None)
    longest = min(job.data.max_length or model.max_position_embeddings, model.max_position_embeddings)
    tokens = tokens_per_row(data.total_bytes, rows, longest) if rows is not None else None
    estimates = estimate_prediction(job, model, vocab_size, compute=shared.compute, rows=rows, tokens=tokens)
    warnings = memory_warnings(estimates.process_bytes, shared.compute, "--set batching.batch_tokens=N lessens that")
    return PredictPlan(
        **shared.fields(shaping, data, warnings),
        needs=prediction_needs(job, files, data.sha256, parent.weights),
        job=job,
        parent=parent,
        rows=rows,
        delivery=spec.delivery,
        estimates=estimates,
    )


def _header(job: PredictConfig) -> bool:
    """Whether a table's first line has the names of its columns."""
    return job.data.header is None and job.task != "CoLA"


def _shape(folder: Path) -> tuple[ModelConfig, int]:
    """Shape and rows of the embedding table, as config.json has them.

    Raises:
        SpecError: there is no model in the folder.
    """
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        known = {key: config[key] for key in SHAPE if key in config}
        return ModelConfig(**known, pad_vocab_to_multiple_of=1), int(config["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        why = problem.errors()[0]["msg"] if isinstance(problem, ValidationError) else problem
        raise SpecError(f"there is no BERT in {folder}", facts={"why": why}, fix="--model RUN, or a FOLDER") from None


def _model_link(folder: Path, cache: Path) -> Link:
    """The model as the head of its lineage, or as one that came from elsewhere.

    Raises:
        SpecError: it has no weights.
        ConflictError: its lineage does not verify.
    """
    weights = initial_weights(folder, cache)
    if weights is None:
        raise SpecError(f"there are no weights in {folder}", fix="--model RUN, or a FOLDER")
    lineage = read_lineage(folder / LINEAGE_FILE)
    if lineage is not None and lineage.head.weights == weights:
        return lineage.head
    vocabulary = folder / VOCABULARY
    facts = ExternalFacts(
        weights=weights,
        file="",
        architectures=[],
        vocabulary=file_sha256(vocabulary) if vocabulary.is_file() else "",
        revision=None,
    )
    return Link.make("external", folder.resolve().name, facts)


def prediction_rows(plan: PredictPlan) -> Iterator[tuple[str, str]]:
    """Model, rows, time, memory, and where the predictions go."""
    estimates = plan.estimates
    yield "rows", f"{plan.rows:,}" if plan.rows is not None else "known to the job alone"
    origin = f"  ({plan.changes['model'].origin})" if "model" in plan.changes else ""
    yield "by", f"{plan.parent.name}, weights {(plan.parent.weights or '')[:8]}{origin}"
    yield "predictions", str(plan.delivery) if plan.delivery else f"{plan.job.output} in the outputs of the run"
    if estimates.seconds is not None:
        cost = f", ${estimates.cost:,.2f}" if estimates.cost is not None else ""
        tokens = f", {estimates.tokens_per_row:.0f} tokens a row at most" if estimates.tokens_per_row else ""
        yield "time", f"{duration_text(estimates.seconds)}{cost}{tokens} (rule of thumb)"
    yield "memory", f"{_memory(estimates.process_bytes, plan)} (estimate)"
