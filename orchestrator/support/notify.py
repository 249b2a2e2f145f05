"""Notify a webhook of the end of a run: one POST of a JSON document that Slack and other servers accept.

The address is a secret, since it suffices to post. A spec names the environment variable that holds it, and the
address itself is never stored. Private addresses are refused unless the spec allows them, redirects are not followed,
and of the response only the status is read.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from contextlib import suppress
from functools import partial
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from orchestrator.support.public_address import PrivateAddressError, require_public, require_public_address

TRIES = 3
SECONDS = 10.0  # time limit of one try, whatever the server sends meanwhile
PAUSE_SECONDS = 2.0  # between two tries
LONGEST_REASON = 300  # characters of a warning
NEXT = {"failed": "orchestrator resume", "completed": "orchestrator report"}  # useful next command


def message(
    *, run: str, handle: str, event: str, reason: str | None, step: int | None, steps: int | None
) -> dict[str, Any]:
    """Return the document to post: `text` for people, the other keys for programs.

    Args:
        run: the run's name.
        handle: the run's handle.
        event: completed, failed or diverging.
        reason: reason of the event, if any; `text` has its first line.
        step: last reported step. None: no step was reported.
        steps: steps of the whole run. None: the job counts no steps.
    """
    first = (reason or "").splitlines()[:1]
    where = "" if steps is None else f" at step {step or 0} of {steps}"
    text = f"{run} {event}{where}" + (f": {first[0]}" if first else "")
    return {
        "text": f"{text}\n{NEXT.get(event, 'orchestrator status')} {run}",
        "run": run,
        "handle": handle,
        "event": event,
        "reason": reason,
        "step": step,
        "steps": steps,
    }


def post(url: str, document: dict[str, Any], *, allow_private: bool = False) -> bool:
    """Post the document, with retries; return whether that succeeded. Failures are printed without the address.

    Args:
        url: address of the webhook, a secret.
        document: see `message`.
        allow_private: whether the address may be of this machine or of a private network.
    """
    for left in reversed(range(TRIES)):
        try:
            _post_once(url, document, allow_private)
            return True
        # URLError is an OSError; an invalid URL is a ValueError; an answer that is not HTTP is an HTTPException
        except (OSError, ValueError, http.client.HTTPException) as problem:
            # a warning, never an error: the run has its result, whether the message arrives or not
            reason = _reason(problem).replace(url, "(address)")
            print(f"warning: cannot notify the webhook at {_host(url)}: {reason}", file=sys.stderr)
            if isinstance(getattr(problem, "reason", problem), PrivateAddressError):
                return False  # another try gives the same answer
        if left:
            time.sleep(PAUSE_SECONDS)
    return False


def _reason(problem: Exception) -> str:
    """Return why a try failed, without text of the server: it may have terminal escapes, or 64 KiB."""
    from train_jobs.config.visible import visible

    if isinstance(problem, urllib.error.HTTPError):
        return f"status {problem.code}"
    if isinstance(problem, http.client.HTTPException) and not isinstance(problem, OSError | ValueError):
        return "the response is not valid HTTP"
    return visible(str(problem))[:LONGEST_REASON]


def _post_once(url: str, document: dict[str, Any], allow_private: bool) -> None:
    body, headers = json.dumps(document).encode(), {"Content-Type": "application/json"}
    parts = urlsplit(url)
    if parts.username is not None:  # urllib would take the user for a part of the host
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(url, body, headers, method="POST")
    limit = _TimeLimit(SECONDS)
    handlers = (_NoRedirects(), _Plain(limit, allow_private), _Encrypted(limit, allow_private))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=SECONDS):
            pass
    finally:
        limit.over()


class _TimeLimit:
    """Close the connections of one try after a number of seconds: a time limit of a socket is one of each read."""

    def __init__(self, seconds: float) -> None:
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._close)
        self._timer.daemon = True
        self._timer.start()

    def add(self, one: socket.socket) -> None:
        self._sockets.append(one)

    def over(self) -> None:
        self._timer.cancel()

    def _close(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _Checked(http.client.HTTPConnection):
    """A connection that has a time limit, and whose peer must be public unless `anywhere` is set."""

    def __init__(self, host: str, *, limit: _TimeLimit, anywhere: bool, **more: Any) -> None:
        super().__init__(host, **more)
        self._limit, self._anywhere = limit, anywhere

    def connect(self) -> None:
        if not self._anywhere:
            require_public(self.host, self.port)
        super().connect()
        self._limit.add(self.sock)
        # the name may have another address by now: nothing is sent to one that is private
        if not self._anywhere:
            require_public_address(self.sock.getpeername()[0])


class _CheckedTls(http.client.HTTPSConnection, _Checked):
    """The same, encrypted; Python's class connects with the one above before it begins to encrypt."""

    def connect(self) -> None:
        super().connect()
        self._limit.add(self.sock)


class _Plain(urllib.request.HTTPHandler):
    def __init__(self, limit: _TimeLimit, allow_private: bool) -> None:
        super().__init__()
        self._limit, self._allow_private = limit, allow_private

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        anywhere = _checked_for_proxy(req, self._allow_private)
        return self.do_open(partial(_Checked, limit=self._limit, anywhere=anywhere), req)


class _Encrypted(urllib.request.HTTPSHandler):
    def __init__(self, limit: _TimeLimit, allow_private: bool) -> None:
        super().__init__()
        self._limit, self._allow_private = limit, allow_private

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        anywhere = _checked_for_proxy(req, self._allow_private)
        return self.do_open(partial(_CheckedTls, limit=self._limit, anywhere=anywhere), req)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: they may lead to a private address, and turn the POST into a GET without the message."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        raise OSError(f"it redirects (status {code}); set the final address")


def _checked_for_proxy(request: urllib.request.Request, allow_private: bool) -> bool:
    """Return whether the connection may have any address: it is that of the user's proxy, or the user allows it.

    With a proxy the host of the webhook is checked here, unless only the proxy can resolve it.

    Raises:
        PrivateAddressError: the host behind the proxy is private.
    """
    if allow_private or not (request.has_proxy() or getattr(request, "_tunnel_host", None)):
        return allow_private
    parts = urlsplit(request.full_url)
    try:
        require_public(unquote(parts.hostname or ""), parts.port or 0)
    except PrivateAddressError:
        raise
    except OSError:
        pass
    return True


def _host(url: str) -> str | None:
    with suppress(ValueError):
        return urlsplit(url).hostname
    return None
