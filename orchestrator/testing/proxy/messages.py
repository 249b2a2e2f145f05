"""Requests, replies, errors and routes, which all services of the double share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

Handler = Callable[..., "Reply"]
USUAL_ERRORS = {
    401: ("InvalidAuthenticationToken", "The access token has expired."),
    403: ("AuthorizationFailed", "The client does not have authorization to perform this action."),
    404: ("ResourceNotFound", "The resource was not found."),
    409: ("Conflict", "There is a conflict with the state of the resource."),
    429: ("TooManyRequests", "The number of requests is over the limit."),
    500: ("InternalServerError", "An internal error occurred."),
    503: ("ServiceUnavailable", "The service is not available at this moment."),
}
"""Status -> code and message."""


@dataclass(frozen=True)
class Call:
    """One request."""

    method: str
    host: str
    path: str
    """Decoded, without the query."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""

    @classmethod
    def parse(cls, method: str, host: str, target: str, headers: Mapping[str, str], body: bytes) -> Call:
        """Return the call of a request.

        Args:
            method: HTTP method.
            host: name of the host.
            target: of the request line, `/path?query`.
            headers: with names in lower case.
            body: content.
        """
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        return cls(method, host, unquote(parts.path), query, headers, body)

    @property
    def json(self) -> Any:
        """The JSON document in the body.

        Raises:
            Refusal: the body is not JSON.
        """
        try:
            return json.loads(self.body)
        except ValueError:
            raise Refusal(400, "InvalidRequestContent", "The request content was invalid: no JSON document.") from None

    @property
    def line(self) -> str:
        """`PUT management.azure.com/subscriptions/...`, which patterns of faults and recorded requests match."""
        return f"{self.method} {self.host}{self.path}"

    def page(self, items: Sequence[Any], size: int, parameter: str = "$skip") -> tuple[list[Any], str | None]:
        """Return one page of a list and the URL of the next page, None after the last.

        Args:
            items: the whole list.
            size: items on a page.
            parameter: query parameter with the index of the first item.
        """
        shown, following = page(items, size, self.query.get(parameter))
        query = urlencode({**self.query, parameter: following})
        return shown, f"https://{self.host}{self.path}?{query}" if following else None


def page(items: Sequence[Any], size: int, token: str | None) -> tuple[list[Any], str | None]:
    """Return one page of a list and the token of the next page, None after the last.

    Args:
        items: the whole list.
        size: items on a page.
        token: index of the first item. None: the first page.
    """
    first = int(token or 0)
    last = first + size
    return list(items[first:last]), str(last) if last < len(items) else None


@dataclass
class Reply:
    """One answer."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
        """Return a JSON document."""
        return cls(status, json.dumps(document).encode(), {"Content-Type": "application/json", **(headers or {})})

    @classmethod
    def xml(cls, text: str, status: int = 200) -> Reply:
        """Return an XML document, as the blob service does."""
        body = b'<?xml version="1.0" encoding="utf-8"?>' + text.encode()
        return cls(status, body, {"Content-Type": "application/xml"})


class Refusal(Exception):  # noqa: N818
    """An error that a service answers."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message, self.headers = status, code, message, headers or {}

    @classmethod
    def usual(
        cls, status: int, code: str | None = None, message: str | None = None, retry_after: float | None = None
    ) -> Refusal:
        """Return an error with Azure's usual code and message for its status.

        Args:
            status: HTTP status.
            code: replaces the usual code.
            message: replaces the usual message.
            retry_after: seconds in the header `Retry-After`, or in `retry-after-ms` if less than one.
        """
        usual = USUAL_ERRORS.get(status, ("Error", f"The service answers {status}."))
        headers = {}
        if retry_after is not None:
            seconds = {"Retry-After": str(round(retry_after))}  # azure-core reads it first, and it has no fractions
            headers = seconds if retry_after >= 1 else {"retry-after-ms": str(round(1000 * retry_after))}
        if status == 401:
            headers["WWW-Authenticate"] = (
                'Bearer error="invalid_token", error_description="The access token has expired."'
            )
        return cls(status, code or usual[0], message or usual[1], headers)

    def reply(self, call: Call) -> Reply:
        """Return the error in the format of the service that was called."""
        if ".blob." in call.host:
            text = f"<Error><Code>{self.code}</Code><Message>{escape(self.message)}</Message></Error>"
            reply = Reply.xml(text, self.status)
            reply.headers["x-ms-error-code"] = self.code
        else:
            reply = Reply.json({"error": {"code": self.code, "message": self.message}}, self.status)
        reply.headers.update(self.headers)
        return reply


class Routes(list[tuple[str, re.Pattern[str], Handler]]):
    """Method and path -> handler(service, call, **parts of the path)."""

    def add(self, method: str, template: str) -> Callable[[Handler], Handler]:
        """Return a decorator that registers a handler.

        Args:
            method: HTTP method.
            template: path; `{name}` matches one segment, `{name:PATTERN}` a regular expression.
        """
        pattern = re.sub(r"{(\w+)(?::([^}]*))?}", lambda part: f"(?P<{part[1]}>{part[2] or '[^/]+'})", template)

        def register(handler: Handler) -> Handler:
            self.append((method, re.compile(pattern), handler))
            return handler

        return register

    def answer(self, service: Any, call: Call, path: str) -> Reply:
        """Call the first handler whose template matches.

        Args:
            service: first argument of the handler.
            call: the call.
            path: its path below the service.

        Raises:
            Refusal: no template does.
        """
        for method, pattern, handler in self:
            if method == call.method and (matched := pattern.fullmatch(path)):
                return handler(service, call, **matched.groupdict())
        raise Refusal(404, "DoubleHasNoSuchRoute", f"the double does not know {call.line}")


def parse_filter(text: str, clause: re.Pattern[str], code: str) -> list[dict[str, str]]:
    """Parse a filter of clauses joined by `and`.

    Args:
        text: the filter; empty: no clauses.
        clause: pattern of one clause, whose groups are returned.
        code: error code of a filter that the double cannot read.

    Raises:
        Refusal: a clause does not match.
    """
    clauses = []
    for part in re.split(r"\s+and\s+", text, flags=re.IGNORECASE) if text.strip() else ():
        if (matched := clause.fullmatch(part)) is None:
            raise Refusal(400, code, f"the double cannot read this filter: {part}")
        clauses.append(matched.groupdict())
    return clauses
