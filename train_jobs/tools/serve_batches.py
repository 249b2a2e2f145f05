"""Batches of the local server: requests that wait are predicted together, in one thread.

No request waits for others: while a batch is computed, the next one gathers. A lone client has the latency of a single
request, and many clients share forward passes.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from train_jobs.inference.predictor import Predictor
from train_jobs.inference.score_requests import MAX_INPUTS, ScoreRequest, limited, predict_requests
from train_jobs.tools.serve_metrics import ServeMetrics

QUEUED = 64  # requests that wait at most
ANSWER_SECONDS = 60.0  # from the arrival of a request to its response


class AbandonedError(Exception):
    """All clients that waited for the results of a batch have gone."""


Waiting = tuple[ScoreRequest, "asyncio.Future[list[Any]]"]


class RequestBatches:
    """Queue of requests, and the task that predicts them in batches; belongs to one event loop.

    Args:
        task: predictor of the model.
        metrics: counts of the server.
    """

    def __init__(self, task: Predictor, metrics: ServeMetrics) -> None:
        self._task = limited(task, self._require_waiting)
        self._running: Sequence[Waiting] = ()
        self._metrics = metrics
        self._queue: asyncio.Queue[Waiting] = asyncio.Queue(QUEUED)
        self._kept: Waiting | None = None  # did not fit into the batch before
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="predict")
        self._worker: asyncio.Task[None] | None = None
        metrics.queue.set_function(self._queue.qsize)

    def put(self, request: ScoreRequest) -> asyncio.Future[list[Any]]:
        """Queue a request, and return the future of its outputs; a cancelled one is not predicted.

        Raises:
            asyncio.QueueFull: too many requests wait.
        """
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((request, future))
        return future

    async def _work(self) -> None:
        while True:
            batch = await self._next_batch()
            self._metrics.batch_inputs.observe(sum(len(request.rows) for request, _ in batch))
            requests = [request for request, _ in batch]
            self._running = batch
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._predict, requests)
            for (_, future), result in zip(batch, found, strict=True):
                if future.done():  # its client has left
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    async def _next_batch(self) -> list[Waiting]:
        """Return waiting requests with up to `MAX_INPUTS` inputs in total; at least one request."""
        batch: list[Waiting] = []
        inputs = 0
        while True:
            if self._kept is not None:
                one, self._kept = self._kept, None
            elif not batch:
                one = await self._queue.get()
            elif self._queue.empty():
                return batch
            else:
                one = self._queue.get_nowait()
            if one[1].done():
                continue
            inputs += len(one[0].rows)
            if batch and inputs > MAX_INPUTS:
                self._kept = one
                return batch
            batch.append(one)

    def _require_waiting(self) -> None:
        """End a prediction between two forward passes if all its clients have left, or the server stops."""
        if all(future.done() for _, future in self._running):
            raise AbandonedError

    def _predict(self, requests: Sequence[ScoreRequest]) -> list[list[Any] | Exception]:
        try:
            return [*predict_requests(self._task, requests)]
        except AbandonedError as problem:
            return [problem for _ in requests]
        except Exception as problem:
            if len(requests) == 1:
                return [problem]
        # one of them failed: the others are answered
        return [self._predict([request])[0] for request in requests]


def report_bug(problem: Exception) -> None:
    """Print where an unexpected exception was raised, without its message, which may contain texts of a request."""
    place = traceback.extract_tb(problem.__traceback__)[-1]
    print(f"error[bug]: {type(problem).__name__} at {place.filename}:{place.lineno}", file=sys.stderr, flush=True)
