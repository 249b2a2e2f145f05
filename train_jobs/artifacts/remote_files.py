"""Files of object stores by URL, such as `s3://bucket/books/a.txt`, read in ranges through fsspec.

The packages `s3fs`, `gcsfs` and `adlfs` (extra `remote`) know the services; they find credentials in the environment
and repeat failed requests. A file has no copy on a disk. Its size and version come from the listing of the service, so
a plan needs neither to read its content nor to trust its name. `RemoteFile` has those methods of `Path` that readers
use.
"""

from __future__ import annotations

import io
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from glob import has_magic
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

from train_jobs.artifacts.redaction import redact
from train_jobs.config.errors import DataError, UserError
from train_jobs.config.urls import AZURE, GCS, LOCAL, PROTOCOLS, S3, is_url, protocol_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")
PROBE = 1 << 16  # bytes of a request that looks for a place in a file or at its beginning
BLOCK = 1 << 22  # bytes of a request that reads on: at 50 ms a request, 80 MB/s
DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before a request is repeated; shortened by a random share
EXTRA = "pip install 'bert-orchestrator[remote]'"
_CREDENTIALS = {
    S3: "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; or ask for the right to read it",
    GCS: "gcloud auth application-default login; or set GOOGLE_APPLICATION_CREDENTIALS",
    AZURE: "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; or AZURE_STORAGE_ANON=false, and: az login",
    LOCAL: "ask for the right to read it",
}
_REFUSED = re.compile(r"\b40[13]\b|credential|forbidden|denied|unauthori[sz]ed|anonymous", re.IGNORECASE)
# Names of the same facts in the listings of fsspec's packages.
_TAGS = ("ETag", "etag")
_TIMES = ("LastModified", "last_modified", "mtime", "created")


class FileStatus(NamedTuple):
    """Facts of a file that a listing has."""

    st_size: int
    """Bytes."""


@dataclass(frozen=True)
class RemoteFile:
    """A file by URL, as a listing describes it."""

    url: str
    size: int
    """Bytes."""
    version: str
    """SHA-256 of its size and of the tag of its content (ETag), or without tags of the time of its last change."""

    def __str__(self) -> str:
        return self.url

    @property
    def pure(self) -> PurePosixPath:
        """Path below the protocol; its order is that of local paths."""
        return PurePosixPath(self.url.partition("://")[2])

    @property
    def name(self) -> str:
        """Last part of the URL."""
        return self.pure.name

    @property
    def stem(self) -> str:
        """Name without its last suffix."""
        return self.pure.stem

    @property
    def suffix(self) -> str:
        """Last suffix of the name."""
        return self.pure.suffix

    def stat(self) -> FileStatus:
        """Return the size."""
        return FileStatus(self.size)

    def open(self, mode: str = "rb", buffering: int = PROBE) -> BinaryIO:
        """Open the file for reading from any place.

        Args:
            mode: "rb".
            buffering: bytes of a request.

        Raises:
            DataError: the service refuses, or does not answer. Reading the stream raises it too.
        """
        assert mode == "rb", "files by URL are only read"
        return io.BufferedReader(_Ranges(self, self.size), buffering)

    def open_until(self, stop: int | None) -> BinaryIO:
        """Open the file for reading on, in large requests that end at `stop`.

        Args:
            stop: end of the range to read. None: the end of the file.

        Raises:
            DataError: see `open`.
        """
        return io.BufferedReader(_Ranges(self, self.size if stop is None else min(stop, self.size)), BLOCK)


TextPath = Path | RemoteFile
"""A file of text."""


class _Ranges(io.RawIOBase):
    """Raw stream of a file by URL: each read is a request for a range."""

    def __init__(self, file: RemoteFile, stop: int) -> None:
        self._file, self._stop, self._at = file, stop, 0
        self._system, self._path = file_system(file.url)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._stop}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readall(self) -> bytes:
        # RawIOBase would read 8 KiB at a time.
        return b"".join(iter(lambda: self.read(BLOCK) or b"", b""))

    def readinto(self, buffer: Any) -> int:
        start, end = self._at, min(self._at + len(buffer), self._stop)
        if start >= end:
            return 0

        def request() -> bytes:
            data: bytes = self._system.cat_file(self._path, start=start, end=end)
            if len(data) != end - start:
                raise OSError("the answer is truncated")  # without numbers: 403 bytes must not look like status 403
            return data

        buffer[: end - start] = repeated(request, self._file.url)
        self._at = end
        return end - start


def text_path(name: str) -> TextPath:
    """Return the file of a path or URL; the service is asked for the size and version of a URL.

    Raises:
        DataError: there is no such file, or the service refuses.
    """
    if not is_url(name):
        return Path(name)
    system, path = file_system(name)
    return _described(name, repeated(lambda: system.info(path), name))


class Listed(NamedTuple):
    """A file of a listing."""

    file: RemoteFile
    below: PurePosixPath | None
    """Its path in a folder that was named; None: the file itself was named, or matches a pattern."""


def remote_files(pattern: str) -> list[Listed]:
    """Return the files of a URL, sorted; none if no file matches a pattern, or a folder is empty.

    Args:
        pattern: URL of a file or folder, or a pattern with `*`, `?`, `[...]` or `**`; files below folders are included.

    Raises:
        DataError: no such file or folder, or the service refuses.
    """
    system, path = file_system(pattern)
    base = pattern[: re.search(r"[*?\[]", pattern).start()].rpartition("/")[0] if has_magic(pattern) else pattern  # type: ignore[union-attr]
    root = system._strip_protocol(base)
    with remote_errors(pattern):
        if has_magic(pattern):
            matches = system.glob(path, detail=True)
        elif (only := system.info(path))["type"] == "file":
            return [Listed(_described(pattern, only), None)]
        else:
            matches = {path: only}
        found = [
            (name, info, None if above["type"] == "file" else PurePosixPath(name).relative_to(match))
            for match, above in matches.items()
            if not any(part.startswith(".") for part in PurePosixPath(match[len(root) :]).parts)  # hidden
            for name, info in ({match: above} if above["type"] == "file" else system.find(match, detail=True)).items()
            if info["type"] == "file" and not name.endswith("/")  # consoles create empty objects as folders
        ]
    # The names of a listing lack the protocol, and on Azure the account.
    files = [
        Listed(_described(f"{base.rstrip('/')}/{name[len(root) :].lstrip('/')}", info), below)
        for name, info, below in found
    ]
    return sorted(files, key=lambda listed: listed.file.pure)


def _described(url: str, info: Mapping[str, Any]) -> RemoteFile:
    if info["type"] != "file":
        raise DataError(f"cannot read {url}: it is a folder", fix="give the address of a file")
    size = int(info["size"] or 0)
    tag = next((str(info[key]).strip('"') for key in _TAGS if info.get(key)), None)
    known = tag or next((_seconds(info[key]) for key in _TIMES if info.get(key)), "")
    return RemoteFile(url, size, sha256(f"{size} {known}".encode()).hexdigest())


def _seconds(time_of_change: object) -> str:
    # `info` and `ls` of one file system may disagree on the type.
    return str(time_of_change.timestamp() if isinstance(time_of_change, datetime) else time_of_change)


@lru_cache(maxsize=1 << 16)  # a plan looks at the beginning of each file several times
def remote_head(file: RemoteFile, most: int) -> bytes:
    """Return the first bytes of a file.

    Raises:
        DataError: the service refuses, or does not answer.
    """
    if not file.size:
        return b""
    system, path = file_system(file.url)
    with remote_errors(file.url):
        return bytes(system.cat_file(path, start=0, end=min(most, file.size)))


def require_version(name: str, version: str | None) -> None:
    """Require that a file by URL is the one that was planned.

    Args:
        name: path or URL.
        version: version of the file when the work was planned. None: a path.

    Raises:
        DataError: the file has changed since, or no longer exists.
    """
    if version is None or not is_url(name):
        return
    found = text_path(name)
    if isinstance(found, RemoteFile) and found.version != version:
        raise DataError(
            f"{name} has changed since the job was planned",
            facts={"size": f"{found.size:,} bytes"},
            fix="submit the job again: it reads the new text",
        )


def file_system(url: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL and the path in it.

    Raises:
        DataError: the package of the service is not installed.
    """
    package = PROTOCOLS[protocol_of(url)]
    try:
        from fsspec.core import url_to_fs

        with remote_errors(url):
            # A listing in the cache would hide files that were added or changed since.
            system, path = url_to_fs(url, use_listings_cache=False)
    except ImportError:
        raise DataError(f"cannot read {url}: the package {package} is not installed", fix=EXTRA) from None
    return system, path


@contextmanager
def remote_errors(url: str) -> Iterator[None]:
    """Convert errors of a service to errors that the user can fix.

    Raises:
        DataError: the file is missing, or the service refuses or does not answer.
    """
    try:
        yield
    except (UserError, ImportError):
        raise
    except Exception as problem:  # each package has its own errors, and few share a base
        raise _explained(problem, url) from None


def repeated(request: Callable[[], T], url: str) -> T:
    """Return the result of a request; it is repeated with growing delays unless the service refuses it.

    Args:
        request: the request.
        url: the file, for the message.

    Raises:
        DataError: the service refuses, or fails for about 15 seconds in addition to the package's own attempts.
    """
    for delay in DELAYS:
        try:
            return request()
        except Exception as problem:
            if _is_final(problem):
                raise _explained(problem, url) from None
            # Not `random.uniform`: the global generator belongs to the job. Workers must not return all together.
            time.sleep(delay * random.SystemRandom().uniform(0.5, 1.0))
    with remote_errors(url):
        return request()


def _is_final(problem: Exception) -> bool:
    """Return whether the same request would fail again."""
    known = (UserError, ImportError, FileNotFoundError, IsADirectoryError, PermissionError, TypeError, ValueError)
    return isinstance(problem, known) or _is_refusal(problem)


def _is_refusal(problem: Exception) -> bool:
    return isinstance(problem, PermissionError) or _REFUSED.search(f"{type(problem).__name__} {problem}") is not None


def _explained(problem: Exception, url: str) -> DataError:
    if isinstance(problem, DataError):
        return problem
    if isinstance(problem, FileNotFoundError):
        return DataError(
            f"no such file or folder: {url}", facts={"where": "data.text"}, fix="give an existing address: --data URL"
        )
    why = redact(str(problem).strip().partition("\n")[0][:300]) or type(problem).__name__
    if _is_refusal(problem):
        return DataError(f"cannot read {url}: access denied: {why}", fix=_CREDENTIALS[PROTOCOLS[protocol_of(url)]])
    return DataError(
        f"cannot read {url}: {why}",
        fix="check the address and the network, then repeat the command: finished parts are kept",
    )


def sibling(path: TextPath | str, name: str) -> str:
    """Return the path or URL of a name in the folder of a file."""
    return f"{str(path).rpartition('/')[0]}/{name}" if is_url(str(path)) else str(Path(str(path)).with_name(name))


def fix_in_copy(fix: str, path: TextPath | str) -> str:
    """Return a fix whose command names a file by URL as a fix of a copy of it; other fixes are unchanged."""
    folder = f"{str(path).rpartition('/')[0]}/"
    if not is_url(str(path)) or folder not in fix:
        return fix
    return f"in a copy of the file, which then replaces it: {fix.replace(folder, '')}"
