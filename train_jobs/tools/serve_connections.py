"""Limits of connections that uvicorn does not have: time to read a request, time to write a response, their number.

uvicorn reads a request for as long as a client sends it, and `limit_concurrency` refuses new clients while slow ones
keep their place. Here a request must arrive within `READ_SECONDS`. Beyond `CONNECTIONS`, those that have waited longest
for their clients are closed, but only after `GRACE_SECONDS`: in a burst of a thousand connections the bytes of a good
client are read later than those connections are accepted. Beyond `MOST_CONNECTIONS` there is no such time.
"""

from __future__ import annotations

import asyncio
import resource
from itertools import islice

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from train_jobs.tools.serve_metrics import ServeMetrics

LARGEST_HEAD = 16 * 1024  # bytes of a request line with its headers
READ_SECONDS = 10.0  # from the first byte, or the connection, to the end of a request
WRITE_SECONDS = 10.0  # until a client has read a response
CONNECTIONS = 256
MOST_CONNECTIONS = 2048
OTHER_FILES = 256  # descriptors of the model, the log and libraries
GRACE_SECONDS = 1.0  # for the first bytes of a good client
_TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class ConnectionLimits:
    """Open connections that wait for their clients, longest first.

    Args:
        metrics: counts of the server.
    """

    def __init__(self, metrics: ServeMetrics) -> None:
        self.metrics = metrics
        self.open = 0
        self.waiting: dict[LimitedProtocol, float] = {}  # since when, in seconds of the loop's clock

    def make_room(self) -> None:
        """Close the connections that have waited longest, if there are too many."""
        excess = self.open - CONNECTIONS
        crowded = self.open > MOST_CONNECTIONS
        for protocol, since in list(islice(self.waiting.items(), max(excess, 0))):
            if not crowded and protocol.loop.time() - since < GRACE_SECONDS:
                break
            protocol.drop("too many connections")
            crowded = False


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol with time limits; `limited_protocol` sets `limits`."""

    limits: ConnectionLimits
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self.limits.open += 1
        self.limits.metrics.connections.set(self.limits.open)
        self._await_request()
        self.limits.make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.limits.open -= 1
        self.limits.metrics.connections.set(self.limits.open)
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle a part of a request."""
        super().data_received(data)
        if not self._is_reading():
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Wait for the next request of the connection."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()
        elif self._is_reading():
            self._await_request()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, or headers that are too large."""
        self.limits.metrics.requests.labels(400).inc()
        super().send_400_response(msg)
        if self.cycle is not None:  # of a request with an invalid body: a second response would be a bug in the log
            self.cycle.disconnected = True
        self._stop_waiting()

    def pause_writing(self) -> None:
        """Give a client that does not read its response a time limit."""
        super().pause_writing()
        self._close_later()

    def timeout_keep_alive_handler(self) -> None:
        """Close a kept connection without a new request."""
        super().timeout_keep_alive_handler()
        self._close()

    def drop(self, why: str) -> None:
        """Close a connection whose client keeps the server waiting.

        Args:
            why: reason, for the metrics.
        """
        self.limits.metrics.closed.labels(why).inc()
        self._stop_waiting()
        # A connection that was kept after a response is closed silently: 408 would answer the next request.
        if self.cycle is None or not self.cycle.response_started:
            self.transport.write(_TIMEOUT)
        self._close()

    def _is_reading(self) -> bool:
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _await_request(self) -> None:
        self._stop_waiting()
        self.limits.waiting[self] = self.loop.time()
        self._deadline = self.loop.call_later(READ_SECONDS, self.drop, "slow request")

    def _stop_waiting(self) -> None:
        self.limits.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        """Close the connection; a client that does not read the rest of its response gets no further time."""
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._close_later()

    def _close_later(self) -> None:
        self.loop.call_later(WRITE_SECONDS, self._abort_unread)

    def _abort_unread(self) -> None:
        if self.transport.get_write_buffer_size():
            self.limits.metrics.closed.labels("slow reader").inc()
            self.transport.abort()


def allow_descriptors() -> None:
    """Raise the limit of open files, often 1,024, so that it holds for `MOST_CONNECTIONS`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = MOST_CONNECTIONS + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need if hard == resource.RLIM_INFINITY else min(need, hard), hard))


def limited_protocol(limits: ConnectionLimits) -> type[LimitedProtocol]:
    """Return a protocol for uvicorn, which makes one instance for each connection.

    Args:
        limits: shared by the connections of one server.
    """
    return type("ServedProtocol", (LimitedProtocol,), {"limits": limits})
