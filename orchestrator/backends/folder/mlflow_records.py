"""The MLflow run that a run's folder asks for: its records, datasets and artifacts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.backends.base import CONFIG, PLAN, REQUEST, TAGS
from orchestrator.backends.folder.run_folder import LocalState, RunFolder
from orchestrator.backends.run_progress import last_report
from orchestrator.jobs.datasets import run_datasets
from orchestrator.jobs.registry import DEFAULT, run_kind
from orchestrator.runs.run_artifacts import RunFiles
from orchestrator.runs.run_records import RunRecords, owner
from orchestrator.runs.status import SWEEP_TAG, Handle, RunStatus
from orchestrator.runs.tracked_run import (
    HANDLE_TAG,
    RUNNING,
    STATUS,
    PrimaryMetric,
    TrackingRequest,
    submitted_tag,
)
from orchestrator.support.errors import UserError
from orchestrator.support.plugins import imported
from train_jobs.artifacts.lineage import read_lineage
from train_jobs.config.privacy import SHOW_VALUES

RESULT = "result.json"


def tracking_request(run: RunFolder) -> TrackingRequest:
    """Return the MLflow run that a run should have now."""
    state, submission, tags = run.state(), run.read_json(REQUEST), run.read_json(TAGS)
    attempts = state.closed_attempts(last_report(run.metrics))
    records = read_records(run, state, tags[HANDLE_TAG])
    return TrackingRequest(
        uri=submission["tracking_uri"],
        experiment=submission["experiment"],
        run_name=run.name,
        identity={HANDLE_TAG: tags[HANDLE_TAG], **submitted_tag(state.created)},
        params=records.parameters(),
        tags={**records.tags(), **tags},
        folder=str(run.path),
        metrics=str(run.metrics),
        status=STATUS.get(state.state, "KILLED") if state.state.terminal else RUNNING,
        started=attempts[0].started if attempts else state.created,
        ended=state.last_end(attempts),
        run_id=state.mlflow_run_id,
        secrets=submission.get("secrets", {}),
        description=records.description(),
        primary=_primary(run, records.kind),
        datasets=run_datasets(records.plan, records.lineage),
        collect=_files(run, records).collect,
    )


def read_records(run: RunFolder, state: LocalState, handle: str) -> RunRecords:
    """Return the records of a run.

    Args:
        run: its folder.
        state: its state.
        handle: its handle.
    """
    plan = run.read_json(PLAN)
    kind = run_kind(plan["spec"].get("kind", DEFAULT))
    variables = (plan["spec"].get("environment") or {}).get("variables") or {}
    result: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # the job has not written it
        result = run.read_json(f"{run.outputs.name}/{RESULT}")
    done = RunStatus(
        name=run.name,
        handle=handle,
        state=state.state,
        created=state.created,
        run_hash=plan["run_hash"],
        kind=kind.name,
        store=result.get("store") if kind.makes_store else None,
        counts=plan.get("counts", "steps"),
    )
    serve = {"serve": f"orchestrator model deploy {run.name} --endpoint NAME"} if run.model.is_dir() else {}
    lineage = None
    with suppress(UserError):  # Mirror.end reports a damaged one
        lineage = read_lineage(run.lineage)
    return RunRecords(
        name=run.name,
        handle=handle,
        user=owner(run.path),
        state=state.state,
        plan=plan,
        config=run.read_json(CONFIG),
        result=result,
        lineage=lineage,
        # with this variable the reason of a failure may quote rows
        reason=None if SHOW_VALUES in variables else state.reason,
        commands={**kind.next_commands(done), **serve},
    )


def _primary(run: RunFolder, kind: str) -> PrimaryMetric | None:
    """Return the metric that runs of a kind are compared by, if this run reported it."""
    reported = last_report(run.metrics).get("metrics", {})
    known = (PrimaryMetric("validation_score", True), PrimaryMetric("validation_loss", False))
    return next((one for one in known if one.name in reported and run_kind(kind).trains), None)


def _files(run: RunFolder, records: RunRecords) -> RunFiles:
    """Return the artifacts of a run."""

    def write_report(page: Path, pictures: Path | None) -> None:
        handle = Handle.parse(records.handle)
        backend = imported("orchestrator.backends:load_backend")(handle.backend, run.path.parent.parent)
        known = imported("orchestrator.run:Run")(backend, handle)
        known.report(page)
        if pictures is not None:
            known.pictures(pictures)

    tracking = records.plan["spec"].get("tracking") or {}
    trial = SWEEP_TAG in run.read_json(TAGS)
    amount = tracking.get("artifacts", "light")
    return RunFiles(amount, run.path, run.outputs, records.plan, write_report, pictures=not trial)
