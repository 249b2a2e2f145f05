"""Models of runs in MLflow's registry: a logged model of the run with its metrics, and a version that refers to it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from orchestrator.backends.base import TAGS
from orchestrator.backends.capabilities import MODEL_TAG, RUN_TAG, model_name, model_tags, require_model
from orchestrator.backends.folder.mlflow_sync import is_behind, sync_run
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.mlflow_model import model_files, read_export
from orchestrator.runs.status import SWEEP_TAG, RunStatus
from orchestrator.runs.tracked_run import has_run, run_lock, sync_command
from orchestrator.runs.tracking_server import DEFAULTS, reason_of
from orchestrator.support.errors import NotFoundError, ServiceError
from train_jobs.artifacts.commit import committed
from train_jobs.artifacts.drafts import scratch_folder
from train_jobs.artifacts.files import file_sha256, link_or_copy, read_object
from train_jobs.artifacts.host import disable_telemetry
from train_jobs.artifacts.lineage import read_lineage
from train_jobs.artifacts.start_model import initial_weights
from train_jobs.artifacts.tracking.logged_models import CHECKPOINT_TAG, link_start, runs_that_started_from
from train_jobs.artifacts.tracking.mlflow_store import relocate_artifacts, sqlite_path

WEIGHTS_TAG = "orchestrator.weights"  # of a version: SHA-256 of model.safetensors
CONTEXT_TAG = "mlflow.data.context"  # of a dataset of a run: train, validation or test
WEIGHTS, CHECKPOINTS = "model.safetensors", "checkpoints"
SYSTEM = "system/"  # prefix of metrics of machines


def register(
    run: RunFolder,
    status: RunStatus,
    plan: Mapping[str, Any],
    model: str | None,
    alias: str | None,
    *,
    checkpoints: bool = False,
) -> dict[str, Any]:
    """Register the model of a run as a version of a model in MLflow, unless the run has one already.

    Args:
        run: folder of the run.
        status: its status.
        plan: its plan, as `Plan.as_dict` returned it.
        model: name of the registered model; None: the run's name without its hash.
        alias: alias of the version, which another version loses. None: no alias.
        checkpoints: whether each kept checkpoint becomes a logged model too.

    Returns:
        {name, version, uri, tags} of the version; with `alias`, `checkpoints` (step and uri of each), and `replaces`, a
        version that MLflow cannot load, where they apply.

    Raises:
        ConflictError: the run has not completed.
        NotFoundError: the run has no model of its own.
        ServiceError: MLflow refused, or an upload failed.
    """
    require_model(status)
    if not run.model.is_dir():
        raise NotFoundError(
            f"run {status.name} has no model of its own",
            facts={"has": ", ".join(sorted(path.parent.name for path in run.outputs.glob("*/model"))) or "none"},
            fix=f"orchestrator download {status.name}",
        )
    disable_telemetry()
    # of a run on a server, MLflow prints addresses to stdout, which has the result alone
    for name, value in {**DEFAULTS, "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}.items():
        os.environ.setdefault(name, value)
    import requests
    from mlflow.exceptions import MlflowException

    name = model_name(status, model)
    try:
        if (store := sqlite_path(status.tracking_uri or "")) is not None:
            relocate_artifacts(store)  # of a moved or copied home
        if is_behind(run) or not _is_stored(run, status):  # the logged model refers to the run, and has its metrics
            sync_run(run)
        with run_lock(run.path):  # two commands at the same time would make two versions
            document = _register(run, status, plan, name, alias)
            logged = _log_checkpoints(run, status, plan) if checkpoints else None
            return document if logged is None else {**document, "checkpoints": logged}
    except MlflowException as problem:
        raise ServiceError(
            f"cannot register the model of run {status.name}: MLflow refused it",
            facts={"where": status.tracking_uri, "reason": problem},
            fix="--name with letters, digits and hyphens"
            if problem.error_code == "INVALID_PARAMETER_VALUE"
            else f"{sync_command(run.name)}; then register it again",
        ) from problem
    except requests.RequestException as problem:  # of an upload, which MLflow's client does not turn into its own
        raise ServiceError(
            f"cannot register the model of run {status.name}: an upload failed",
            facts={"where": status.tracking_uri, "reason": reason_of(problem)},
            fix="check the limits of the server and its proxies; then run the same command again",
        ) from problem


def _is_stored(run: RunFolder, status: RunStatus) -> bool:
    """Return whether the run's store has its MLflow run."""
    path = sqlite_path(status.tracking_uri or "")
    if run.mlflow_run_id is None or (path is not None and not path.exists()):
        return False  # MLflow would create a missing store in place, which a kill leaves broken
    return has_run(_client(status), run.mlflow_run_id)


@contextmanager
def _registered_model(client: Any, name: str) -> Iterator[None]:
    """Create a registered model unless it exists; delete a new one again if the block fails and it has no version."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
        new = True
    except MlflowException as problem:
        if problem.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        new = False
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the first error is the one to report
            if new and not client.search_model_versions(f"name = '{name}'"):
                client.delete_registered_model(name)
        raise


def _register(
    run: RunFolder, status: RunStatus, plan: Mapping[str, Any], name: str, alias: str | None
) -> dict[str, Any]:
    client, tags = _client(status), _tags(run, status, plan)
    with _registered_model(client, name):
        versions = client.search_model_versions(f"name = '{name}'")
        # MLflow numbers versions itself and would make another one for the same run: the tag makes a repeat harmless
        known = [one for one in versions if one.tags.get(RUN_TAG) == status.name]
        version = next((one for one in known if MODEL_TAG in one.tags), None)
        if version is None:
            made = _logged_models(client, run).get(None)
            if made is None:
                made = _log_model(client, run, plan, tags, Weights(run.name, run.model / WEIGHTS))
            # by its place: MLflow looks up the source models:/ID in the store of the environment, not in this client's
            version = client.create_model_version(
                name,
                made.artifact_location,
                run.mlflow_run_id,
                tags={**made.tags, MODEL_TAG: made.model_id},
                model_id=made.model_id,
            )
    for started in runs_that_started_from(client, str(run.mlflow_run_id)):
        link_start(client, started, str(run.mlflow_run_id))
    if alias is not None:
        client.set_registered_model_alias(name, alias, version.version)
    # versions of before 0.2 refer to a folder without MLmodel
    older = ", ".join(str(one.version) for one in known if MODEL_TAG not in one.tags)
    return {
        "name": version.name,
        "version": str(version.version),
        "uri": f"models:/{version.name}/{version.version}",
        "tags": dict(version.tags),
        **({"alias": alias} if alias is not None else {}),
        **({"replaces": older} if older else {}),
    }


def _client(status: RunStatus) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=status.tracking_uri, registry_uri=status.tracking_uri)


def _tags(run: RunFolder, status: RunStatus, plan: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a run's models."""
    lineage = read_lineage(run.lineage)
    found = model_tags(status, plan, lineage.head.hash if lineage else None)
    sweep = (read_object(run.path / TAGS) or {}).get(SWEEP_TAG)
    return {**found, SWEEP_TAG: str(sweep)} if sweep else found


def _logged_models(client: Any, run: RunFolder) -> dict[str | None, Any]:
    """Return the logged models of a run: step of a checkpoint, or None for the final weights -> model.

    Those that a killed command did not finish are deleted: the caller holds `run_lock`, so no other is at work.
    """
    experiment = client.get_run(run.mlflow_run_id).info.experiment_id
    known = {}
    for one in client.search_logged_models([experiment], f"source_run_id = '{run.mlflow_run_id}'"):
        if WEIGHTS_TAG not in one.tags:
            continue  # of the user's own code
        if str(one.status) == "READY":
            known[one.tags.get(CHECKPOINT_TAG)] = one
        elif str(one.status) == "PENDING":
            client.delete_logged_model(one.model_id)
    return known


def _log_checkpoints(run: RunFolder, status: RunStatus, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Log the model of each kept checkpoint of a run that has none yet; return step and uri of all, in their order."""
    client, tags = _client(status), _tags(run, status, plan)
    known, found = _logged_models(client, run), list[dict[str, Any]]()
    for folder in sorted((run.outputs / CHECKPOINTS).glob("step-*")):
        if (commit := committed(folder)) is None or WEIGHTS not in commit.files:
            continue
        step = str(commit.step)
        if step not in known:
            weights = Weights(f"{run.name}-{folder.name}", folder / WEIGHTS, commit.step)
            known[step] = _log_model(client, run, plan, {**tags, "orchestrator.step": step}, weights)
        found.append({"step": commit.step, "uri": f"models:/{known[step].model_id}"})
    return found


@dataclass(frozen=True)
class Weights:
    """The weights of a logged model; its other files are those of the run's export."""

    name: str
    """Name of the logged model."""
    path: Path
    """File in the format of safetensors."""
    step: int | None = None
    """Step of a checkpoint. None: the final weights."""


def _log_model(client: Any, run: RunFolder, plan: Mapping[str, Any], tags: Mapping[str, str], weights: Weights) -> Any:
    """Create and return a logged model of a run, with its files, parameters and last metrics."""
    run_id = run.mlflow_run_id
    assert run_id is not None, "it was synced"
    tracked = client.get_run(run_id)
    final = weights.step is None
    sha256 = (initial_weights(run.model) or "") if final else file_sha256(weights.path)
    step = {} if final else {CHECKPOINT_TAG: str(weights.step)}
    made = client.create_logged_model(
        tracked.info.experiment_id,
        name=weights.name,
        source_run_id=run_id,
        tags={**tags, WEIGHTS_TAG: sha256, **step},
        params=tracked.data.params,
        model_type="transformers",
    )
    metadata = {"run": run.name, "weights_sha256": sha256, "lineage": tags.get("orchestrator.lineage", "")}
    added = model_files(read_export(run.model), plan["environment"], metadata, run_id=run_id, model_id=made.model_id)
    try:
        _store(client, run, made, added, weights.path)
        _link_metrics(client, tracked, made.model_id, weights.step)
        client.finalize_logged_model(made.model_id, "READY")
    except BaseException:
        with suppress(Exception):  # the first error is the one to report
            client.finalize_logged_model(made.model_id, "FAILED")
        raise
    return made


def _store(client: Any, run: RunFolder, made: Any, added: Mapping[str, bytes], weights: Path) -> None:
    """Put the files of a logged model where its store has them: links in a local folder, else an upload.

    Raises:
        OSError: the disk is full.
    """
    place = urlsplit(made.artifact_location)
    if place.scheme in ("", "file"):
        folder = Path(unquote(place.path))
        folder.parent.mkdir(parents=True, exist_ok=True)
        _assemble(run.model, added, folder, weights)
        return
    with scratch_folder("mlflow-model", run.path) as scratch:
        _assemble(run.model, added, scratch / "model", weights)
        client.log_model_artifacts(made.model_id, str(scratch / "model"))


def _assemble(export: Path, added: Mapping[str, bytes], folder: Path, weights: Path) -> None:
    """Create a folder with links to the files of an export, or copies across file systems, and with further files.

    Args:
        export: folder of the export.
        added: further files: name -> content.
        folder: folder to create.
        weights: file of the weights, in place of the export's.
    """
    for path in sorted(export.rglob("*")):
        if path.is_file():
            target = folder / path.relative_to(export)
            source = weights if path.name == WEIGHTS else path
            target.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(source, target)
    for name, content in added.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _link_metrics(client: Any, tracked: Any, model_id: str, until: int | None) -> None:
    """Link the last value of each metric of a run to its model and, if the run has it, to the dataset that it is of.

    The values are logged again as they are, which adds none to the run.

    Args:
        client: MLflow's client.
        tracked: the run.
        model_id: id of the logged model.
        until: last step of the model. None: of the run.
    """
    from mlflow.entities import LoggedModelOutput, Metric

    inputs = tracked.inputs.dataset_inputs if tracked.inputs else []
    datasets = {tag.value: one.dataset for one in inputs for tag in one.tags if tag.key == CONTEXT_TAG}
    last = [one for one in tracked.data._metric_objs if not one.key.startswith(SYSTEM)]
    if until is not None:
        last = [one for key in last if (one := _value_at(client, tracked.info.run_id, key.key, until)) is not None]
    linked = []
    for one in last:
        of = datasets.get("validation" if one.key.startswith("validation") else "train")
        named = {"dataset_name": of.name, "dataset_digest": of.digest} if of else {}
        linked.append(
            Metric(one.key, one.value, one.timestamp, one.step, model_id=model_id, run_id=tracked.info.run_id, **named)
        )
    for start in range(0, len(linked), 1000):  # the most that one request may have
        client.log_batch(tracked.info.run_id, metrics=linked[start : start + 1000])
    step = max((one.step for one in last), default=0) if until is None else until
    client.log_outputs(tracked.info.run_id, [LoggedModelOutput(model_id, step)])


def _value_at(client: Any, run_id: str, key: str, step: int) -> Any:
    """Return the last value of a metric up to a step; None: it has none."""
    history = client.get_metric_history(run_id, key)
    return max((one for one in history if one.step <= step), key=lambda one: one.step, default=None)
