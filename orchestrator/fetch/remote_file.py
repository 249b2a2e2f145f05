"""Published files: their facts, the part of one that has arrived, and the check of the whole."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_IMODE
from typing import IO, Any, Literal, NamedTuple, Self

from orchestrator.support.errors import ConflictError, DataError, StorageError
from train_jobs.artifacts.drafts import draft
from train_jobs.artifacts.files import lock_mode, sync, try_lock, write_text
from train_jobs.config.errors import rename_command

WEB_PAGE = (b"<!doctype html", b"<html")  # a proxy's login page or an error page with status 200
PARTIAL, FACTS = ".part", ".part.json"  # suffixes of the files next to the target
OTHER_MIRROR = "--mirror URL of another place"
# A password may contain a slash that should be encoded: what follows the colon is then no port.
_SECRETS = re.compile(r"(?<=://)(?:[^/?#]*@|[^/@:?#]*:(?!\d*(?:[/?#]|$)).*@)|[?#].*")
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


class Checksum(NamedTuple):
    """Hash of a file's content."""

    kind: Literal["md5", "sha1", "sha256"]
    value: str


@dataclass(frozen=True)
class Remote:
    """A published file."""

    path: str
    """Path below the address of any mirror."""
    checksum: Checksum | None = None
    size: int | None = None
    """Bytes; a server whose file has another size is not asked for it."""

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Fetched:
    """A file or folder that is on this machine now."""

    path: Path
    bytes: int
    new: bool
    """Whether it was fetched now, rather than found."""
    checked: str
    """What was verified: `sha256`, `668 rows`."""


def public_address(url: str) -> str:
    """Return an address without user, password and query, for messages and files."""
    separator = "" if "://" in url else "://"
    return _SECRETS.sub("", separator + url).removeprefix(separator)


def verify(path: Path, remote: Remote) -> str:
    """Compare a file with its published checksum, if there is one.

    Args:
        path: the local file.
        remote: the published file.

    Returns:
        What was compared: the name of the hash, or `content type`.

    Raises:
        DataError: it is empty, a web page, or not what was published.
    """
    with path.open("rb") as stream:
        head = stream.read(256)
        if not head or head.lstrip().lower().startswith(WEB_PAGE):
            what = "a web page, not data" if head else "empty"
            raise DataError(f"invalid file {remote.name}: it is {what}", facts={"file": path}, fix=OTHER_MIRROR)
        if remote.checksum is None:
            return "content type"
        stream.seek(0)
        have = hashlib.file_digest(stream, remote.checksum.kind).hexdigest()
    if have != remote.checksum.value:
        raise DataError(
            f"invalid file {remote.name}: wrong {remote.checksum.kind} checksum",
            facts={"need": f"{remote.checksum.kind} {remote.checksum.value}", "have": have},
            fix=OTHER_MIRROR,
        )
    return remote.checksum.kind


def conflict_at(path: Path, problem: DataError) -> ConflictError:
    """Return the error for a path that already exists with other content.

    It is never overwritten: the file may be the user's own work under the same name.
    """
    facts = {"have": problem.message, **problem.facts}
    return ConflictError(f"cannot fetch {path}: it exists, with other content", facts=facts, fix=rename_command(path))


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """Yield an empty hidden folder that is renamed to its place if the block succeeds, and deleted otherwise.

    An interrupted call never leaves a folder that looks complete.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with draft(place) as building:
        building.mkdir()
        yield building
        building.rename(place)


def content_range(response: Any) -> tuple[int | None, int | None]:
    """Return the start of the part that a server sends, and the size of the whole file; None for what is unknown."""
    if match := _RANGE.fullmatch(response.headers.get("Content-Range", "")):
        start, total = (int(text) if text and text.isdecimal() else None for text in match.groups())
        return start, total
    length = response.headers.get("Content-Length", "")
    return None, int(length) if length.isdecimal() else None


class Version(NamedTuple):
    """Headers that came with the first byte of a file: only the same version may be resumed."""

    url: str
    """See `public_address`."""
    etag: str
    modified: str

    @classmethod
    def from_response(cls, url: str, response: Any) -> Self:
        """Return the version that a response carries."""
        return cls(public_address(url), response.headers.get("ETag", ""), response.headers.get("Last-Modified", ""))

    @property
    def validator(self) -> str:
        """The header that identifies exactly this content, for `If-Range`; a weak ETag does not (RFC 9110, 13.1.5)."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified


class Partial:
    """The beginning of a file, held by one process at a time.

    Args:
        target: place of the complete file.
        stream: of the beginning, open for appending.
    """

    def __init__(self, target: Path, stream: IO[bytes]) -> None:
        self.stream = stream
        self.path = _hidden_sibling(target, PARTIAL)
        self._facts = _hidden_sibling(target, FACTS)
        self._target = target

    @classmethod
    @contextmanager
    def open(cls, target: Path) -> Iterator[Partial]:
        """Hold the beginning of `target`, which may be empty; its folder is made. After an error the bytes stay.

        Raises:
            ConflictError: another process fetches it.
            StorageError: it cannot be written.
        """
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            part = _hidden_sibling(target, PARTIAL)
            handle = os.open(part, os.O_WRONLY | os.O_APPEND | os.O_CREAT, lock_mode(part))
            # unbuffered: the size of the file is what has arrived, also after a kill
            with os.fdopen(handle, "ab", buffering=0) as stream:
                # two processes that append to one file would mix their bytes; the kernel frees the lock of a dead one
                if not try_lock(stream):
                    raise ConflictError(
                        f"cannot fetch {target}: another process fetches it", fix="wait for it, or stop it and retry"
                    )
                yield cls(target, stream)
        except OSError as problem:
            raise StorageError(
                f"cannot write {target}: {problem.strerror or problem}",
                fix="free some space, or --to another folder; the bytes that arrived are kept",
            ) from None

    @property
    def size(self) -> int:
        """Bytes that have arrived."""
        return os.fstat(self.stream.fileno()).st_size

    def clear(self) -> None:
        """Discard the bytes that have arrived."""
        self.stream.truncate(0)

    def resume(self, url: str, *, checked: bool) -> dict[str, str]:
        """Return the headers of a request for the missing bytes.

        Args:
            url: address of the file.
            checked: a checksum will verify the whole, so that parts from several places may be joined.
        """
        # Bytes of two versions must never be joined. With a validator, the server itself sends the whole file if it
        # has changed (If-Range). Without one, only a checksum of the whole can prove that the parts fit; without that
        # too, start again.
        known = self._known()
        if self.size and known is not None and known.url == public_address(url) and known.validator:
            return {"Range": f"bytes={self.size}-", "If-Range": known.validator}
        if self.size and checked:
            return {"Range": f"bytes={self.size}-"}
        self.clear()
        return {}

    def continued_by(self, response: Any, version: Version) -> bool:
        """Return whether the part of a file that a server sends continues the bytes that have arrived.

        Servers exist that ignore `If-Range`, or send another range than the requested one.
        """
        known = self._known()
        same = known is None or known.url != version.url or known.validator == version.validator
        return same and content_range(response)[0] == self.size

    def remember(self, version: Version) -> None:
        """Write down the version that is arriving."""
        write_text(self._facts, json.dumps(version._asdict()))
        lock_mode(self._facts)  # as private as the beginning of the file next to it

    def place(self) -> None:
        """Rename the complete file to its place; readers see all of it or none.

        It gets the mode of a new file in this folder. As long as it was locked, others could not open it.
        """
        self._facts.unlink(missing_ok=True)  # it is private
        self._facts.touch()
        mode = S_IMODE(self._facts.stat().st_mode)
        if S_IMODE(os.fstat(self.stream.fileno()).st_mode) != mode:  # equal on file systems without modes
            with suppress(PermissionError):  # another member of the group began it, who alone can change its mode
                os.fchmod(self.stream.fileno(), mode)
        os.fsync(self.stream.fileno())  # before the rename: after a crash, the name must not belong to empty blocks
        self.path.replace(self._target)
        sync(self._target.parent)
        self._facts.unlink(missing_ok=True)

    def _known(self) -> Version | None:
        try:
            return Version(**json.loads(self._facts.read_text()))
        except (OSError, ValueError, TypeError):
            return None


def partial_files(target: Path) -> list[Path]:
    """Return the files of an interrupted download: the beginning of `target`, unless it is empty, and its facts."""
    part, facts = _hidden_sibling(target, PARTIAL), _hidden_sibling(target, FACTS)
    begun = part.is_file() and part.stat().st_size > 0
    return [path for path in (part, facts) if path.is_file()] if begun else []


def delete_facts(target: Path) -> None:
    """Delete the facts of a complete file whose process was killed after the rename."""
    if not _hidden_sibling(target, PARTIAL).exists():  # another process may fetch a new version
        with suppress(OSError):
            _hidden_sibling(target, FACTS).unlink(missing_ok=True)


def _hidden_sibling(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.name}{ending}")
