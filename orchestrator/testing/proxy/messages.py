"""What comes in, what goes out, and the errors of the services."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape


@dataclass(frozen=True)
class Call:
    """One request."""

    method: str
    host: str
    path: str
    """Percent signs resolved, without the query."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""

    @classmethod
    def of(cls, method: str, host: str, target: str, headers: Mapping[str, str], body: bytes) -> Call:
        """From a request line's target, `/path?query`."""
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        return cls(method, host, unquote(parts.path), query, headers, body)

    @property
    def json(self) -> Any:
        """The body's document.

        Raises:
            Refusal: it is none.
        """
        try:
            return json.loads(self.body)
        except ValueError:
            raise Refusal(400, "InvalidRequestContent", "The request content was invalid: no JSON document.") from None

    @property
    def line(self) -> str:
        """`PUT management.azure.com/subscriptions/...`, what faults are matched with."""
        return f"{self.method} {self.host}{self.path}"


@dataclass
class Reply:
    """One answer."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, document: object, status: int = 200, **headers: str) -> Reply:
        """A JSON document; of header names, given as arguments, `_` stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(status, json.dumps(document).encode(), {"Content-Type": "application/json", **named})

    @classmethod
    def xml(cls, text: str, status: int = 200, **headers: str) -> Reply:
        """The blob service's form of a document."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = b'<?xml version="1.0" encoding="utf-8"?>' + text.encode()
        return cls(status, body, {"Content-Type": "application/xml", **named})


class Refusal(Exception):  # noqa: N818
    """A service says no."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})

    def reply(self, call: Call) -> Reply:
        """In the form of the service that was asked."""
        if ".blob." in call.host:
            text = f"<Error><Code>{self.code}</Code><Message>{escape(self.message)}</Message></Error>"
            found = Reply.xml(text, self.status)
            found.headers["x-ms-error-code"] = self.code
        else:
            found = Reply.json({"error": {"code": self.code, "message": self.message}}, self.status)
        found.headers.update(self.headers)
        return found
