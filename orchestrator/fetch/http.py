"""Files over HTTP: resumed by range, retried, taken from the next mirror, and always verified."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

import requests
import urllib3

from orchestrator.fetch.remote_file import (
    Fetched,
    Partial,
    Remote,
    Version,
    conflict_at,
    content_range,
    delete_facts,
    public_address,
    verify,
)
from orchestrator.support.errors import DataError, NotFoundError, ServiceError, UserError
from orchestrator.support.version import __version__

BLOCK = 1 << 18  # bytes in one read
MAX_TEXT_BYTES = 1 << 24  # no list of checksums is longer
BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})  # statuses after which a retry may succeed
MISSING = frozenset({404, 410})
Result = TypeVar("Result")


def ignore(*facts: object) -> None:
    """Do nothing."""


class Transfer(NamedTuple):
    """Settings of transfers: timeouts, retries, and functions to call."""

    connect: float = 15.0
    """Seconds to wait for a connection."""
    read: float = 60.0
    """Seconds to wait for the next byte."""
    tries: int = 6
    """Tries in a row that bring nothing new."""
    pause: float = 1.0
    """Seconds before the second try; doubled before each further one."""
    longest: float = 600.0
    """Longest pause that a server may ask for (Retry-After), in seconds."""
    progress: Callable[[str, int, int | None], None] = ignore
    """Called as a file arrives: name, bytes so far, bytes in total."""
    notice: Callable[[str], None] = ignore
    """Called with the reason why a request is retried."""


class Retry(Exception):  # noqa: N818
    """A failure after which a retry may succeed.

    Args:
        why: the reason, for messages.
        wait: seconds that the server asks to wait; None: it names no time.
    """

    def __init__(self, why: str, wait: float | None = None) -> None:
        super().__init__(why)
        self.wait = wait


class Refused(Exception):  # noqa: N818
    """A failure that rules out a mirror: it does not have the file, or does not send it.

    Args:
        why: the reason, for messages.
        missing: the mirror answered that it does not have the file.
    """

    def __init__(self, why: str, *, missing: bool = False) -> None:
        super().__init__(why)
        self.missing = missing


class Client:
    """Gets files from the first of several mirrors that has them.

    Args:
        mirrors: addresses, the preferred one first.
        transfer: settings.
    """

    def __init__(self, mirrors: Sequence[str], transfer: Transfer) -> None:
        self.mirrors = [mirror.rstrip("/") for mirror in mirrors]
        self.transfer = transfer
        self._session = requests.Session()  # takes proxies, certificates and .netrc from the environment
        # No proxy may compress the file: its bytes are counted and hashed as published.
        self._session.headers.update({"User-Agent": f"bert-orchestrator/{__version__}", "Accept-Encoding": "identity"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def get(self, remote: Remote, target: Path) -> Fetched:
        """Fetch a file, which appears when it is complete and verified.

        Raises:
            UserError: no mirror has the file, its content is wrong, or it cannot be written.
        """
        if target.exists():
            try:
                checked = verify(target, remote)
            except DataError as problem:
                raise conflict_at(target, problem) from None
            delete_facts(target)
            return Fetched(target, target.stat().st_size, new=False, checked=checked)
        with Partial.open(target) as partial:
            checked = self._try_mirrors(remote.path, lambda url: self._download_verified(url, remote, partial))
            partial.place()
        return Fetched(target, target.stat().st_size, new=True, checked=checked)

    def text(self, path: str) -> str:
        """Return the content of a small file, such as a list of checksums.

        Raises:
            UserError: as `get`.
        """
        return self._try_mirrors(path, lambda url: self._with_retries(url, lambda: self._read_text(url)))

    def _try_mirrors(self, path: str, get: Callable[[str], Result]) -> Result:
        """Return what the first mirror gives that has the file."""
        refusals: dict[str, Refused] = {}
        wrong: DataError | None = None
        for mirror in self.mirrors:
            try:
                return get(f"{mirror}/{path}")
            except Refused as problem:
                refusals[mirror] = problem
            except DataError as problem:
                problem.facts["where"] = public_address(f"{mirror}/{path}")
                wrong = problem
        raise wrong or _failed(path, refusals)

    def _download_verified(self, url: str, remote: Remote, partial: Partial, *, retry: bool = True) -> str:
        """Fetch a file in full; if a resumed one does not verify, fetch it again from its beginning."""
        resumed = self._with_retries(url, lambda: self._download_missing(url, remote, partial), partial)
        try:
            return verify(partial.path, remote)
        except DataError:
            # A resumed file may consist of parts of two versions: one fresh download decides whether the mirror is
            # wrong. Wrong bytes are never kept, since the next call would resume them.
            partial.clear()
            if not (resumed and retry):
                raise
        return self._download_verified(url, remote, partial, retry=False)

    def _with_retries(self, url: str, step: Callable[[], Result], partial: Partial | None = None) -> Result:
        """Repeat a step as long as more of the file arrives, and a few times when nothing does."""
        failed, most = 0, partial.size if partial else 0
        while True:
            try:
                return step()
            except Retry as problem:
                # Progress resets the count: a connection that breaks every gigabyte must not end a download of 20 GB.
                if partial is not None and partial.size > most:
                    failed, most = 0, partial.size
                failed += 1
                if failed >= self.transfer.tries:
                    raise Refused(f"{problem}, {failed} times") from None
                if problem.wait is not None and problem.wait > self.transfer.longest:
                    raise Refused(f"{problem}; it asks to wait {problem.wait:.0f} s") from None
                wait = self.transfer.pause * 2 ** (failed - 1) if problem.wait is None else problem.wait
                self.transfer.notice(f"{_host(url)}: {problem}; trying again in {wait:.0f} s")
                time.sleep(wait)

    def _download_missing(self, url: str, remote: Remote, partial: Partial) -> bool:
        """Request the missing bytes once; return whether they continued earlier ones.

        Raises:
            Retry: the transfer was interrupted; its bytes are kept.
            Refused: another request would fail too.
        """
        headers = partial.resume(url, checked=remote.checksum is not None)
        with self._request(url, headers) as response:
            _, total = content_range(response)
            unsatisfiable = response.status_code == requests.codes.requested_range_not_satisfiable
            if unsatisfiable and partial.size == total:
                return True  # 416: all bytes arrived before, and the process was killed before the rename
            if not unsatisfiable:
                _check(response)
            version = Version.from_response(url, response)
            resumed = bool(response.status_code == requests.codes.partial_content)
            if unsatisfiable or (resumed and not partial.continued_by(response, version)):
                partial.clear()
                raise Retry("the file has changed")
            if not resumed:  # 200: the server sends the whole file, in spite of the range
                partial.clear()
            # before the transfer: a mirror with another file should not cost hours
            if remote.size is not None and total is not None and total != remote.size:
                raise Refused(f"its file has {total} bytes instead of {remote.size}")
            partial.remember(version)  # before the first byte, or a kill would leave bytes of an unknown version
            done = partial.size
            self.transfer.progress(remote.name, done, total)
            while block := _read(response):
                partial.stream.write(block)
                done += len(block)
                self.transfer.progress(remote.name, done, total)
            if total is not None and done < total:  # a closed connection looks like the end of the body
                raise Retry(f"the transfer stopped at byte {done} of {total}")
            return resumed

    def _read_text(self, url: str) -> str:
        with self._request(url, {}) as response:
            _check(response)
            body = b""
            while (block := _read(response)) and len(body) < MAX_TEXT_BYTES:
                body += block
        if not body.strip() or body.lstrip().startswith(b"<"):
            raise Refused("it sends " + ("a web page" if body.strip() else "nothing"))
        return body.decode("utf-8", errors="replace")

    def _request(self, url: str, headers: dict[str, str]) -> Any:
        timeout = (self.transfer.connect, self.transfer.read)
        try:
            return self._session.get(url, headers=headers, stream=True, timeout=timeout)
        except (requests.exceptions.SSLError, requests.exceptions.ProxyError) as problem:  # are ConnectionErrors too
            raise Refused(_why(problem)) from None
        except (requests.ConnectionError, requests.Timeout) as problem:
            raise Retry(_why(problem)) from None
        except (requests.RequestException, ValueError) as problem:  # not an address, or endless redirects
            raise Refused(_why(problem).replace(url, public_address(url))) from None


def _check(response: Any) -> None:
    """Accept only responses that carry a file.

    Raises:
        Retry: the server is busy or broken.
        Refused: any other status; a web page, such as a proxy's login; or a compressed body, whose bytes are not the
            file's.
    """
    status = response.status_code
    if status not in {200, 206}:
        why = f"it answers {status} {response.reason}"
        raise Retry(why, _retry_after(response)) if status in BUSY else Refused(why, missing=status in MISSING)
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind in {"text/html", "application/xhtml+xml"}:
        raise Refused("it sends a web page instead of the file")
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Refused(f"it sends the file compressed ({response.headers['Content-Encoding']})")


def _retry_after(response: Any) -> float | None:
    """Return the seconds that a server asks to wait, by number or date; None if it names no valid time."""
    with suppress(urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
        return urllib3.Retry().get_retry_after(response)
    return None


def _read(response: Any) -> bytes:
    """Return the bytes that have arrived, at least one; empty at the end.

    `read` would wait for a full block, and lose its bytes if the server stalls in the middle of it.
    """
    try:
        return bytes(response.raw.read1(BLOCK))
    except (urllib3.exceptions.HTTPError, OSError) as problem:
        raise Retry(_why(problem)) from None


def _host(url: str) -> str:
    """Return host and port of an address."""
    return public_address(url).rpartition("://")[2].partition("/")[0]


def _why(problem: BaseException) -> str:
    """Return the innermost reason of a network error, in one line."""
    reason = getattr(problem.args[0] if problem.args else None, "reason", None)
    return str(reason or str(problem) or type(problem).__name__).partition("\n")[0]


def _failed(path: str, refusals: dict[str, Refused]) -> UserError:
    facts = {_host(mirror): str(problem) for mirror, problem in refusals.items()}
    if all(problem.missing for problem in refusals.values()):
        return NotFoundError(
            f"cannot fetch {path}: no mirror has it", facts=facts, fix="look for its name at the addresses above"
        )
    proxies = requests.utils.get_environ_proxies(next(iter(refusals)))
    if proxy := proxies.get("https") or proxies.get("http"):
        facts["proxy"] = str(urlsplit(proxy).hostname)  # without its password
    return ServiceError(
        f"cannot fetch {path.rpartition('/')[2]}: every mirror failed",
        facts=facts,
        fix="run the same command again, which resumes where it stopped; or --mirror URL",
    )
