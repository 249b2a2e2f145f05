"""The function that a Dask worker runs: one task, from JSON to JSON, with progress as events on a topic.

Dask imports this module on the worker by name. Setting, task and result are text, so nothing of ours is pickled except
the name of the function.
"""

from __future__ import annotations

import hashlib
import json
import platform
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from distributed import Worker, get_worker

import train_jobs
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.store_places import store_path
from train_jobs.config.errors import SpecError, StorageError, UserError
from train_jobs.corpus.executors.base import error_json, finished_record, perform
from train_jobs.corpus.executors.dask_process import quiet
from train_jobs.corpus.executors.node import text_mismatch_error
from train_jobs.corpus.steps.records import PartTask, PreparationSetting, TextFile
from train_jobs.engine.runtime.allocator import keep_freed_arrays

PACKAGES = ("numpy", "pyarrow", "tokenizers", "distributed")
CODE = ("corpus", "artifacts", "config")  # folders of this package that decide the bytes of a store
SECONDS_BETWEEN_EVENTS = 2.0
SEES_SECONDS = 10.0  # for a new file to appear on a shared disk
POLL_SECONDS = 0.5
_STORES_SEEN: set[tuple[str, str]] = set()
# The encoder of a process is not thread-safe: a worker with several threads runs one task at a time.
_ONE_AT_A_TIME = threading.Lock()


class Expected(NamedTuple):
    """Expectations of the client of every worker, sent as a JSON array."""

    versions: dict[str, str]
    """See `worker_versions`."""
    token_file: str
    """Path or URL of a file that the client wrote next to the records."""
    token: str
    """Its content."""


def run_task(setting: str, task: str, topic: str, expected: str) -> str:
    """Run a task on a worker; a part that an earlier attempt has finished is not read again.

    Args:
        setting: JSON of the settings that all tasks share.
        task: JSON of the task.
        topic: topic of the events with the progress.
        expected: JSON of `Expected`.

    Returns:
        JSON: {"record": its record, "read": bytes and documents}, or {"error": the error, "worker": its address}.
    """
    settings = PreparationSetting.model_validate_json(setting)
    worker = get_worker()
    try:
        versions, token_file, token = Expected(*json.loads(expected))
        require_versions(versions, worker_versions())
        with _ONE_AT_A_TIME:
            require_store(token_file, store_problem(token_file, token))
            parsed = PartTask.model_validate_json(task)
            require_text(parsed.text)
            events = _Events(worker, topic, parsed)
            record = finished_record(settings, parsed) or perform(settings, parsed, events)
    except Exception as problem:
        return json.dumps({"error": error_json(problem, settings), "worker": worker.address})
    return json.dumps({"record": record, "read": list(events.totals().values())})


class _Events:
    """Sends the progress of a task to the client, at most once in two seconds.

    Args:
        worker: this worker.
        topic: topic of the events.
        task: the task.
    """

    def __init__(self, worker: Worker, topic: str, task: PartTask) -> None:
        self._send: Callable[[str, Any], None] = worker.log_event
        self._topic, self._task = topic, {"step": task.step, "part": task.number}
        self._bytes = self._documents = 0
        self._sent = time.monotonic()

    def __call__(self, count: int, documents: int) -> None:
        """Add bytes and documents to the progress."""
        self._bytes += count
        self._documents += documents
        if time.monotonic() - self._sent > SECONDS_BETWEEN_EVENTS:
            self._sent = time.monotonic()
            # Totals, not differences: another attempt at the same task begins at 0.
            self._send(self._topic, {**self._task, **self.totals()})

    def totals(self) -> dict[str, int]:
        """Return the bytes and documents that this attempt has processed."""
        return {"bytes": self._bytes, "documents": self._documents}


def store_problem(token_file: str, token: str) -> str | None:
    """Return why this machine does not see the store of the client; None if it does.

    Args:
        token_file: path or URL of a file that the client wrote.
        token: its content.
    """
    if (token_file, token) in _STORES_SEEN:
        return None
    deadline = time.monotonic() + SEES_SECONDS
    while (problem := _token_problem(token_file, token)) is not None:
        if time.monotonic() > deadline:
            return problem
        time.sleep(POLL_SECONDS)
    _STORES_SEEN.add((token_file, token))
    return None


def _token_problem(token_file: str, token: str) -> str | None:
    try:
        found = store_path(token_file).read_bytes()
    except OSError as problem:
        return problem.strerror or str(problem)
    except UserError as problem:  # of an object store
        return problem.message
    return None if found == token.encode() else "the file there belongs to another job"


def require_store(token_file: str, problem: str | None, worker: str | None = None) -> None:
    """Require that a worker sees the store of the client: else its work is lost.

    Args:
        token_file: path or URL of the file that the client wrote.
        problem: see `store_problem`.
        worker: address of the worker. None: the caller adds it.

    Raises:
        StorageError: the worker does not see the file.
    """
    if problem is not None:
        raise StorageError(
            "a Dask worker does not see the token store",
            facts={"file": token_file, "why": problem, **({"worker": worker} if worker else {})},
            fix="mount the disk of the store on all workers at the same path",
        )


def require_text(files: Mapping[str, TextFile]) -> None:
    """Require that this machine sees the files as the process that gave the task does.

    Args:
        files: path -> expected content.

    Raises:
        DataError: a file is missing, or has another content.
    """
    for name, expected in files.items():
        try:
            status = Path(name).stat()
            same = status.st_size == expected.size
            same = same and _content(name, status.st_size, status.st_mtime_ns, status.st_ctime_ns) == expected.sha256
        except OSError as problem:
            raise text_mismatch_error(file=name, why=problem.strerror or str(problem)) from None
        if not same:
            raise text_mismatch_error(file=name, why="its content differs from what the job sees")


@lru_cache(maxsize=1 << 16)
def _content(path: str, size: int, modified: int, changed: int) -> str:
    """Return the SHA-256 of a file; each process reads it once as long as size, mtime and ctime stay the same."""
    return file_sha256(Path(path))


@lru_cache(maxsize=1)
def worker_versions() -> dict[str, str]:
    """Return the versions of everything that decides the bytes of a store, and of Dask."""
    code, root = hashlib.sha256(), Path(train_jobs.__file__).parent
    for path in sorted(path for folder in CODE for path in (root / folder).rglob("*.py")):
        code.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    found = {"python": platform.python_version(), "train_jobs": code.hexdigest()[:12]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def require_versions(expected: dict[str, str], found: dict[str, str], where: str | None = None) -> None:
    """Require that a worker has the versions of the client: other ones may write other bytes.

    Args:
        expected: versions of the client.
        found: versions of the worker.
        where: address of the worker; None: this process.

    Raises:
        SpecError: they differ.
    """
    differing = [name for name in expected if found.get(name) != expected[name]]
    if differing:
        where = where or get_worker().address
        raise SpecError(
            "the workers of the Dask cluster have other versions than this job",
            facts={name: f"{found.get(name, 'missing')} on {where}, {expected[name]} here" for name in differing},
            fix="install the same packages on the workers and start them again",
        )


def dask_setup(worker: Worker) -> None:
    """Prepare a worker of a cluster that the job started; Dask calls it when the worker preloads this module."""
    quiet()
    keep_freed_arrays(threads=True)
