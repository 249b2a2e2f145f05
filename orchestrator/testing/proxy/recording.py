"""What was asked, without what is secret in it."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qsl

from orchestrator.testing.proxy.messages import Call

REDACTED = "REDACTED"
SECRET_FIELDS = {"access_token", "assertion", "client_assertion", "client_secret", "key", "password", "refresh_token"}
SIGNATURE = re.compile(r"(?<=[?&]sig=)[^&\s\"']+")


@dataclass(frozen=True)
class Recorded:
    """One request and the status that it was answered with."""

    method: str
    host: str
    path: str
    query: dict[str, str]
    """A SAS's signature is redacted."""
    body: Any
    """The JSON document or the form that was sent, what is secret in it redacted; None: anything else, or nothing."""
    size: int
    """Bytes of the body."""
    status: int | None
    """None: the connection was reset."""

    @property
    def line(self) -> str:
        """`PUT management.azure.com/subscriptions/...`."""
        return f"{self.method} {self.host}{self.path}"


class Recorder:
    """All requests in the order in which they were answered."""

    def __init__(self) -> None:
        self._calls: list[Recorded] = []
        self._lock = threading.Lock()

    def add(self, call: Call, status: int | None) -> None:
        query = {name: REDACTED if name == "sig" else value for name, value in call.query.items()}
        found = Recorded(call.method, call.host, call.path, query, _document(call), len(call.body), status)
        with self._lock:
            self._calls.append(found)

    def find(self, match: str = "*") -> list[Recorded]:
        """Those whose line fits a pattern of `fnmatch`."""
        with self._lock:
            return [call for call in self._calls if fnmatchcase(call.line, match)]


def _document(call: Call) -> Any:
    kind = call.headers.get("content-type", "")
    if not call.body:
        return None
    if "x-www-form-urlencoded" in kind:
        return redacted(dict(parse_qsl(call.body.decode())))
    if "json" not in kind:
        return None
    try:
        return redacted(json.loads(call.body))
    except ValueError:
        return None


def redacted(document: Any) -> Any:
    """The document without tokens, keys and the signatures of SAS."""
    if isinstance(document, dict):
        return {name: REDACTED if name in SECRET_FIELDS else redacted(value) for name, value in document.items()}
    if isinstance(document, list):
        return [redacted(value) for value in document]
    return SIGNATURE.sub(REDACTED, document) if isinstance(document, str) else document
