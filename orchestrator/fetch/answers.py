"""What a server's answer means: here it is, ask again, or do not."""

from __future__ import annotations

import email.utils
import re
import time
from typing import Any

_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_MISSING = frozenset({404, 410})
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


class Retry(Exception):  # noqa: N818
    """Worth asking again, after so many seconds if the server said so."""

    def __init__(self, why: str, wait: float | None = None) -> None:
        super().__init__(why)
        self.wait = wait


class Refused(Exception):  # noqa: N818
    """This mirror does not have it, or does not give it."""

    def __init__(self, why: str, *, missing: bool = False) -> None:
        super().__init__(why)
        self.missing = missing


def check_status(response: Any) -> None:
    """Lets pass what brings a file.

    Raises:
        Retry: the server is busy or broken.
        Refused: any other answer.
    """
    status = response.status_code
    if status in {200, 206}:
        return
    said = f"it answers {status} {response.reason}"
    if status in _AGAIN:
        raise Retry(said, _retry_after(response))
    raise Refused(said, missing=status in _MISSING)


def check_content(response: Any) -> None:
    """Lets pass what may be a file of data.

    Raises:
        Refused: a web page, as of a proxy that wants a login, or a packed body, whose bytes are not the file's.
    """
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind in {"text/html", "application/xhtml+xml"}:
        raise Refused("it sends a web page instead of the file")
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Refused(f"it sends the file packed ({response.headers['Content-Encoding']})")


def total_bytes(response: Any, have: int) -> int | None:
    """Size of the whole file, of which `have` bytes are here; None if the server does not say."""
    if match := _RANGE.fullmatch(response.headers.get("Content-Range", "")):
        return None if match[2] == "*" else int(match[2])
    length = response.headers.get("Content-Length", "")
    return have + int(length) if length.isdecimal() else None


def range_start(response: Any) -> int | None:
    """Where the part of a file begins that is sent."""
    match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    return int(match[1]) if match and match[1] else None


def _retry_after(response: Any) -> float | None:
    text = response.headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(email.utils.parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError):
        return None
