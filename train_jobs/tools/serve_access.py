"""Access to the local server: its token, and the checks of Host and Origin."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from train_jobs.artifacts.regular_files import open_regular
from train_jobs.config import SpecError
from train_jobs.config.errors import in_shell

TOKEN, TOKEN_FILE = "ORCHESTRATOR_SERVE_TOKEN", "ORCHESTRATOR_SERVE_TOKEN_FILE"
MIN_TOKEN, MAX_TOKEN_FILE = 16, 4096  # characters, bytes
NEW_TOKEN = f"export {TOKEN}=$(openssl rand -hex 32)"


@dataclass(frozen=True)
class Access:
    """Rules of a server; `refusal` applies them to the headers of a request."""

    token: str | None = field(default=None, repr=False)
    """Token that a request must present; None: no token is needed."""
    names: frozenset[str] = frozenset()
    """Host names that clients may use in addition to localhost and IP addresses."""

    def refusal(self, headers: Headers, *, public: bool = False) -> tuple[int, str] | None:
        """Return status and reason if a request is refused, else None.

        Args:
            headers: of the request.
            public: whether the path needs no token.
        """
        # A web page whose name an attacker points to 127.0.0.1 (DNS rebinding) still sends its own name as the host.
        # An IP address cannot be rebound.
        if len(headers.getlist("host")) != 1 or not self._knows(_host(f"//{headers['host']}")):
            return 421, "unknown host; start the server with --allow-host NAME"
        # browsers send the origin with each POST, other clients do not
        for origin in headers.getlist("origin"):
            if urlsplit_or_none(origin) != ("http", headers["host"].lower()):
                return 403, "requests from web pages of other origins are refused"
        if public or self.token is None or self._presented(headers.get("authorization", "")):
            return None
        return 401, "the header 'Authorization: Bearer TOKEN' is missing or wrong"

    def _knows(self, host: str | None) -> bool:
        return host is not None and (host == "localhost" or host in self.names or is_address(host))

    def _presented(self, authorization: str) -> bool:
        assert self.token is not None
        scheme, _, given = authorization.partition(" ")
        # digests have one length, so that the time of the comparison does not depend on that of the token
        one, other = (hashlib.sha256(text.strip().encode(errors="replace")).digest() for text in (given, self.token))
        return hmac.compare_digest(one, other) and scheme.lower() == "bearer"


def read_token(environ: MutableMapping[str, str]) -> str | None:
    """Return the token of the server, and remove it from the environment; None without one.

    Args:
        environ: environment variables of this process.

    Raises:
        SpecError: the token is too short, both variables are set, or other users may read the file.
    """
    text, name = environ.pop(TOKEN, None), environ.get(TOKEN_FILE)
    if text is not None and name:
        raise SpecError(f"{TOKEN} and {TOKEN_FILE} are both set", fix=f"unset {TOKEN}")
    if name:
        text = _read_file(Path(name))
    if text is None:
        return None
    token = text.strip()
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable():
        source = TOKEN_FILE if name else TOKEN
        raise SpecError(f"invalid {source}: need at least {MIN_TOKEN} printable ASCII characters", fix=NEW_TOKEN)
    return token


def _read_file(path: Path) -> str:
    try:
        # checked and read through one descriptor: the name may be replaced between the two
        with open_regular(path) as stream:
            found = os.fstat(stream.fileno())
            if found.st_uid != os.getuid() or found.st_mode & 0o077:
                raise SpecError(
                    f"cannot use {TOKEN_FILE}: other users may read or write {path}", fix=f"chmod 600 {in_shell(path)}"
                )
            return stream.read(MAX_TOKEN_FILE).decode("ascii", errors="replace")
    except OSError as problem:
        raise SpecError(f"cannot read {TOKEN_FILE}: {problem.strerror}", facts={"where": path}) from None


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, not a name."""
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def urlsplit_or_none(origin: str) -> tuple[str, str] | None:
    """Return scheme and authority of an origin; None if it is not a URL."""
    with suppress(ValueError):
        found = urlsplit(origin)
        return found.scheme, found.netloc.lower()
    return None


def _host(url: str) -> str | None:
    with suppress(ValueError):
        return urlsplit(url).hostname
    return None
