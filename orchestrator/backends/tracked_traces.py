"""Records of purged runs in MLflow stores on this machine: finding them, and deleting them permanently."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from orchestrator.backends.capabilities import RUN_TAG
from orchestrator.runs.status import SWEEP_TAG
from orchestrator.runs.tracked_run import HANDLE_TAG, PARENT_TAG, SUBMITTED_TAG, default_uri
from orchestrator.runs.tracking_server import DEFAULTS
from orchestrator.support.errors import ServiceError
from train_jobs.artifacts.host import disable_telemetry
from train_jobs.artifacts.tracking.mlflow_store import READ_SECONDS, relocate_artifacts, sqlite_path
from train_jobs.config.fields import Config

DATA_TAG = "orchestrator.data"  # hash of the data that a run read
MARKS = (RUN_TAG, HANDLE_TAG, SWEEP_TAG, SUBMITTED_TAG, PARENT_TAG, DATA_TAG)  # tags that are read of each record
LOCKS = 200  # number of runs at a time: each lock is an open file, and each id part of an argument of MLflow
# MLflow's gc keeps the datasets of deleted runs, with names and hashes of files
UNUSED_DATASETS = (
    "DELETE FROM inputs WHERE destination_type = 'RUN' AND destination_id NOT IN (SELECT run_uuid FROM runs)",
    "DELETE FROM input_tags WHERE input_uuid NOT IN (SELECT input_uuid FROM inputs)",
    "DELETE FROM datasets WHERE dataset_uuid NOT IN (SELECT source_id FROM inputs WHERE source_type = 'DATASET')",
)


class TrackingMarks(Config):
    """Tags and ids by which the records of purged runs are found in MLflow.

    Never the name of an MLflow run: users rename runs, and a run of theirs may have the name of one of ours.
    """

    handles: frozenset[str]
    """Handles of runs."""
    names: frozenset[str]
    """Names of sweeps, and of runs without a folder."""
    submitted: frozenset[str]
    """Values of the tag that distinguishes each run and sweep from others of its name."""
    ids: frozenset[str]
    """Ids that the folders of the runs and sweeps recorded."""

    def match(self, tags: Mapping[str, str], *, own: bool) -> bool:
        """Return whether an MLflow run or a version of a model is one of them.

        Args:
            tags: its tags.
            own: whether its store is that of the home folder. Other homes may share any other store, and their runs of
                the same plan have the same names.
        """
        if own and tags.get(RUN_TAG) in self.names:
            return True
        named = tags.get(HANDLE_TAG) in self.handles or tags.get(SWEEP_TAG) in self.names
        return named and (own or tags.get(SUBMITTED_TAG) in self.submitted)

    def made(self, handle: str) -> bool:
        """Return whether a handle is that of one of the runs."""
        return handle in self.handles or handle.rpartition("/")[2] in self.names


class TrackedTraces(Config):
    """Records of purged runs in an MLflow store of this machine."""

    uri: str
    """Its tracking URI."""
    runs: list[str]
    """Ids of MLflow runs."""
    models: list[tuple[str, str]]
    """Names and versions of registered models."""
    texts: list[str]
    """Hashes of the data that the runs read."""


def tracked_traces(uri: str, marks: TrackingMarks, home: Path) -> TrackedTraces | None:
    """Return the records of runs in an SQLite store; None: it has none, or is elsewhere."""
    path, own = sqlite_path(uri), uri == default_uri(home)
    if path is None or not path.is_file():
        return None
    tags, version_tags = defaultdict[str, dict[str, str]](dict), defaultdict[tuple[str, int], dict[str, str]](dict)
    # read without MLflow, whose import takes seconds
    with closing(open_store(path)) as database:
        every = [run for (run,) in database.execute("SELECT run_uuid FROM runs")]
        read = f"key, value FROM {{}} WHERE key IN ({', '.join('?' * len(MARKS))})"
        for run, key, value in database.execute(f"SELECT run_uuid, {read.format('tags')}", MARKS):
            tags[run][key] = value
        live = "SELECT name, version, run_id FROM model_versions WHERE current_stage IS NOT 'Deleted_Internal'"
        versions = [*database.execute(live)]
        read_versions = f"SELECT name, version, {read.format('model_version_tags')}"
        for name, version, key, value in database.execute(read_versions, MARKS):
            version_tags[name, version][key] = value
    found = {run for run in every if run in marks.ids or marks.match(tags[run], own=own)}
    # trials that were deleted from the disk: their sweep does not know when they were submitted
    nested = {run for run in every if tags[run].get(PARENT_TAG) in found and tags[run].get(SWEEP_TAG) in marks.names}
    found |= nested
    models = [
        (name, str(version))
        for name, version, run in versions
        if run in found or marks.match(version_tags[name, version], own=own)
    ]
    runs = [run for run in every if run in found]
    texts = sorted({tags[run][DATA_TAG] for run in runs if DATA_TAG in tags[run]})
    return TrackedTraces(uri=uri, runs=runs, models=models, texts=texts) if runs or models else None


def open_store(path: Path) -> sqlite3.Connection:
    """Open a store to read it."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=READ_SECONDS)


def delete_traces(traces: TrackedTraces) -> None:
    """Delete records permanently, see `compact_store` too: MLflow alone marks a deleted run.

    Raises:
        ServiceError: MLflow refused, or another process uses the store.
    """
    disable_telemetry()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=traces.uri, registry_uri=traces.uri)
    path = sqlite_path(traces.uri)
    assert path is not None, "only SQLite stores are listed"
    relocate_artifacts(path)  # in a copied home, MLflow would delete the files of the original
    try:
        for name, version in traces.models:
            _delete_version(client, name, version)
        for run in traces.runs:
            with suppress(MlflowException):  # deleted before, but not permanently
                client.delete_run(run)
        logged, places = _logged_models(path, traces.runs), _artifact_folders(path, traces.runs)
        for model in logged:
            with suppress(MlflowException):  # deleted before, but not permanently
                client.delete_logged_model(model)
        if traces.runs:
            models = ["--logged-model-ids", ",".join(logged)] if logged else []
            command = ["-m", "mlflow", "gc", "--backend-store-uri", traces.uri]
            command += ["--run-ids", ",".join(traces.runs), *models]
            variables = {**DEFAULTS, **os.environ, "MLFLOW_TRACKING_URI": traces.uri}
            done = subprocess.run(
                [sys.executable, *command], capture_output=True, text=True, env=variables, check=False
            )
            if done.returncode:
                raise _refused(path, (done.stderr.strip().splitlines() or ["mlflow gc failed"])[-1])
            for place in places:  # MLflow deletes the files, and keeps the folders above that are named after the run
                with suppress(OSError):  # not empty, or gone
                    place.parent.rmdir()
    except (MlflowException, sqlite3.Error) as problem:
        raise _refused(path, problem) from None


def compact_store(uri: str) -> None:
    """Delete the datasets that no run uses from an SQLite store, and the bytes of deleted rows.

    Raises:
        ServiceError: another process uses the store.
    """
    path = sqlite_path(uri)
    if path is None or not path.is_file() or not os.access(path, os.W_OK):  # one that this user only reads
        return
    try:
        with closing(sqlite3.connect(path, timeout=READ_SECONDS)) as database:
            for statement in UNUSED_DATASETS:
                database.execute(statement)
            database.commit()
            database.execute("VACUUM")
    except sqlite3.Error as problem:
        raise _refused(path, problem) from None


def _delete_version(client: Any, name: str, version: str) -> None:
    """Delete a version of a registered model with its tags, and the model if this was its last version."""
    for key in client.get_model_version(name, version).tags:
        client.delete_model_version_tag(name, version, key)
    client.delete_model_version(name, version)
    if not client.search_model_versions(f"name = '{name}'"):
        client.delete_registered_model(name)


def _logged_models(path: Path, runs: Sequence[str]) -> list[str]:
    """Return the ids of the logged models of runs, including those that no version refers to."""
    query = f"SELECT model_id FROM logged_models WHERE source_run_id IN ({', '.join('?' * len(runs))})"
    with closing(sqlite3.connect(path, timeout=READ_SECONDS)) as database:
        return [model for (model,) in database.execute(query, runs)]


def _artifact_folders(path: Path, runs: Sequence[str]) -> list[Path]:
    """Return the folders on this machine with the artifacts of runs and of their logged models."""
    marks = ", ".join("?" * len(runs))
    query = (
        f"SELECT artifact_uri FROM runs WHERE run_uuid IN ({marks})"
        f" UNION SELECT artifact_location FROM logged_models WHERE source_run_id IN ({marks})"
    )
    with closing(sqlite3.connect(path, timeout=READ_SECONDS)) as database:
        addresses = [urlsplit(uri) for (uri,) in database.execute(query, [*runs, *runs])]
    return [Path(unquote(address.path)) for address in addresses if address.scheme in ("", "file")]


def _refused(path: Path, why: object) -> ServiceError:
    facts = {"where": path, "reason": str(why).splitlines()[0]}
    return ServiceError("cannot delete records of MLflow", facts=facts, fix="run the same command again")


def in_parts(traces: TrackedTraces) -> Iterator[TrackedTraces]:
    """Yield records in parts whose ids fit into one argument of a command; the models first."""
    for first in range(0, max(len(traces.runs), 1), LOCKS):
        runs, models = traces.runs[first : first + LOCKS], traces.models if first == 0 else []
        yield traces.model_copy(update={"runs": runs, "models": models})
