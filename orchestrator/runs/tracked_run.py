"""The MLflow run of a run or a sweep: one function that makes it equal to the records on the disk.

`sync` serves every moment: it opens the run while the job starts, copies what a killed job left behind, and rebuilds
the run in a new store. MLflow is a copy: no run waits for it, so runs and sweeps sync in a process that `start` makes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from orchestrator.runs.status import SWEEP_TAG, RunState
from orchestrator.runs.tracking_server import DEFAULTS, is_sign_in_refused, reason_of, set_defaults, sign_in_fix
from orchestrator.support.access import child_umask
from orchestrator.support.errors import ServiceError, UserError
from orchestrator.support.secret_sources import look_up
from train_jobs.artifacts.files import hold, is_held, read_object, write_text
from train_jobs.artifacts.metrics_file import metric_files
from train_jobs.artifacts.tracking.logged_models import START_ID_TAG, link_start
from train_jobs.artifacts.tracking.mlflow_copy import MIRRORED_FILE, Destination, Mirror, search_all
from train_jobs.artifacts.tracking.mlflow_names import AllowedNames, with_allowed_names
from train_jobs.artifacts.tracking.mlflow_store import ARTIFACTS, SQLITE, forget_replacement, prepare, sqlite_path
from train_jobs.artifacts.tracking.run_datasets import RunDataset, log_datasets
from train_jobs.artifacts.tracking.run_files import log_files
from train_jobs.config.errors import in_shell
from train_jobs.config.fields import Config

RUNNING = "RUNNING"
STATUS = {RunState.COMPLETED: "FINISHED", RunState.FAILED: "FAILED"}  # cancelled and preempted: KILLED
SUBMITTED_TAG = "orchestrator.submitted"
HANDLE_TAG = "orchestrator.handle"
DECISION_TAG = "orchestrator.decision"
TRIAL_STATE_TAG = "orchestrator.trial_state"
BEST_TAG = "orchestrator.best"
TRIAL_TAGS = (DECISION_TAG, TRIAL_STATE_TAG, BEST_TAG)
"""Tags that a sweep gives to its trials."""
PARENT_TAG, NAME_TAG = "mlflow.parentRunId", "mlflow.runName"
NOTE_TAG = "mlflow.note.content"
OWN_NOTE_TAG = "orchestrator.note"
"""Tag with the hash of our description: one that a user edited is kept."""
EXPERIMENT_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Tag by which MLflow's page shows an experiment's runs and charts, and not the views for agents and prompts."""
PRIMARY_TAG = "mlflow.experiment.primaryMetric"
START_TAG = "orchestrator.parent"
"""Tag with the handle of the run whose model a run started from."""
RECORDS = 1
"""Version of the copied records, in addition to metrics and status; a run that an earlier version copied is behind."""
NICENESS = 10
LOCK_SECONDS = 120.0  # longest wait for another process that syncs the same run
COPIES = "mlflow-copies.json"
RECORD = "tracking.json"  # id and store of the MLflow run
BEHIND = "mlflow-behind.txt"
LOCK = "mlflow.lock"
DRAFT = ".mlflow-"  # prefix of the folder of artifacts to log
SIGN_IN = ("MLFLOW_", "DATABRICKS_")  # prefixes of the variables from which MLflow's client takes its credentials


class PrimaryMetric(NamedTuple):
    """The metric that MLflow's page compares the runs of an experiment by."""

    name: str
    """Name of the metric."""
    greater_is_better: bool
    """Whether more is better."""


class TrackingRequest(Config):
    """The MLflow run of a run or of a sweep, as it should be."""

    uri: str
    """Tracking URI; an SQLite file by absolute path."""
    experiment: str
    """Experiment name; created if missing."""
    run_name: str
    """Name of the run or the sweep."""
    identity: dict[str, str]
    """Tags that no other MLflow run has: a run that has them is reused."""
    params: dict[str, str]
    """Parameters under their dotted names."""
    tags: dict[str, str]
    """Other tags."""
    folder: str
    """Folder of the run or the sweep, for its lock and for tracking.json."""
    metrics: str
    """Its metrics.jsonl."""
    status: str
    """RUNNING, FINISHED, FAILED or KILLED. While it is RUNNING, the job itself copies the metrics."""
    started: float
    """Start, seconds since the epoch."""
    ended: float | None = None
    """End, seconds since the epoch."""
    run_id: str | None = None
    """MLflow run of a version that set no identity."""
    description: str = ""
    """Markdown."""
    primary: PrimaryMetric | None = None
    """Metric of the experiment, unless that has one."""
    datasets: list[RunDataset] = Field(default=[])
    """Datasets that it read."""
    trials: dict[str, dict[str, str]] = Field(default={})
    """Of a finished sweep: name of a trial's run -> its tags of `TRIAL_TAGS`."""
    collect: Callable[[Path], None] | None = None
    """Puts the artifacts of an ended run below a folder; None: it has none."""
    secrets: dict[str, str] = Field(default={})
    """Secrets of the run or of the trials: name -> reference. Those of a tracking server are looked up at each sync."""
    elsewhere: bool = False
    """Whether `uri` is not the address of the run's own copy: the folder then keeps what it records of that one."""

    def to(self, uri: str | None) -> TrackingRequest:
        """Return the same MLflow run at another address; with None, or its own address, the request itself.

        Its secrets are left out: a token of the run's own server must not reach another one.
        """
        if uri is None or uri == self.uri:
            return self
        return self.model_copy(update={"uri": uri, "run_id": None, "secrets": {}, "elsewhere": True})


@dataclass(frozen=True)
class Synced:
    """Result of `sync`."""

    run_id: str
    """Id of the MLflow run."""
    status: str
    """Its status."""
    values: int
    """Number of values that MLflow lacked."""
    note: str | None
    """What happened to the store, if it was migrated or replaced."""


def default_uri(home: Path) -> str:
    """Return the URI of the store in the home folder."""
    return f"{SQLITE}{home / 'mlflow.db'}"


def submitted_tag(created: float) -> dict[str, str]:
    """Return the tag that distinguishes a run from a later one of the same name."""
    return {SUBMITTED_TAG: f"{created:.6f}"}


def other_addresses(folder: Path) -> list[str]:
    """Return the tracking URIs that `mlflow sync --to` copied a run or a sweep to, also if that failed."""
    return list((read_object(folder / COPIES) or {}).get("uris", []))


def start(command: Sequence[str], log: Path) -> None:
    """Start a process that syncs, in a session of its own; the caller does not wait for it.

    Args:
        command: arguments of the interpreter.
        log: file that collects its output.
    """
    with suppress(OSError), ExitStack() as stack:
        try:
            output: Any = stack.enter_context(log.open("ab"))
        except OSError:  # a full disk, or a deleted folder
            output = subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, "-P", *command],  # without modules of the working folder, as `start_supervisor`
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**DEFAULTS, **os.environ},
            umask=child_umask(log.parent),
        )
        process.returncode = 0  # it outlives this process: without a code, Popen warns of a child that still runs


def sync(request: TrackingRequest) -> Synced:
    """Make the MLflow run of a request equal to it: the store, the run, its parameters, tags, metrics and status.

    A file in the folder contains the reason why the copy is behind, from the first failure until a call succeeds. It is
    empty if the copy is still to be made. The caller holds `run_lock`.

    Raises:
        ServiceError: MLflow or its store refused.
    """
    set_defaults()
    for name in (RECORD, BEHIND, COPIES):
        for torn in Path(request.folder).glob(f".{name}.*.tmp"):  # of a sync that was killed
            with suppress(OSError):  # a read-only disk
                torn.unlink()
    behind, path = Path(request.folder, BEHIND), sqlite_path(request.uri)
    known = other_addresses(Path(request.folder))
    if request.elsewhere and request.uri not in known:  # before the copy: a purge must also find half of one
        write_text(Path(request.folder, COPIES), json.dumps({"uris": [*known, request.uri]}))
    try:
        note = prepare(path) if path is not None else None
        with _signed_in({} if path is not None else request.secrets):
            try:
                found = _sync(request, note)
            except Exception:
                # a store that is damaged inside is found out only now: set it aside and try again, once
                if path is None or (note := prepare(path, deep=True)) is None:
                    raise
                found = _sync(request, note)
    except Exception as problem:  # SQLAlchemy, MLflow, the network and the disk each have their own
        error = _refusal(request, problem)
        with suppress(OSError):
            if not request.elsewhere:
                write_text(behind, f"the copy in MLflow is behind: {error.facts['reason']}; repair: {error.fix}")
        raise error from problem
    with suppress(OSError):
        if request.elsewhere:
            return found
        if note:
            write_text(behind, f"{note}; for earlier runs: orchestrator mlflow sync --all")
            if path is not None:
                forget_replacement(path)
        elif request.status != RUNNING:
            behind.unlink(missing_ok=True)
        elif behind.exists():  # empty: the copy of its end is still to be made
            write_text(behind, "")
    return found


@contextmanager
def _signed_in(secrets: Mapping[str, str]) -> Iterator[None]:
    """Set the variables with which MLflow's client signs in to a server, for as long as the context is open.

    Args:
        secrets: name -> reference; those of other programs are not looked up.

    Raises:
        UsageError: one is not to be had.
    """
    values = look_up({name: text for name, text in secrets.items() if name.startswith(SIGN_IN)}, os.environ)
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def exit_code_of(sync_one: Callable[[], Synced]) -> int:
    """Run a sync as the whole of a process: print the note or the error, and return the exit code."""
    with suppress(OSError):
        os.nice(NICENESS)  # the next run may be training already
    try:
        if note := sync_one().note:
            print(note)
    except UserError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    return 0


def is_copied(metrics: Path, run_id: str | None, state: RunState, known: frozenset[str] | None = None) -> bool:
    """Return whether MLflow has all that an ended run or sweep recorded.

    Args:
        metrics: its metrics.jsonl, which may be missing.
        run_id: id of its MLflow run; None: not opened yet.
        state: its state.
        known: ids of the runs in its store; None: not checked.
    """
    size = sum(file.stat().st_size for file in metric_files(metrics))
    expected = {"run_id": run_id, "status": STATUS.get(state, "KILLED"), "bytes": size, "records": RECORDS}
    made = read_object(metrics.with_name(MIRRORED_FILE))
    return made == expected and (known is None or run_id in known)


def sync_command(name: str) -> str:
    """Return the command that copies a run again."""
    return f"orchestrator mlflow sync {name}"


def _refusal(request: TrackingRequest, problem: Exception) -> ServiceError:
    """Return the error of a failed sync, with the store's own fix if it has one."""
    reason, fix = reason_of(problem), sync_command(request.run_name)
    if request.elsewhere:
        fix = f"{fix} --to {in_shell(request.uri)}"
    if is_sign_in_refused(problem):
        fix = f"{sign_in_fix(request.uri)}; then {fix}"
    if isinstance(problem, UserError):
        reason, fix = problem.message, f"{problem.fix}; then {fix}" if problem.fix else fix
    return ServiceError(
        f"cannot copy {request.run_name} to MLflow; its metrics.jsonl has all values",
        facts={"where": request.uri, "reason": reason},
        fix=fix,
    )


def run_lock(folder: Path, verb: str = "sync") -> Any:
    """Hold the lock under which one process at a time reads the state of a run and syncs it, or purges the run.

    Args:
        folder: of a run or a sweep.
        verb: what the caller is about to do, for the error.

    Raises:
        ServiceError: another process holds it for too long.
    """
    fix = sync_command(folder.name) if verb == "sync" else "run the same command again"
    busy = ServiceError(f"cannot {verb} {folder.name}: another process copies it to MLflow", fix=fix)
    return hold(folder / LOCK, seconds=LOCK_SECONDS, busy=busy)


def is_syncing(folder: Path) -> bool:
    """Return whether a process copies a run or a sweep to MLflow now."""
    return is_held(folder / LOCK)


def _sync(request: TrackingRequest, note: str | None) -> Synced:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=request.uri)
    request = request.model_copy(update={"tags": with_allowed_names(request.tags)})
    experiment = _experiment_id(client, request)
    run_id = _existing(client, experiment, request)
    if run_id is None:
        made = _create(client, experiment, request)
        run_id = _existing(client, experiment, request) or made
    own = not request.elsewhere
    mirror = Mirror(Path(request.metrics), Destination(request.uri, run_id), request.params, noted=own)
    links = {**_parent(client, experiment, request, run_id), **_start_link(client, request)}
    _set_tags(client, run_id, {**request.tags, **request.identity, **links})
    _describe(client, run_id, request.description)
    values = 0
    if request.status == RUNNING:
        client.update_run(run_id, status=RUNNING)
        values = mirror.catch_up() if request.elsewhere else 0  # the job's own mirror copies to the run's own address
        _adopt(client, experiment, request, run_id)
    else:
        values = mirror.catch_up()
        _adopt(client, experiment, request, run_id)
        # before the artifacts, whose store may be away while the server is not
        mirror.end(request.status, request.started if request.ended is None else request.ended)
        _mark_primary(client, experiment, request.primary)
        log_datasets(client, run_id, request.datasets)
        if START_ID_TAG in links:
            link_start(client, run_id, links[START_ID_TAG])
        if request.collect is not None:
            for left in Path(request.folder).glob(f"{DRAFT}*"):  # of a sync that was killed
                shutil.rmtree(left, ignore_errors=True)
            # MLflow copies the mode of each file, and files below the home folder have the right one
            draft = Path(request.folder, f"{DRAFT}{os.getpid()}")
            draft.mkdir()  # not by tempfile, which would lock out the other members of a shared home
            try:
                if own:  # the report would show the reason, for as long as it is in MLflow
                    write_text(Path(request.folder, BEHIND), "")
                request.collect(draft)
                log_files(client, run_id, draft)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        mirror.note_copied(request.status, records=RECORDS)
    # last: the job's own mirror starts when it finds this file
    if own:
        found = {"tracking_uri": request.uri, "run_id": run_id}
        write_text(Path(request.folder, RECORD), json.dumps(found))
    return Synced(run_id, request.status, values, note)


def _existing(client: Any, experiment: str, request: TrackingRequest) -> str | None:
    """Return the id of the request's MLflow run, whichever process created it; None: it has not been created.

    A server may have created it twice, because MLflow's client repeats a request whose answer was lost: the later one
    is deleted.
    """
    if found := _search(client, experiment, request.identity):
        for repeated in found[1:]:
            client.delete_run(repeated.info.run_id)
        return str(found[0].info.run_id)
    return request.run_id if request.run_id is not None and has_run(client, request.run_id) else None


def has_run(client: Any, run_id: str) -> bool:
    """Return whether a store has a run that is not deleted, such as in MLflow's page."""
    from mlflow.exceptions import MlflowException

    try:
        return str(client.get_run(run_id).info.lifecycle_stage) == "active"
    except MlflowException as problem:
        if problem.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return False


def _create(client: Any, experiment: str, request: TrackingRequest) -> str:
    # with its identity in the same request: a kill after it must not leave a run that the next call does not find
    made = client.create_run(
        experiment,
        start_time=int(request.started * 1000),
        tags={**request.tags, **request.identity},
        run_name=request.run_name,
    )
    return str(made.info.run_id)


def _search(client: Any, experiment: str, tags: Mapping[str, str]) -> list[Any]:
    """Return the active runs of an experiment with these tags, the oldest first."""
    wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    return list(search_all(client.search_runs, [experiment], wanted, order_by=["attributes.start_time ASC"]))


def _set_tags(client: Any, run_id: str, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    existing = client.get_run(run_id).data.tags
    if changed := [RunTag(name, value) for name, value in tags.items() if existing.get(name) != value]:
        client.log_batch(run_id, tags=changed)


def _parent(client: Any, experiment: str, request: TrackingRequest, run_id: str) -> dict[str, str]:
    """Return the tag that nests a trial below the run of its sweep, once that exists."""
    sweep = request.tags.get(SWEEP_TAG)
    if sweep is None or sweep == request.run_name:
        return {}
    found = _search(client, experiment, {SWEEP_TAG: sweep, NAME_TAG: sweep})
    return {PARENT_TAG: found[-1].info.run_id} if found else {}


def _start_link(client: Any, request: TrackingRequest) -> dict[str, str]:
    """Return the tag with the id of the MLflow run that a run started from, if it is in the same store."""
    handle = request.tags.get(START_TAG, "")
    if "://" not in handle:
        return {}
    experiments = [one.experiment_id for one in search_all(client.search_experiments)]
    found = client.search_runs(experiments, f"tags.`{HANDLE_TAG}` = '{handle}'", max_results=1)
    return {START_ID_TAG: found[0].info.run_id} if found else {}


def _describe(client: Any, run_id: str, description: str) -> None:
    """Set the description of a run, unless a user has edited it."""
    tags = client.get_run(run_id).data.tags
    current = tags.get(NOTE_TAG)
    if description and (current is None or _digest(current) == tags.get(OWN_NOTE_TAG)):
        _set_tags(client, run_id, {NOTE_TAG: description, OWN_NOTE_TAG: _digest(description)})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _mark_primary(client: Any, experiment: str, primary: PrimaryMetric | None) -> None:
    """Set the metric that an experiment is compared by, unless it has one."""
    if primary is not None and f"{PRIMARY_TAG}.name" not in client.get_experiment(experiment).tags:
        client.set_experiment_tag(experiment, f"{PRIMARY_TAG}.greaterIsBetter", str(primary.greater_is_better))
        client.set_experiment_tag(experiment, f"{PRIMARY_TAG}.name", AllowedNames().of(primary.name))


def _adopt(client: Any, experiment: str, request: TrackingRequest, run_id: str) -> None:
    """Nest the trials of a sweep below its run, and tag each with its end, and the best one."""
    if request.tags.get(SWEEP_TAG) != request.run_name:
        return
    for trial in _search(client, experiment, {SWEEP_TAG: request.run_name}):
        if trial.info.run_id != run_id:
            wanted = request.trials.get(trial.info.run_name, {})
            _set_tags(client, trial.info.run_id, {PARENT_TAG: run_id, **wanted})
            for tag in trial.data.tags.keys() & set(TRIAL_TAGS) - wanted.keys():
                client.delete_tag(trial.info.run_id, tag)


def _experiment_id(client: Any, request: TrackingRequest) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(request.experiment)
    if found is None:
        # MLflow would put artifacts below the working folder, which differs from process to process
        database = sqlite_path(request.uri)
        place = None if database is None else (database.parent / ARTIFACTS).as_uri()
        try:
            return str(client.create_experiment(request.experiment, artifact_location=place, tags=EXPERIMENT_KIND))
        except MlflowException:  # another process has just created it
            found = client.get_experiment_by_name(request.experiment)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":  # MLflow keeps the name of a deleted one, and refuses runs in it
        restore = f"mlflow experiments restore -x {found.experiment_id}"
        raise ServiceError(
            f"experiment {request.experiment} is deleted", fix=f"MLFLOW_TRACKING_URI={in_shell(request.uri)} {restore}"
        )
    return str(found.experiment_id)
