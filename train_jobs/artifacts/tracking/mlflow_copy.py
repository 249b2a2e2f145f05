"""The copy of a run's metrics files in an MLflow run: each value once, even if several processes copy.

Of several lines with a value for the same step, the last one in the file counts. MLflow deletes no single value: one
that differs from what a resumed job repeats stays, and the new one is added with a later time. So it is the last of its
step, and the one that MLflow shows as the latest.

The mirror in a job's rank 0 uses it while the job runs, `orchestrator mlflow sync` at any time after it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_jobs.artifacts.files import write_text
from train_jobs.artifacts.host import disable_telemetry
from train_jobs.artifacts.lineage import LINEAGE_FILE, read_lineage
from train_jobs.artifacts.metrics_file import LARGEST_NUMBER, metric_files, read_reports
from train_jobs.artifacts.tracking.mlflow_names import AllowedNames, with_allowed_names
from train_jobs.artifacts.tracking.mlflow_store import Condition, examine, first_line, sqlite_path
from train_jobs.config.errors import StorageError, UserError

BATCH = 1000  # MLflow's limit of metrics per request
MOST_PARAMETERS = 100  # MLflow's limit per request
PAGE = 500  # results of a search in one request
STEPS = range(-(2**63), 2**63)  # a step is an int64 in MLflow
LONGEST_VALUE = 6000  # MLflow's limit for the value of a parameter, in characters
ROUNDING = 1e-6  # relative; more than the rounding of a store with 32-bit numbers
MIRRORED_FILE = "mirrored.json"
LINEAGE_TAG = "orchestrator.lineage"
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class Destination:
    """An MLflow run."""

    tracking_uri: str
    """URI of the tracking server."""
    run_id: str
    """Id of the run."""


class Mirror:
    """A copy of the metrics files of a run in an MLflow run.

    Args:
        metrics_file: metrics.jsonl of a job; for the others see `metric_files`.
        to: MLflow run.
        parameters: configuration of the job to log; those that the run already has are skipped.
        noted: whether mirrored.json is about this MLflow run.

    Raises:
        StorageError: the store is an SQLite file that is missing, or that MLflow cannot use.
    """

    def __init__(
        self, metrics_file: Path, to: Destination, parameters: Mapping[str, str] = NOTHING, *, noted: bool = True
    ) -> None:
        disable_telemetry()
        path = sqlite_path(to.tracking_uri)
        # MLflow would create a missing store in place, which a kill leaves broken: see mlflow_store.py
        if path is not None and (found := examine(path)).condition != Condition.READY:
            raise StorageError(f"cannot use the MLflow store: {found.reason}")
        # Importing mlflow takes two seconds, and a job without a tracking server does not need it.
        from mlflow.tracking import MlflowClient

        self._file, self._noted = metrics_file, noted
        self._run_id = to.run_id
        self._client: Any = MlflowClient(tracking_uri=to.tracking_uri)
        self._mirrored: dict[str, dict[int, tuple[int, float]]] = {}
        self._existing: frozenset[str] | None = None
        self._offsets: dict[Path, int] = {}
        self._examined = 0
        self._names = AllowedNames()
        self._steps_warned = False
        if parameters:
            self._log(with_allowed_names(parameters))

    def _log(self, parameters: Mapping[str, str]) -> None:
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        existing = self._client.get_run(self._run_id).data.params
        # MLflow rejects a changed parameter, and Azure limits their number. Metrics must be mirrored nevertheless.
        changed = sorted(name for name, value in parameters.items() if existing.get(name, value) != value)
        if changed:
            print(f"warning: MLflow keeps earlier values of {', '.join(changed)}", file=sys.stderr)
        try:
            for batch in batches({name: value for name, value in parameters.items() if name not in existing}):
                self._client.log_batch(self._run_id, params=[Param(name, value) for name, value in batch.items()])
        except MlflowException as problem:
            print(f"warning: MLflow rejected some parameters: {first_line(problem)}", file=sys.stderr)

    def catch_up(self) -> int:
        """Copy all values that MLflow lacks; return their number."""
        from mlflow.entities import Metric

        offsets, examined = dict(self._offsets), 0
        found: dict[tuple[str, int], tuple[int, float]] = {}
        for file, prefix in metric_files(self._file).items():
            size = file.stat().st_size
            # a resumed job rewrites the file without the reports that it repeats
            start = offsets.get(file, 0) if offsets.get(file, 0) <= size else 0
            offsets[file] = start
            for behind, report in read_reports(file, start):
                offsets[file] = behind
                step, stamp = int(report["step"]), int(report["time"] * 1000)
                if step not in STEPS:
                    self._warn_of_step(step)
                    continue
                for key, value in report["metrics"].items():
                    found[self._names.of(f"{prefix}{key}"), step] = stamp, float(value)
            examined += max(size, offsets[file])  # also what follows the last report
        fresh = []
        for (name, step), (stamp, value) in found.items():
            points = self._points_of(name)
            copied = points.get(step)
            if _is_new(copied, (stamp, value)):
                # MLflow orders the values of a step by their times, which lines of one file may share
                stamp = stamp if copied is None else max(stamp, copied[0] + 1)
                points[step] = stamp, value
                fresh.append(Metric(name, value, stamp, step))
        for first in range(0, len(fresh), BATCH):
            self._client.log_batch(self._run_id, metrics=fresh[first : first + BATCH])
        # Only after all requests succeeded: after an error, the next call reads the same reports again.
        self._offsets, self._examined = offsets, examined
        return len(fresh)

    def _warn_of_step(self, step: int) -> None:
        if not self._steps_warned:
            reason = f"MLflow cannot store step {step}: values of steps beyond 64 bits are left out"
            print(f"warning: {reason}", file=sys.stderr)
        self._steps_warned = True

    @property
    def copied_bytes(self) -> int:
        """Bytes of the metrics files that were copied, or are no reports."""
        return self._examined

    def end(self, status: str, ended: float | None = None) -> None:
        """End the run and write mirrored.json, which records the mirrored bytes of the files.

        Args:
            status: FINISHED, FAILED or KILLED.
            ended: end of the job, seconds since the epoch; None: now.
        """
        self._tag_lineage()
        self._client.set_terminated(self._run_id, status, None if ended is None else int(ended * 1000))
        self.note_copied(status)

    def note_copied(self, status: str, **more: Any) -> None:
        """Write mirrored.json, unless it is about another MLflow run.

        Args:
            status: status of the run in MLflow.
            more: other entries.
        """
        if not self._noted:
            return
        mirrored = {"run_id": self._run_id, "status": status, "bytes": self.copied_bytes, **more}
        if self._file.parent.is_dir():
            write_text(self._file.with_name(MIRRORED_FILE), json.dumps(mirrored))

    def _tag_lineage(self) -> None:
        """Tag the run with the hash of the lineage next to the metrics, if it exists and verifies."""
        try:
            lineage = read_lineage(self._file.with_name(LINEAGE_FILE))
        except UserError as problem:
            print(problem, file=sys.stderr)
            return
        if lineage is not None:
            self._client.set_tag(self._run_id, LINEAGE_TAG, lineage.head.hash)

    def _points_of(self, key: str) -> dict[int, tuple[int, float]]:
        """Return step -> time in milliseconds and value of the last copied point."""
        # MLflow would store a repeated (key, step) as a second value, so the existing points are read once per key.
        if self._existing is None:
            self._existing = frozenset(self._client.get_run(self._run_id).data.metrics)
        if key not in self._existing:
            return self._mirrored.setdefault(key, {})
        if key not in self._mirrored:
            history = self._client.get_metric_history(self._run_id, key)
            points = sorted((metric.timestamp, metric.step, metric.value) for metric in history)
            self._mirrored[key] = {step: (stamp, value) for stamp, step, value in points}
        return self._mirrored[key]


def _is_new(copied: tuple[int, float] | None, found: tuple[int, float]) -> bool:
    """Return whether MLflow lacks a point of a step.

    Args:
        copied: time and value of the last point of the step in MLflow; None: it has none.
        found: time and value in the metrics file.
    """
    if copied is None:
        return True
    (copied_at, before), (at, value) = copied, found
    if math.isnan(value) or math.isnan(before):
        return math.isnan(value) != math.isnan(before)
    value = max(-LARGEST_NUMBER, min(LARGEST_NUMBER, value))  # as MLflow stores an infinite value
    before = max(-LARGEST_NUMBER, min(LARGEST_NUMBER, before))
    if at > copied_at:
        return value != before
    # a store that rounds values would otherwise get them again at each copy
    return not math.isclose(value, before, rel_tol=ROUNDING)


def search_all(search: Callable[..., Any], *arguments: Any, **more: Any) -> Iterator[Any]:
    """Yield all results of a search of MLflow's client, which returns them in pages.

    Args:
        search: the client's method.
        arguments, more: its arguments, without the page.
    """
    token = None
    while True:
        page = search(*arguments, max_results=PAGE, page_token=token, **more)
        yield from page
        if not (token := page.token):
            return


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a nested mapping as dotted names with values as text; empty mappings and lists are left out.

    A list of mappings has a name for each of their values: data.text.0.path.

    Args:
        tree: the mapping.
        prefix: prefix of all names.
    """
    found: dict[str, str] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flatten(value, f"{name}.")
        elif isinstance(value, list) and any(isinstance(one, Mapping | list) for one in value):
            found |= flatten({str(number): one for number, one in enumerate(value)}, f"{name}.")
        elif value != []:
            found[name] = as_parameter(value)
    return found


def as_parameter(value: Any) -> str:
    """Return a value as the text of a parameter, truncated to MLflow's limit; of a list, its values with commas."""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text[:LONGEST_VALUE]


def batches(parameters: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the parameters in groups of MLflow's limit per request."""
    items = list(parameters.items())
    for start in range(0, len(items), MOST_PARAMETERS):
        yield dict(items[start : start + MOST_PARAMETERS])
