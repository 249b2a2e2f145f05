"""The local server: uvicorn and starlette, with limits on everything that a client decides.

GET /healthz   200 while it can answer; needs no token      GET /metrics   Prometheus metrics
POST /score    predictions                                  GET /          {"status": "ready"}
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from train_jobs.config import ConflictError, SpecError, UserError
from train_jobs.inference.forward import TooManySequencesError
from train_jobs.inference.predictor import Predictor
from train_jobs.inference.score_requests import read_request
from train_jobs.tools.serve_access import NEW_TOKEN, Access, is_address
from train_jobs.tools.serve_batches import ANSWER_SECONDS, RequestBatches, report_bug
from train_jobs.tools.serve_connections import LARGEST_HEAD, ConnectionLimits, allow_descriptors, limited_protocol
from train_jobs.tools.serve_metrics import ServeMetrics

LARGEST_REQUEST = 1024 * 1024  # bytes of a body
BACKLOG = 512  # connections that the kernel keeps until they are accepted
STOP_SECONDS = 25  # for requests in flight, after SIGTERM
LAST_PASS_SECONDS = 4  # for the forward pass that is computed then
HEALTH = "/healthz"
CLIENT_LEFT = 499  # counted in the metrics, as nginx does; no client receives it
RETRY = {"Retry-After": "1"}


def listen(host: str, port: int, access: Access) -> socket.socket:
    """Return a listening socket.

    Args:
        host: IP address of this machine.
        port: port; 0: any free one.
        access: rules of the server.

    Raises:
        ConflictError: the port is in use.
        SpecError: the port or the address is invalid, or is reachable from other machines and there is no token.
    """
    if not is_address(host):
        raise SpecError(f"invalid --host {host!r}: not an IP address", fix="--host 127.0.0.1")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if host != "::1" and not host.startswith("127."):
        if access.token is None:
            raise SpecError(
                f"cannot listen on {host} without a token: other machines could send requests", fix=NEW_TOKEN
            )
        print(f"warning: {host} is served without TLS: token and texts are readable on the network", file=sys.stderr)
    free = "--port 0 uses any free port"
    if not 0 <= port <= 65535:
        raise SpecError(f"cannot listen on port {port}", facts={"need": "0 to 65535"}, fix=free)
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            raise ConflictError(f"cannot listen on port {port}: it is in use", fix=free) from None
        raise SpecError(f"cannot listen on {host}, port {port}", facts={"why": problem}, fix=free) from None


def serve(listening: socket.socket, task: Predictor, access: Access) -> None:
    """Print the port as one line of JSON, and serve until SIGTERM or Ctrl-C.

    Requests in flight are answered if that takes at most `STOP_SECONDS`. The process ends a few seconds later.

    Args:
        listening: result of `listen`.
        task: predictor of the model.
        access: rules of the server.
    """
    allow_descriptors()
    config = server_config(task, access)
    # uvicorn raises a signal again once it has stopped; the end of a server is then not a failure
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    print(json.dumps({"port": listening.getsockname()[1]}), flush=True)
    uvicorn.Server(config).run(sockets=[listening])
    # Python waits for the thread of predictions at its end, and a forward pass of a large model can take minutes.
    last = threading.Timer(LAST_PASS_SECONDS, os._exit, [0])
    last.daemon = True  # it has no effect once Python has finished
    last.start()


def server_config(task: Predictor, access: Access) -> uvicorn.Config:
    """Return the configuration of the server, with all its limits.

    Args:
        task: predictor of the model.
        access: rules of the server.
    """
    metrics = ServeMetrics()
    return uvicorn.Config(
        Metered(score_app(task, access, metrics), metrics),
        http=limited_protocol(ConnectionLimits(metrics)),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # hostile requests must not fill the disk
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=LARGEST_HEAD,
        timeout_graceful_shutdown=STOP_SECONDS,
    )


def score_app(task: Predictor, access: Access, metrics: ServeMetrics) -> Starlette:
    """Return the application.

    Args:
        task: predictor of the model.
        access: rules of the server.
        metrics: counts of the server.
    """
    batches = RequestBatches(task, metrics)

    async def score(request: Request) -> Response:
        body = await _body(request)
        try:
            future = batches.put(read_request(body, task))
        except asyncio.QueueFull:
            raise HTTPException(503, "too many requests are waiting", RETRY) from None
        except ValueError as problem:
            need = 'need {"inputs": [text, ...], "top": 5}'
            raise HTTPException(400, f"invalid request, {need}: {problem}") from None
        try:
            return _json({"outputs": await _unless_disconnected(request, future)})
        except TooManySequencesError as problem:
            raise HTTPException(400, f"request too large: {problem}") from None
        except UserError as problem:  # out of memory, for example
            raise HTTPException(400, str(problem)) from None

    async def ready(request: Request) -> Response:
        return _json({"status": "ready"})

    async def measured(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    app = Starlette(
        routes=[
            Route("/score", score, methods=["POST"]),
            Route("/metrics", measured),
            Route(HEALTH, ready),
            Route("/", ready),
        ],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    app.router.redirect_slashes = False
    app.add_middleware(AccessCheck, access=access)
    return app


class AccessCheck:
    """Refuse requests that the rules of the server do not allow, before their body is read."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or forward a request."""
        request = Request(scope)
        found = self._access.refusal(request.headers, public=scope["path"] == HEALTH)
        if found is None:
            await self._app(scope, receive, send)
            return
        headers = {"WWW-Authenticate": "Bearer"} if found[0] == 401 else {}
        await _refusal(HTTPException(*found, headers))(scope, receive, send)


class Metered:
    """Count responses by their code, and measure their time."""

    def __init__(self, app: ASGIApp, metrics: ServeMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request."""
        began = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(message["status"]).inc()
                self._metrics.seconds.observe(time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, counted)


async def _body(request: Request) -> bytes:
    """Return the body of a request, whatever length it states.

    Raises:
        HTTPException: 413 as soon as it is too long; 499 if the client left.
    """
    too_long = HTTPException(413, f"more than {LARGEST_REQUEST} bytes")
    length = request.headers.get("content-length", "0")
    if "transfer-encoding" not in request.headers and int(length[:20]) > LARGEST_REQUEST:
        raise too_long  # h11 has checked that it is a number
    body = bytearray()
    with suppress(ClientDisconnect):
        async for chunk in request.stream():
            if len(body) + len(chunk) > LARGEST_REQUEST:
                raise too_long
            body += chunk
        return bytes(body)
    raise HTTPException(CLIENT_LEFT, "the client closed the connection")


async def _unless_disconnected(request: Request, future: asyncio.Future[list[Any]]) -> list[Any]:
    """Return the outputs of a request; give it up once its client has left, or after `ANSWER_SECONDS`."""
    left = asyncio.ensure_future(request.receive())  # after the body, only the end of the connection is received
    both: set[asyncio.Future[Any]] = {left, future}
    try:
        await asyncio.wait(both, timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        if left.done():
            raise HTTPException(CLIENT_LEFT, "the client closed the connection")
        raise HTTPException(503, f"no result within {ANSWER_SECONDS:.0f} s", RETRY)
    except asyncio.CancelledError:
        raise HTTPException(503, "the server stops", RETRY) from None
    finally:
        left.cancel()
        future.cancel()


# Handlers are coroutines: Starlette would call a function in a thread, which a server that stops cancels.
async def _refused(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return _refusal(problem)


def _refusal(problem: HTTPException) -> Response:
    # The connection is closed: otherwise the rest of a body that is too long would be read, to find the next request.
    return _json({"error": problem.detail}, problem.status_code, {**(problem.headers or {}), "Connection": "close"})


async def _failed(request: Request, problem: Exception) -> Response:
    report_bug(problem)
    return _json({"error": "internal error; see the log of the server"}, 500, {"Connection": "close"})


def _json(document: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(document), status, headers, media_type="application/json")
