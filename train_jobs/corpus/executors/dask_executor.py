"""The executor that runs tasks on a Dask cluster: futures over the JSON of the tasks.

Which worker runs a task, and what happens when a worker is lost, is Dask's business. This module gives tasks, connects
again when the scheduler was started again, and gives a task whose disk was full to another worker.
"""

from __future__ import annotations

import json
import queue
import time
import uuid
from asyncio import CancelledError
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from distributed import Client, Future, KilledWorker

from train_jobs.artifacts.store_places import StorePath, write_whole
from train_jobs.config.errors import InternalError, OutOfMemoryError, PeerError, SpecError, StorageError, UserError
from train_jobs.config.privacy import unexpected_text
from train_jobs.config.urls import is_url
from train_jobs.corpus.executors.base import Executor, Log, Result, error_of
from train_jobs.corpus.executors.dask_cluster import Cluster
from train_jobs.corpus.executors.dask_process import PATIENCE_SECONDS, quiet
from train_jobs.corpus.executors.dask_task import (
    Expected,
    require_store,
    require_versions,
    run_task,
    store_problem,
    worker_versions,
)
from train_jobs.corpus.sources.text_parts import DATASET, Part
from train_jobs.corpus.steps.documents import Advance
from train_jobs.corpus.steps.records import PartTask, PreparationSetting

TASKS_PER_WORKER = 2  # one that runs, one that waits: the scheduler and its memory never hold all parts
POLL_SECONDS = 1.0
CONNECT_SECONDS = 10.0
RESULT_SECONDS = 30.0
SECONDS_BETWEEN_LINES = 10.0
MOST_FULL_DISKS = 3  # of one task; then no worker can write
SECONDS_BETWEEN_LOOKS = 2.0  # at the list of workers
TOKEN = "dask-token-"
UNREADABLE = "Error during deserialization of the task graph"  # Dask's message, from the scheduler
LOST = {"cancelled", "lost"}  # states of a future
CLOSED = {"closed", "closing"}  # states of a client


class _Given(NamedTuple):
    """A task that the scheduler has."""

    task: PartTask
    future: Future[str]
    bound: frozenset[str]
    """Addresses of the workers that may run it; empty: all."""


class _SchedulerLost(Exception):  # noqa: N818 - handled here
    """The scheduler forgot the tasks: it ended, or the connection broke."""


class DaskExecutor(Executor):
    """Runs tasks on a Dask cluster. The client connects with the first task.

    Args:
        setting: settings shared by the tasks; all workers see its folders.
        cluster: the cluster.
        log: called with lines of text.
        function: what a worker runs for a task; it takes and returns what `run_task` does.
    """

    def __init__(
        self,
        setting: PreparationSetting,
        cluster: Cluster,
        log: Log,
        function: Callable[[str, str, str, str], str] = run_task,
    ) -> None:
        quiet()
        self._function = function
        self._store = StoreToken(_absolute(setting.folder))
        # A worker has another working directory than this process.
        folders = {"store": _absolute(setting.store), "folder": _absolute(setting.folder)}
        self._setting, self._cluster, self._log = setting.model_copy(update=folders).model_dump_json(), cluster, log
        self._sends_text = not cluster.compares_text
        self._expected = Expected(worker_versions(), str(self._store.file), self._store.token)
        self._topic = f"prepare-{uuid.uuid4().hex[:12]}"
        self._client: Client | None = None
        self._messages: queue.SimpleQueue[tuple[PartTask, Future[str]] | dict[str, Any]] = queue.SimpleQueue()
        self._running: dict[int, _Given] = {}
        self._failures: Counter[int] = Counter()
        self._full: set[str] = set()
        """Addresses of workers whose disk is full."""
        self._addresses: tuple[str, ...] = ()
        """Addresses of the workers, as the scheduler knew them a moment ago."""
        self._looked = float("-inf")
        self._refusal = ""
        """Why the last attempt to connect failed."""
        self._worker_seen = self._logged = time.monotonic()
        self._submitted = 0
        self._is_checked = False
        """Whether the first workers have been checked; no task is given before."""

    def __enter__(self) -> DaskExecutor:
        try:
            self._cluster.start()
        except BaseException:
            self._cluster.close()
            raise
        return self

    @property
    def workers(self) -> int:
        """Number of workers that are connected to the scheduler."""
        return len(self._addresses)

    def run(self, tasks: Sequence[PartTask], advance: Advance) -> Iterator[Result]:
        """Run all tasks, see `Executor.run`.

        Raises:
            UserError: the first error of a task; the other tasks are abandoned.
            OutOfMemoryError: several workers died while they ran the same task.
            StorageError: the disk of every worker is full.
            PeerError: scheduler or workers were missing for ten minutes.
        """
        waiting, left, progress = deque(tasks), len(tasks), _Progress(advance)
        if tasks and self._client is None:
            self._connect(self._cluster.first_seconds)
        while left:
            try:
                if not self._is_checked:
                    self._check_workers()
                    self._is_checked = True
                self._look(waiting)
                self._give(waiting)
                message = self._next_message()
                if isinstance(message, dict):
                    if message["step"] == tasks[0].step:  # else it was late
                        progress.reached(message["part"], message["bytes"], message["documents"])
                elif message is not None and (found := self._answer(*message)) is not None:
                    task, answer = found
                    if "record" not in answer:
                        self._handle_error(task, answer)
                        waiting.appendleft(task)
                        continue
                    left -= 1
                    progress.reached(task.number, *answer["read"])
                    yield Result(task.number, answer["record"])
            except _SchedulerLost:
                waiting.extendleft(given.task for given in self._running.values())
                self._log("the connection to the Dask scheduler is lost: connecting again; finished parts are kept")
                self._connect(PATIENCE_SECONDS)

    def close(self) -> None:
        """Cancel the tasks of this job, and end its cluster."""
        if self._client is not None:
            with suppress(Exception):  # the scheduler may be dead
                self._client.cancel([given.future for given in self._running.values()], force=True)
        self._running.clear()
        self._disconnect()
        self._store.remove()
        self._cluster.close()

    def _connect(self, seconds: float) -> None:
        """Connect to the scheduler, wait for a worker and check the versions.

        Args:
            seconds: time to wait for the scheduler.
        """
        self._disconnect()
        self._running.clear()
        deadline = time.monotonic() + seconds
        while (client := self._try_to_connect()) is None:
            if time.monotonic() > deadline:
                raise PeerError(
                    f"cannot reach the Dask scheduler: no answer for {seconds:.0f} seconds",
                    facts={"where": self._cluster.describe(), "why": self._refusal},
                    fix="check that it runs, its address and its TLS settings; the same command resumes",
                )
            self._say_waiting("the Dask scheduler")
            time.sleep(POLL_SECONDS)
        self._client, self._worker_seen = client, time.monotonic()
        client.subscribe_topic(self._topic, lambda event: self._messages.put(event[1]))
        self._looked, self._addresses = float("-inf"), ()

    def _try_to_connect(self) -> Client | None:
        """Return a connected client; None if the scheduler does not answer.

        Raises:
            SpecError: Dask refuses the address or the TLS settings.
        """
        found = self._cluster.find()
        if found is None:
            self._refusal = "its address is not known"
            return None
        address, security = found
        try:
            return Client(address, security=security, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, TimeoutError) as problem:
            self._refusal = str(problem)
            return None
        except (ValueError, TypeError, RuntimeError, OverflowError) as problem:
            raise SpecError(
                "cannot connect to the Dask scheduler",
                facts={"where": address, "why": str(problem)},
                fix="correct data.executor.scheduler, and set tls_ca_file, tls_cert and tls_key for tls://",
            ) from None

    def _disconnect(self) -> None:
        if self._client is not None:
            with suppress(Exception):  # a client without its scheduler fails in many ways
                self._client.close(timeout=2)
        self._client = None

    def _check_workers(self) -> None:
        """Require the versions and the store of this job on all connected workers; `run_task` checks later ones.

        Raises:
            SpecError: a worker has other versions, or cannot import this package.
            StorageError: a worker does not see the store.
            PeerError: there was no worker for ten minutes.
        """
        self._store.write()
        while True:
            self._look(deque())
            if self._addresses:
                break
            self._cluster.find()  # starts processes again that have died
            time.sleep(POLL_SECONDS / 10)
        versions, token_file, token = self._expected
        for address, found in self._on_workers(worker_versions).items():
            if isinstance(found, ModuleNotFoundError | AttributeError):
                require_versions(versions, {}, address)
            elif isinstance(found, dict):
                require_versions(versions, found, address)
        for address, problem in self._on_workers(store_problem, token_file, token).items():
            if isinstance(problem, str):
                require_store(token_file, problem, address)

    def _on_workers(self, function: Callable[..., Any], *arguments: str) -> dict[str, Any]:
        """Return address -> result or exception of a function on every worker; nothing if one is lost meanwhile."""
        assert self._client is not None, "run has connected it"
        try:
            found: dict[str, Any] = self._client.run(function, *arguments, on_error="return")
        except (OSError, CancelledError):
            return {}
        except Exception:  # a closed client raises plain exceptions
            if self._client.status not in CLOSED:
                raise
            raise _SchedulerLost from None
        return found

    def _give(self, waiting: deque[PartTask]) -> None:
        """Give tasks to the scheduler until every worker has one that runs and one that waits."""
        most = TASKS_PER_WORKER * len(self._addresses)
        bound = frozenset(self._addresses) - self._full if self._full else frozenset[str]()
        while waiting and len(self._running) < most:
            task = waiting[0]
            future = self._submit(task, bound)
            waiting.popleft()
            self._running[task.number] = _Given(task, future, bound)
            future.add_done_callback(partial(self._note_done, task))

    def _submit(self, task: PartTask, bound: frozenset[str]) -> Future[str]:
        assert self._client is not None, "run has connected it"
        self._submitted += 1
        try:
            return self._client.submit(
                self._function,
                *(self._setting, self._task_json(task), self._topic, json.dumps(self._expected)),
                key=f"{task.step}-{task.number}-{self._topic}-{self._submitted}",
                workers=sorted(bound) or None,
                pure=False,
            )
        except Exception:  # a closed client raises plain exceptions
            if self._client.status not in CLOSED:
                raise
            raise _SchedulerLost from None

    def _task_json(self, task: PartTask) -> str:
        """Return the JSON of a task with absolute paths."""
        text = {str(Path(path).absolute()): file for path, file in task.text.items()} if self._sends_text else {}
        return task.model_copy(update={"part": _with_absolute_paths(task.part), "text": text}).model_dump_json()

    def _note_done(self, task: PartTask, future: Future[str]) -> None:
        self._messages.put((task, future))

    def _next_message(self) -> tuple[PartTask, Future[str]] | dict[str, Any] | None:
        """Return a finished future or a report of progress; None after a second without one."""
        with suppress(queue.Empty):
            return self._messages.get(timeout=POLL_SECONDS)
        self._cluster.find()  # starts processes again that have died
        return None

    def _answer(self, task: PartTask, future: Future[str]) -> tuple[PartTask, dict[str, Any]] | None:
        """Return a task and the JSON that its worker returned; None if the future is obsolete or not readable yet.

        Raises:
            OutOfMemoryError: several workers died while they ran it.
            SpecError: the scheduler cannot import this package.
        """
        given = self._running.get(task.number)
        if given is None or given.future is not future:
            return None  # of an attempt before the scheduler was lost
        if future.status in LOST:
            raise _SchedulerLost
        try:
            answer: dict[str, Any] = json.loads(future.result(timeout=RESULT_SECONDS))
        except KilledWorker as problem:
            raise OutOfMemoryError(
                f"{problem.allowed_failures + 1} Dask workers died while they processed the same part",
                facts={
                    "where": f"part {task.part.name}",
                    "why": "a worker that dies without a message usually ran out of memory",
                },
                fix="give the workers more memory, then repeat the command to resume",
            ) from None
        except TimeoutError:
            self._messages.put((task, future))  # the worker died with the result: Dask runs the task again
            return None
        except (OSError, CancelledError):
            raise _SchedulerLost from None
        except Exception as problem:
            if UNREADABLE in str(problem):
                raise SpecError(
                    "the Dask scheduler cannot import this package",
                    facts={"where": self._cluster.describe()},
                    fix="install the same packages on scheduler and workers and start them again",
                ) from None
            raise InternalError(unexpected_text(problem)) from problem
        del self._running[task.number]
        return task, answer

    def _handle_error(self, task: PartTask, found: dict[str, Any]) -> None:
        """Raise the error of a task, unless another worker may do better: its disk may not be full."""
        error, address = error_of(found["error"]), str(found["worker"])
        self._failures[task.number] += 1
        self._full.add(address)
        if (
            not isinstance(error, StorageError)
            or self._failures[task.number] >= MOST_FULL_DISKS
            or self._full.issuperset(self._addresses)
        ):
            error.facts = {**error.facts, "worker": address}
            raise error
        self._log(f"{error.message}: on worker {address}, which gets no more tasks; another one repeats the task")

    def _look(self, waiting: deque[PartTask]) -> None:
        """Read the list of workers from the scheduler, every two seconds.

        Tasks that were bound to lost workers return to `waiting`.

        Raises:
            PeerError: there was no worker for ten minutes.
        """
        if time.monotonic() - self._looked < (SECONDS_BETWEEN_LOOKS if self._addresses else 0):
            return
        assert self._client is not None, "run has connected it"
        if self._client.status in CLOSED:
            raise _SchedulerLost
        with suppress(OSError, CancelledError, RuntimeError):  # the connection broke: the futures are cancelled soon
            self._addresses = tuple(self._client.nthreads())
        self._looked = time.monotonic()
        if self._addresses:
            self._worker_seen = self._looked
        elif self._looked - self._worker_seen > PATIENCE_SECONDS:
            raise PeerError(
                f"the Dask cluster has had no worker for {PATIENCE_SECONDS / 60:.0f} minutes",
                facts={"where": self._cluster.describe()},
                fix="start workers, then repeat the command to resume",
            )
        else:
            self._say_waiting("workers of the Dask cluster")
        for given in list(self._running.values()):
            if given.bound and given.bound.isdisjoint(self._addresses):
                del self._running[given.task.number]
                with suppress(Exception):  # the scheduler may be dead
                    given.future.cancel()
                waiting.appendleft(given.task)

    def _say_waiting(self, what: str) -> None:
        if time.monotonic() - self._logged > SECONDS_BETWEEN_LINES:
            self._logged = time.monotonic()
            self._log(f"waiting for {what}: {self._cluster.describe()}")


class StoreToken:
    """A file next to the records, by which a worker shows that it sees the same store.

    Args:
        folder: folder of the records.
    """

    def __init__(self, folder: StorePath) -> None:
        self.token = uuid.uuid4().hex
        # A new name each time: a network disk may remember the content of a name, or that it was missing.
        self._folder, self.file = folder, folder / f"{TOKEN}{self.token[:12]}"

    def write(self) -> None:
        """Write the file, and delete those of killed jobs."""
        self.remove()
        write_whole(self.file, self.token)

    def remove(self) -> None:
        """Delete the file."""
        with suppress(OSError, UserError):
            for path in self._folder.glob(f"{TOKEN}*"):
                path.unlink()


def _absolute(place: StorePath) -> StorePath:
    return place.absolute() if isinstance(place, Path) else place


def _with_absolute_paths(part: Part) -> Part:
    if part.format == DATASET:  # a name
        return part
    paths = (piece.path if is_url(piece.path) else str(Path(piece.path).absolute()) for piece in part.pieces)
    return replace(
        part, pieces=tuple(replace(piece, path=path) for piece, path in zip(part.pieces, paths, strict=True))
    )


class _Progress:
    """Progress of all tasks of a step; bytes that a second attempt reads again count once.

    Args:
        advance: see `Executor.run`.
    """

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._most: dict[int, tuple[int, int]] = {}

    def reached(self, part: int, count: int, documents: int) -> None:
        """Note the bytes and documents that an attempt at a part has processed."""
        before = self._most.get(part, (0, 0))
        now = max(before[0], count), max(before[1], documents)
        self._most[part] = now
        if now != before:
            self._advance(now[0] - before[0], now[1] - before[1])
