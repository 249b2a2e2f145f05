"""Files over HTTP: resumed by range, tried again, taken from the next mirror, and never believed unchecked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

import requests
import urllib3

from orchestrator.fetch.answers import Refused, Retry, check_content, check_status, total_bytes
from orchestrator.fetch.checked_file import Fetched, Notice, Progress, Remote, silent, verify
from orchestrator.fetch.partial import Known, Partial
from orchestrator.support.errors import ConflictError, DataError, NotFoundError, ServiceError, UserError
from orchestrator.support.version import __version__
from train_jobs.config.names import set_aside

BLOCK = 1 << 18
MOST_TEXT = 1 << 24  # bytes of a list of checksums: more is none
Result = TypeVar("Result")


class Patience(NamedTuple):
    """How long a server is waited for."""

    connect: float = 15.0
    """Seconds for a connection."""
    read: float = 60.0
    """Seconds without a byte."""
    tries: int = 6
    """How often in a row nothing new may come."""
    pause: float = 1.0
    """Seconds before the second try; twice as long before each further one."""
    longest: float = 600.0
    """Seconds that a server may ask us to wait (Retry-After)."""


class Client:
    """Gets files from the first of several mirrors that gives them.

    Args:
        mirrors: addresses, the best one first.
        patience: with servers.
        progress: told about every file as it grows.
        notice: told why something is tried again.
    """

    def __init__(self, mirrors: Sequence[str], patience: Patience, progress: Progress, notice: Notice = silent) -> None:
        self.mirrors = [mirror.rstrip("/") for mirror in mirrors]
        self._patience = patience
        self._progress = progress
        self._notice = notice
        self._session = requests.Session()  # proxies, certificates and .netrc as the environment has them
        # Nothing on the way may pack the file: its bytes are counted and hashed as published.
        self._session.headers.update({"User-Agent": f"bert-orchestrator/{__version__}", "Accept-Encoding": "identity"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def get(self, remote: Remote, target: Path) -> Fetched:
        """Fetches a file; it appears when it is whole and verified.

        Raises:
            UserError: no mirror gives it, what they give is something else, or it cannot be written.
        """
        if target.exists():
            return _there(remote, target)
        with Partial.open(target) as partial:
            checked = self._first_of(remote.path, lambda url: self._whole(url, remote, partial))
            partial.place()
        return Fetched(target, target.stat().st_size, new=True, checked=checked)

    def text(self, path: str) -> str:
        """A small file: a list of checksums.

        Raises:
            UserError: as of `get`.
        """
        return self._first_of(path, lambda url: self._insist(url, lambda: self._small(url)))

    def _first_of(self, path: str, get: Callable[[str], Result]) -> Result:
        """What the first mirror gives that does."""
        refusals: dict[str, Refused] = {}
        wrong: DataError | None = None
        for mirror in self.mirrors:
            try:
                return get(f"{mirror}/{path}")
            except Refused as problem:
                refusals[mirror] = problem
            except DataError as problem:
                problem.facts["where"] = f"{mirror}/{path}"
                wrong = problem
        raise wrong or _failed(path, refusals)

    def _whole(self, url: str, remote: Remote, partial: Partial) -> str:
        """The file in full; where what was gone on with does not verify, it is fetched once more from its beginning."""
        if self._insist(url, lambda: self._grow(url, remote, partial), partial):
            try:
                return verify(partial.path, remote)
            except DataError:
                partial.clear()
                self._insist(url, lambda: self._grow(url, remote, partial), partial)
        try:
            return verify(partial.path, remote)
        except DataError:
            partial.clear()
            raise

    def _insist(self, url: str, step: Callable[[], Result], partial: Partial | None = None) -> Result:
        """Takes a step again while more of the file comes, and a few times when nothing does."""
        failed, most = 0, partial.size if partial else 0
        while True:
            try:
                return step()
            except Retry as problem:
                if partial is not None and partial.size > most:
                    failed, most = 0, partial.size
                failed += 1
                if failed >= self._patience.tries:
                    raise Refused(f"{problem}, {failed} times") from None
                if problem.wait is not None and problem.wait > self._patience.longest:
                    raise Refused(f"{problem}; it asks to wait {problem.wait:.0f} s") from None
                wait = self._patience.pause * 2 ** (failed - 1) if problem.wait is None else problem.wait
                self._notice(f"{urlsplit(url).netloc}: {problem}; trying again in {wait:.0f} s")
                time.sleep(wait)

    def _grow(self, url: str, remote: Remote, partial: Partial) -> bool:
        """One request for what is still missing; returns whether it was added to what there was before.

        Raises:
            Retry: it broke off; what came is kept.
            Refused: there is no use in asking again.
        """
        headers = partial.resume(url, checked=remote.checksum is not None)
        with self._request(url, headers) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                if partial.size == total_bytes(response):
                    return True  # all of it is there already
                partial.clear()
                raise Retry("the file has become another one")
            check_status(response)
            check_content(response)
            now = Known.of(url, response)
            resumed = bool(response.status_code == requests.codes.partial_content)
            if resumed and not partial.goes_on(response, now):
                partial.clear()
                raise Retry("the file has become another one")
            if not resumed:
                partial.clear()
            total = total_bytes(response)
            if remote.size is not None and total is not None and total != remote.size:
                raise Refused(f"its file has {total} bytes instead of {remote.size}")
            partial.remember(now)
            self._append(response, remote.name, partial.stream, partial.size, total)
            return resumed

    def _append(self, response: Any, name: str, stream: IO[bytes], done: int, total: int | None) -> None:
        self._progress(name, done, total)
        while block := _read(response, BLOCK):
            stream.write(block)
            done += len(block)
            self._progress(name, done, total)
        if total is not None and done < total:
            raise Retry(f"it broke off at byte {done} of {total}")

    def _small(self, url: str) -> str:
        with self._request(url, {}) as response:
            check_status(response)
            check_content(response)
            body = b""
            while (block := _read(response, BLOCK)) and len(body) < MOST_TEXT:
                body += block
        if not body.strip() or body.lstrip().startswith(b"<"):
            raise Refused("it sends " + ("a web page" if body.strip() else "nothing"))
        return body.decode("utf-8", errors="replace")

    def _request(self, url: str, headers: dict[str, str]) -> Any:
        timeout = (self._patience.connect, self._patience.read)
        try:
            return self._session.get(url, headers=headers, stream=True, timeout=timeout)
        except (requests.exceptions.SSLError, requests.exceptions.ProxyError) as problem:
            raise Refused(_why(problem)) from None
        except (requests.ConnectionError, requests.Timeout) as problem:
            raise Retry(_why(problem)) from None
        except (requests.RequestException, ValueError) as problem:  # an address that is none, redirects without end
            raise Refused(_why(problem)) from None


def _read(response: Any, size: int) -> bytes:
    """What has come, at least a byte: nothing that came is lost when the server falls silent. Empty at the end."""
    try:
        return bytes(response.raw.read1(size))
    except (urllib3.exceptions.HTTPError, OSError) as problem:
        raise Retry(_why(problem)) from None


def _there(remote: Remote, target: Path) -> Fetched:
    try:
        return Fetched(target, target.stat().st_size, new=False, checked=verify(target, remote))
    except DataError as problem:
        facts = {"have": problem.message, **problem.facts}
        raise ConflictError(f"{target} is there, and is something else", facts=facts, fix=set_aside(target)) from None


def _why(problem: BaseException) -> str:
    """What is at the bottom of an error of the network, in one line."""
    text = str(problem)
    reason = getattr(problem.args[0] if problem.args else None, "reason", None)
    return str(reason or text or type(problem).__name__).partition("\n")[0]


def _failed(path: str, refusals: dict[str, Refused]) -> UserError:
    facts = {urlsplit(mirror).netloc or mirror: str(problem) for mirror, problem in refusals.items()}
    if all(problem.missing for problem in refusals.values()):
        return NotFoundError(f"{path} is not there", facts=facts, fix="look for its name at the addresses above")
    proxies = requests.utils.get_environ_proxies(next(iter(refusals)))
    if proxy := proxies.get("https") or proxies.get("http"):
        facts["proxy"] = str(urlsplit(proxy).hostname)  # without its password
    name = path.rpartition("/")[2]
    return ServiceError(
        f"{name} cannot be fetched",
        facts=facts,
        fix="the same command again, which goes on from where it stopped; or --mirror URL",
    )
