"""Which function answers which path."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from orchestrator.testing.proxy.messages import Call, Refusal, Reply

Service = TypeVar("Service")
Handler = Callable[..., Reply]


class Routes(Generic[Service]):
    """`computes/{name}` with a method -> handler(service, call, name=...)."""

    def __init__(self) -> None:
        self._table: list[tuple[str, re.Pattern[str], Handler]] = []

    @classmethod
    def joined(cls, *parts: Routes[Service]) -> Routes[Service]:
        """The routes of all parts, in their order."""
        found = cls()
        found._table = [route for part in parts for route in part._table]
        return found

    def add(self, method: str, template: str) -> Callable[[Handler], Handler]:
        """A decorator; a name in braces is one part of the path, `{name:path}` all that is left of it."""
        escaped = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
        pattern = re.sub(r"{(\w+)(:path)?}", lambda found: _group(found[1], bool(found[2])), escaped)

        def register(handler: Handler) -> Handler:
            self._table.append((method, re.compile(pattern), handler))
            return handler

        return register

    def answer(self, service: Service, call: Call, path: str, **more: Any) -> Reply:
        """Calls the first handler whose template fits.

        Raises:
            Refusal: there is none.
        """
        for method, pattern, handler in self._table:
            if method == call.method and (found := pattern.fullmatch(path)):
                return handler(service, call, **found.groupdict(), **more)
        raise Refusal(404, "DoubleHasNoSuchRoute", f"the double does not know {call.line}")


def _group(name: str, rest: bool) -> str:
    return f"(?P<{name}>{'.*' if rest else '[^/]+'})"
