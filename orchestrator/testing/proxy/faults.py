"""What goes wrong on request: by the line of a call, so many times, at one of four moments."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from orchestrator.testing.proxy.messages import Call, Refusal

CODES = {
    401: ("InvalidAuthenticationToken", "The access token has expired."),
    403: ("AuthorizationFailed", "The client does not have authorization to perform this action."),
    404: ("ResourceNotFound", "The resource was not found."),
    409: ("Conflict", "There is a conflict with the state of the resource."),
    429: ("TooManyRequests", "The number of requests is over the limit."),
    500: ("InternalServerError", "An internal error occurred."),
    503: ("ServiceUnavailable", "The service is not available at this moment."),
}


class Moment(StrEnum):
    """When a fault strikes."""

    ANSWER = "answer"
    """Nothing is done; an error is answered."""
    CONNECTION = "connection"
    """The connection is reset before anything is read."""
    UPLOAD = "upload"
    """It is reset when half of the body has come in; nothing is done."""
    REPLY = "reply"
    """All is done; the connection is reset in the place of the answer."""


@dataclass
class Fault:
    """One thing that goes wrong."""

    match: str
    moment: Moment
    times: int
    refusal: Refusal | None = None


class Faults:
    """Faults that wait for their calls."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._waiting.append(fault)

    def take(self, call: Call) -> Fault | None:
        """The first fault that waits for such a call; it has struck once more then."""
        with self._lock:
            for fault in self._waiting:
                if fault.times and fnmatchcase(call.line, fault.match):
                    fault.times -= 1
                    return fault
        return None

    @property
    def left(self) -> list[str]:
        """Matches of faults that did not strike as often as they should; empty at the end of a test that means it."""
        with self._lock:
            return [fault.match for fault in self._waiting if fault.times]

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()


def refusal(
    status: int, code: str | None = None, message: str | None = None, retry_after: float | None = None
) -> Refusal:
    """An error of that status; of the usual ones the code and message are known."""
    usual = CODES.get(status, ("Error", f"The service answers {status}."))
    headers = {}
    if retry_after is not None:
        whole = {"Retry-After": str(round(retry_after))}  # clients look at this first, and it has no fractions
        headers = whole if retry_after >= 1 else {"retry-after-ms": str(round(1000 * retry_after))}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer error="invalid_token", error_description="The access token has expired."'
    return Refusal(status, code or usual[0], message or usual[1], headers)
