"""Runs in an MLflow store or server, from any tool, in one form with our own runs: for a list and a comparison.

    for run in read_runs("http://mlflow:5000"):
        print(run.name, run.score, run.data)

Other tools name their parameters and metrics differently. Where a name means the same as one of ours, it is given ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from pydantic import ConfigDict, Field

from orchestrator.runs.differences import Difference, Pairs
from orchestrator.runs.significance import ScoreTests
from orchestrator.runs.status import RunState, RunStatus, first_items
from orchestrator.runs.tracked_run import HANDLE_TAG, PRIMARY_TAG
from orchestrator.runs.tracking_server import (
    DATABRICKS,
    is_sign_in_refused,
    reason_of,
    refuse_credentials,
    set_defaults,
    sign_in_fix,
)
from orchestrator.support.errors import AuthError, NotFoundError, ServiceError, StorageError
from orchestrator.support.formatting import json_value
from orchestrator.support.redact import HIDDEN, is_secret, redact
from train_jobs.artifacts.tracking.mlflow_copy import flatten, search_all
from train_jobs.artifacts.tracking.mlflow_store import SQLITE, Condition, examine, sqlite_path
from train_jobs.artifacts.tracking.run_datasets import DIGEST_TAG, RunDataset
from train_jobs.config.errors import did_you_mean, in_shell
from train_jobs.config.fields import Config

STATES = {
    "SCHEDULED": RunState.QUEUED,
    "RUNNING": RunState.RUNNING,
    "FINISHED": RunState.COMPLETED,
    "FAILED": RunState.FAILED,
    "KILLED": RunState.CANCELLED,
}
VALIDATION = "validation_"
SPLIT_PREFIXES = ("eval_", "valid_", "val_", "dev_")
"""Other tools' prefixes of metrics on held-out data."""
SCORES = ("score", "f1", "matthews_correlation", "pearson", "spearman", "accuracy", "acc", "exact_match", "loss")
"""Metrics that a list shows, the first one that a run has, unless its experiment names a primary metric."""
# transformers.TrainingArguments and its scripts. A name with the ending of one of ours alone needs no entry.
OUR_NAMES = {
    "_name_or_path": ("model",),
    "model_name_or_path": ("model",),
    "per_device_train_batch_size": ("train.micro_batch_size",),
    "train_batch_size": ("train.global_batch_size",),
    "max_steps": ("train.steps",),
    "num_train_epochs": ("train.epochs",),
    "adam_epsilon": ("optimizer.eps",),
    "max_seq_length": ("data.max_length", "data.sequence_length"),
}
SHOWN_DIGEST = 8
UNQUOTABLE = re.compile(r"['\\]")


class Dataset(NamedTuple):
    """Data that a run read."""

    name: str
    """Its name."""
    digest: str
    """Its digest as the tool that logged the run computed it; ours is a SHA-256 in hex."""


class MlflowRun(Config):
    """A run as MLflow knows it, or one of ours in the same form."""

    model_config = ConfigDict(allow_inf_nan=True)  # a metric of a diverged run

    id: str
    """Id of the MLflow run, or the handle of one of ours."""
    name: str
    """Its name."""
    state: RunState
    """Its state; a run that was killed is `cancelled`."""
    created: float
    """Start, seconds since the epoch."""
    ended: float | None = None
    """End, seconds since the epoch."""
    experiment: str | None = None
    """Experiment of MLflow; None: one of ours, on this machine."""
    user: str | None = None
    """Who made it."""
    handle: str | None = None
    """Handle of the run of ours that it is a copy of."""
    commit: str | None = None
    """Commit of its code."""
    params: dict[str, Any] = Field(default={})
    """Parameters, of ours by dotted name; values that look like secrets are hidden."""
    metrics: dict[str, float] = Field(default={})
    """Last value of each metric, under our name for it."""
    primary: str | None = None
    """Metric by which its experiment is compared."""
    data: list[Dataset] = Field(default=[])
    """Datasets that it read."""

    @property
    def score(self) -> tuple[str, float] | None:
        """Name and value of the metric that it is judged by; None: it has none of the known ones."""
        prefixes = (VALIDATION, "test_", "")
        names = [*([self.primary] if self.primary else []), *(f"{start}{end}" for end in SCORES for start in prefixes)]
        return next(((name, self.metrics[name]) for name in names if name in self.metrics), None)

    @property
    def data_text(self) -> str:
        """Its datasets: `reviews.csv (1f3a77c2), ...`."""
        return ", ".join(f"{one.name} ({one.digest[:SHOWN_DIGEST]})" for one in self.data)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, with name and value of the score; NaN and infinity become None."""
        score = {"name": self.score[0], "value": self.score[1]} if self.score else None
        return dict(json_value({**self.model_dump(mode="json"), "score": score}))


def read_runs(uri: str, *, experiment: str | None = None, limit: int | None = None) -> list[MlflowRun]:
    """Return the active runs of an MLflow store or server, newest first.

    Args:
        uri: tracking URI, or the path of an SQLite file.
        experiment: only runs of this experiment; None: of all.
        limit: maximum number of runs.

    Raises:
        NotFoundError: there is no such experiment.
        AuthError: the server refuses the credentials.
        ServiceError: the server is away.
        StorageError: the file is missing, or not a store that this version of MLflow can read.
    """
    with _client(uri) as client:
        return first_items(_runs(client, _experiments(client, experiment), ""), limit)


def find_run(uri: str, run: str) -> MlflowRun:
    """Return one run of an MLflow store or server.

    Args:
        uri: as in `read_runs`.
        run: its id, or its name, which must be unique.

    Raises:
        NotFoundError: no run, or more than one, matches.
        AuthError: the server refuses the credentials.
        ServiceError: the server is away.
        StorageError: as in `read_runs`.
    """
    with _client(uri) as client:
        experiments = _experiments(client, None)
        column = "run_id" if len(run) == 32 and set(run) <= set("0123456789abcdef") else "run_name"
        # MLflow's filters have no escape for an apostrophe, but the wildcard _ matches one
        pattern = UNQUOTABLE.sub("_", run)
        matches = _runs(client, experiments, f"attributes.{column} {'=' if pattern == run else 'LIKE'} '{pattern}'")
        found = list(islice((one for one in matches if run in (one.id, one.name)), 2))
    if len(found) == 1:
        return found[0]
    problem = f"more than one run is named {run}" if found else f"unknown run {run!r}"
    raise NotFoundError(
        f"{problem} in {uri}", fix=f"use its id from: orchestrator list --mlflow {in_shell(uri)} -o json"
    )


def as_mlflow_run(status: RunStatus, plan: Mapping[str, Any], datasets: Sequence[RunDataset]) -> MlflowRun:
    """Return a run of ours in the same form.

    Args:
        status: its status.
        plan: its plan, as `Plan.as_dict` returned it.
        datasets: the datasets that its copy in MLflow has.
    """
    git = (plan.get("snapshot") or {}).get("git") or {}
    metrics = dict(status.metrics)
    if status.results is not None and len(status.results.scores) == 1:
        metrics |= {name: figure.mean for name, figure in status.results.scores[0].metrics.items()}
    return MlflowRun(
        id=status.handle,
        name=status.name,
        state=status.state,
        created=status.created,
        ended=status.ended,
        handle=status.handle,
        commit=git.get("commit"),
        params=_hidden(flatten(plan.get("spec", {}))),
        metrics=metrics,
        data=[Dataset(one.name, one.sha256) for one in datasets],
    )


def compare_runs(a: MlflowRun, b: MlflowRun) -> Difference:
    """Return the differences in what two runs both have: parameters under one name, data, commit and metrics."""
    ours, theirs = a.params, _named_like(a.params, b.params)
    shared = {key: {"a": value, "b": theirs[key]} for key, value in ours.items() if key in theirs}
    return Difference(
        a=a.name,
        b=b.name,
        spec={key: pair for key, pair in shared.items() if not _equal(pair["a"], pair["b"])},
        compute={},
        environment=_text_pairs("git commit", a.commit, b.commit),
        data=_text_pairs("datasets", a.data_text, b.data_text),
        code=None,
        results=_result_pairs(a, b),
        significance=ScoreTests(notes=[_shared_text(shared, ours, theirs)]),
    )


@contextmanager
def _client(uri: str) -> Iterator[Any]:
    """Yield MLflow's client; each exception it raises becomes one error."""
    set_defaults()
    uri = _checked(uri)
    from mlflow.tracking import MlflowClient

    try:
        yield MlflowClient(tracking_uri=uri)
    except NotFoundError:
        raise
    except Exception as problem:  # MLflow's, SQLAlchemy's, the network's and the disk's
        facts = {"server": uri, "reason": redact(reason_of(problem))}
        if is_sign_in_refused(problem):
            raise AuthError("cannot sign in to MLflow", facts=facts, fix=sign_in_fix(uri)) from problem
        raise ServiceError("cannot read the runs in MLflow", facts=facts, fix="check the address") from problem


def _checked(uri: str) -> str:
    """Return a tracking URI that MLflow takes, after a look at the file or the folder that it is."""
    refuse_credentials(uri)
    address = urlsplit(uri)
    folder = Path(unquote(address.path) if address.scheme == "file" else uri)
    if address.scheme == "file" or ("://" not in uri and folder.is_dir()):
        _check_file_store(folder)
        # MLflow wants to be asked for its former store, a folder of files
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        return folder.absolute().as_uri()
    if "://" not in uri and uri != DATABRICKS:
        uri = f"{SQLITE}{Path(uri).absolute()}"
    path = sqlite_path(uri)
    if path is not None and (found := examine(path)).condition != Condition.READY:
        fix = f"mlflow db upgrade {in_shell(uri)}" if found.condition == Condition.OLD else f"ls -l {in_shell(path)}"
        raise StorageError(f"cannot read the MLflow store: {found.reason}", fix=found.fix or fix)
    return uri


def _check_file_store(folder: Path) -> None:
    """Require that a folder has an experiment: MLflow would write into any other one, or create it."""
    if any("experiment_id:" in file.read_text(errors="replace") for file in folder.glob("*/meta.yaml")):
        return
    inside = next((path for path in (folder / "mlruns", folder / "mlflow.db") if path.exists()), None)
    raise StorageError(
        f"{folder} is not an MLflow store: it has no experiment folder",
        fix=f"orchestrator list --mlflow {in_shell(inside)}"
        if inside
        else "give the address of a server, an SQLite file or a folder mlruns",
    )


def _experiments(client: Any, name: str | None) -> dict[str, Any]:
    """Return the experiments by id."""
    found = list(search_all(client.search_experiments))
    if name is None:
        return {one.experiment_id: one for one in found}
    if chosen := [one for one in found if one.name == name]:
        return {chosen[0].experiment_id: chosen[0]}
    names = [one.name for one in found]
    raise NotFoundError(
        f"unknown experiment {name!r}{did_you_mean(name, names)}", facts={"experiments": ", ".join(names[:10])}
    )


def _runs(client: Any, experiments: Mapping[str, Any], wanted: str) -> Iterator[MlflowRun]:
    if experiments:
        for run in search_all(client.search_runs, list(experiments), wanted, order_by=["attributes.start_time DESC"]):
            yield _read(run, experiments[run.info.experiment_id])


def _read(run: Any, experiment: Any) -> MlflowRun:
    tags, inputs = run.data.tags, run.inputs
    data = []
    for one in inputs.dataset_inputs if inputs else ():
        own = {tag.key: tag.value for tag in one.tags}
        data.append(Dataset(one.dataset.name, own.get(DIGEST_TAG, one.dataset.digest)))
    primary = experiment.tags.get(f"{PRIMARY_TAG}.name")
    return MlflowRun(
        id=run.info.run_id,
        name=run.info.run_name or run.info.run_id,
        state=STATES.get(run.info.status, RunState.RUNNING),
        created=run.info.start_time / 1000,
        ended=run.info.end_time / 1000 if run.info.end_time else None,
        experiment=experiment.name,
        user=tags.get("mlflow.user") or None,
        handle=tags.get(HANDLE_TAG),
        commit=tags.get("mlflow.source.git.commit"),
        params=_hidden(run.data.params),
        metrics={our_metric(name): value for name, value in run.data.metrics.items()},
        primary=our_metric(primary) if primary else None,
        data=list(dict.fromkeys(data)),
    )


def our_metric(name: str) -> str:
    """Return our name of a metric: `eval/accuracy`, `val_accuracy` -> `validation_accuracy`."""
    name = name.replace("/", "_")
    start = next((start for start in SPLIT_PREFIXES if name.startswith(start)), None)
    return name if start is None else VALIDATION + name.removeprefix(start)


def _hidden(params: Mapping[str, str]) -> dict[str, str]:
    return {name: HIDDEN if is_secret(name) else redact(value) for name, value in params.items()}


def _named_like(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters under the names of the other run, where it has one of the same meaning."""
    endings: dict[str, list[str]] = {}
    for name in ours:
        endings.setdefault(name.rpartition(".")[2], []).append(name)
    found: dict[str, Any] = {}
    for name, value in theirs.items():
        like = endings.get(name.rpartition(".")[2], [])
        meant = [one for one in OUR_NAMES.get(name, ()) if one in ours] or (like if len(like) == 1 else [])
        found.setdefault(name if name in ours or not meant else meant[0], value)
    return found


def _equal(a: Any, b: Any) -> bool:
    try:
        return float(a) == float(b)
    except ValueError:
        return str(a).lower() == str(b).lower()


def _text_pairs(name: str, a: str | None, b: str | None) -> Pairs:
    if a == b:
        return {}
    return {name: {side: value for side, value in (("a", a), ("b", b)) if value}}


def _result_pairs(a: MlflowRun, b: MlflowRun) -> Pairs:
    """Return the state and the metrics that both have, and the score of each."""
    found: Pairs = {"state": {"a": a.state.value, "b": b.state.value}}
    for side, run in (("a", a), ("b", b)):
        if run.ended is not None:
            found.setdefault("seconds", {})[side] = round(run.ended - run.created, 1)
    scores = {run.score[0] for run in (a, b) if run.score is not None}
    for name in sorted(scores | (a.metrics.keys() & b.metrics.keys())):
        found[name] = {side: run.metrics[name] for side, run in (("a", a), ("b", b)) if name in run.metrics}
    for pair in found.values():
        if len(pair) == 2 and all(isinstance(value, int | float) for value in pair.values()):
            pair["difference"] = pair["b"] - pair["a"]
    return found


def _shared_text(shared: Mapping[str, Any], a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    return (
        f"{len(shared)} parameters are in both runs and compared; {len(a.keys() - shared.keys())} are only in a,"
        f" {len(b.keys() - shared.keys())} only in b"
    )
