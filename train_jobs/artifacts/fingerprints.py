"""Fingerprints of text: the hash that identifies the content of a corpus.

Both packages compute it: the laptop for the plan and the name of the run, the job to find its token store and to check
that the text has not changed since the plan.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sysconfig
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePath
from time import time_ns

from train_jobs.artifacts.files import file_sha256, read_object, write_text
from train_jobs.artifacts.hub import dataset_commit
from train_jobs.artifacts.regular_files import SpecialFileError
from train_jobs.artifacts.remote_files import RemoteFile, TextPath
from train_jobs.artifacts.text_files import source_files
from train_jobs.artifacts.unreadable import unreadable
from train_jobs.config import Config, DataError
from train_jobs.config.prepare import AUTO, SourceConfig

EXTRACTOR = 3  # increase it when train_jobs.corpus reads the same files differently: older stores are then not used
MOST_HASHED_AT_ONCE = 16  # files
# Nanoseconds, the longest step of a file system's clock: another change within it may leave size and times as they are.
RECENT = 2 * 10**9
SHA256 = re.compile("[0-9a-f]{64}")
EMBEDDED_LICENSE = "PSF-2.0"  # licence of Python's standard library and its documentation
EMBEDDED_LANGUAGE = "en"
EMBEDDED = "embedded (Python {})"
_SKIPPED_LIBRARY_FOLDERS = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3"}


class DataFingerprint(Config):
    """The text of a corpus, by content."""

    name: str
    """Name in the plan: the given paths, or the embedded corpus with its Python version."""
    files: int
    """Number of files."""
    total_bytes: int
    """Their total size in bytes."""
    sha256: str
    """Hash over (relative name, content hash) of every file, in order."""


def text_files(paths: Iterable[Path]) -> list[Path]:
    """Return the text files of files, folders and globs in a fixed order, see `source_files`.

    Raises:
        DataError: see `source_files`.
    """
    files = source_files(SourceConfig(path=[str(path) for path in paths]))
    return [file.path for file in files if isinstance(file.path, Path)]


def embedded_files() -> list[Path]:
    """Return the Python sources whose docstrings and reference topics are the embedded corpus, in a fixed order.

    Raises:
        DataError: this Python has no sources of its standard library.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in _SKIPPED_LIBRARY_FOLDERS)
        found += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
    if not found:
        raise DataError(f"this Python has no library source in {root}", fix="give text of your own: --data PATH")
    return found


def fingerprint(text: Sequence[SourceConfig], cache: Path | None = None) -> DataFingerprint:
    """Hash the corpus by content; an empty `text` means the embedded one.

    Args:
        text: `data.text` of the job. Of files by URL the version counts, which the service lists, not the content.
        cache: JSON file of content hashes, see `content_hashes`. None: no cache.

    Raises:
        DataError: a path is missing or unreadable, or a source is empty.
    """
    if not text:
        files = embedded_files()  # small: faster to read than to look up
        return _combine(EMBEDDED.format(sysconfig.get_python_version()), files, [_hash_file(path) for path in files])
    files_of = [_source_files(source) for source in text]
    hashes = iter(versions([path for files in files_of for path in files], cache))
    found = [
        _source_fingerprint(source, files, list(islice(hashes, len(files))))
        for source, files in zip(text, files_of, strict=True)
    ]
    whole = "".join(f"{part.sha256}\n" for part in found)
    return DataFingerprint(
        name=", ".join(source.dataset or ", ".join(source.path) for source in text),
        files=sum(part.files for part in found),
        total_bytes=sum(part.total_bytes for part in found),
        sha256=found[0].sha256 if len(found) == 1 else hashlib.sha256(whole.encode()).hexdigest(),
    )


def source_fingerprint(source: SourceConfig, cache: Path | None = None) -> DataFingerprint:
    """Hash one source: content or version of its files and the settings of reading, or the commit of a dataset.

    Args:
        source: files, or the name of a dataset.
        cache: see `fingerprint`.

    Raises:
        DataError: see `fingerprint`; or a dataset cannot be found.
    """
    files = _source_files(source)
    return _source_fingerprint(source, files, versions(files, cache))


def _source_files(source: SourceConfig) -> Sequence[TextPath]:
    """Return the files that a source is hashed by; a dataset that is hashed by its commit has none."""
    if (folder := source.dataset_folder) is not None:
        return sorted(path for path in folder.rglob("*") if path.is_file())
    return [] if source.dataset is not None else [file.path for file in source_files(source)]


def _source_fingerprint(source: SourceConfig, files: Sequence[TextPath], hashes: list[str]) -> DataFingerprint:
    # Empty for the defaults: the fingerprint of plain files is then that of their content alone.
    read_as = "" if (source.format, source.column) == ("auto", "text") else f"{source.format} {source.column}\n"
    if (source.document, source.strip_gutenberg) != (AUTO, False):
        read_as += f"document {source.document}, strip_gutenberg {source.strip_gutenberg}\n"
    if source.dataset is None:
        return _combine(source.title, files, hashes, read_as)
    if source.dataset_folder is not None:
        return _combine(source.title, files, hashes, f"{read_as}{source.dataset}\n")
    commit = f"{read_as}{source.dataset}\0{dataset_commit(source.dataset)}\n"
    return DataFingerprint(
        name=source.title, files=0, total_bytes=0, sha256=hashlib.sha256(commit.encode()).hexdigest()
    )


def versions(files: Sequence[TextPath], cache: Path | None = None) -> list[str]:
    """Return the content hash of each file, and of a file by URL its version, for which it is not read.

    Args:
        files: files of text.
        cache: see `content_hashes`.

    Raises:
        DataError: a file is not readable.
    """
    local = [path for path in files if isinstance(path, Path)]
    hashes = iter(content_hashes(local, cache) if local else [])
    return [path.version if isinstance(path, RemoteFile) else next(hashes) for path in files]


def content_hashes(files: list[Path], cache: Path | None = None) -> list[str]:
    """Return the SHA-256 of each file; a file whose inode, size, mtime and ctime are in `cache` is not read.

    Args:
        files: files to hash.
        cache: JSON file with one entry for each inode, created or extended. Files that changed just before are not
            added. None: no cache.

    Raises:
        DataError: a file is not readable.
    """
    before = _cached_hashes(cache) if cache else {}
    settled = time_ns() - RECENT
    found = [path.stat() for path in files]
    # Archives, rsync and `cp -p` restore the mtime, but none can set the ctime.
    keys = [f"{s.st_dev}:{s.st_ino}:{s.st_size}:{s.st_mtime_ns}:{s.st_ctime_ns}" for s in found]
    unknown = {key: path for key, path in zip(keys, files, strict=True) if key not in before}
    # hashlib releases the GIL, so threads hash on several cores: the text of several machines is hashed on one.
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_HASHED_AT_ONCE)) as pool:
        known = {**before, **dict(zip(unknown, pool.map(_hash_file, unknown.values()), strict=True))}
    added = {key: known[key] for key, s in zip(keys, found, strict=True) if key in unknown and s.st_ctime_ns < settled}
    if cache is not None and added:
        replaced = {_inode(key) for key in added}
        kept = {key: digest for key, digest in before.items() if _inode(key) not in replaced}
        with suppress(OSError):  # without a cache the files are hashed again
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_text(cache, json.dumps({**kept, **added}))
    return [known[key] for key in keys]


def _inode(key: str) -> tuple[str, ...]:
    """Return device and inode of a key of the cache."""
    return tuple(key.split(":")[:2])


def _cached_hashes(cache: Path) -> dict[str, str]:
    """Return the entries of a cache; damaged ones are left out, so that their files are read again."""
    return {key: found for key, found in (read_object(cache) or {}).items() if SHA256.fullmatch(str(found))}


def _combine(name: str, files: Sequence[TextPath], hashes: list[str], read_as: str = "") -> DataFingerprint:
    paths = [PurePath("/", path.pure) if isinstance(path, RemoteFile) else path for path in files]
    if len({path.is_absolute() for path in paths}) > 1:
        paths = [Path(os.path.normpath(Path.cwd() / path)) for path in paths]
    root = os.path.commonpath([path.parent for path in paths])
    whole = hashlib.sha256(f"extractor {EXTRACTOR}\n{read_as}".encode())
    for path, digest in zip(paths, hashes, strict=True):
        line = f"{path.relative_to(root).as_posix()}\0{digest}\n"
        whole.update(line.encode("utf-8", "surrogateescape"))  # names may not be UTF-8
    size = sum(path.stat().st_size for path in files)
    if size == 0:
        raise DataError("the text is empty", facts={"where": name}, fix="give a path that contains text: --data PATH")
    return DataFingerprint(name=name, files=len(files), total_bytes=size, sha256=whole.hexdigest())


def _hash_file(path: Path) -> str:
    try:
        return file_sha256(path)
    except (PermissionError, IsADirectoryError, SpecialFileError) as problem:
        raise unreadable(path, problem) from None
