"""Which files a corpus is read from, and the hash that names their content.

Both floors need the same answer: the laptop for the plan and the run's name, the job to find its token store and to
see that the text is still the one that was planned.
"""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

from train_jobs.artifacts.files import file_sha256, write_text
from train_jobs.artifacts.hub import dataset_commit
from train_jobs.artifacts.text_files import source_files
from train_jobs.config.base import Config
from train_jobs.config.errors import DataError
from train_jobs.config.names import in_shell
from train_jobs.config.text import SourceConfig

EXTRACTOR = 1  # raise when train_jobs.corpus reads the same files differently: stores made before are then not used
EMBEDDED_LICENSE = "PSF-2.0"  # the Python Software Foundation's, of Python's library and its documentation
EMBEDDED_LANGUAGE = "en"
EMBEDDED = "embedded (Python {})"
_SKIPPED_LIBRARY_FOLDERS = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3"}


class DataFingerprint(Config):
    """The text of a corpus, by content."""

    name: str
    """What it is called in the plan: the given paths, or the embedded corpus with its Python version."""
    files: int
    """Number of files."""
    total_bytes: int
    """Their size together."""
    sha256: str
    """Hash over (relative name, content hash) of every file, in order."""


def text_files(paths: Iterable[Path]) -> list[Path]:
    """The files that `paths` stand for, in a fixed order: see `formats.source_files`.

    Raises:
        DataError: as of `formats.source_files`.
    """
    return [file.path for file in source_files(SourceConfig(path=[str(path) for path in paths]))]


def embedded_files() -> list[Path]:
    """The Python source files whose docstrings and reference topics make the embedded corpus, in a fixed order.

    Raises:
        DataError: this Python ships without the source of its standard library.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in _SKIPPED_LIBRARY_FOLDERS)
        found += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
    if not found:
        raise DataError(f"this Python has no library source in {root}", fix="--data PATH with text of your own")
    return found


def fingerprint(text: Sequence[SourceConfig], cache: Path | None = None) -> DataFingerprint:
    """Hashes the corpus by content; `text` empty means the embedded one.

    Args:
        text: `data.text` of the job.
        cache: a JSON file that remembers content hashes by inode, size and mtime: an unchanged file is read once.

    Raises:
        DataError: a path is missing or unreadable, or there is not one byte of text in a source.
    """
    if not text:
        files = embedded_files()  # small, and quicker read than looked up
        return _combine(EMBEDDED.format(sysconfig.get_python_version()), files, [_hash_file(path) for path in files])
    found = [source_fingerprint(source, cache) for source in text]
    whole = "".join(f"{part.sha256}\n" for part in found)
    return DataFingerprint(
        name=", ".join(source.dataset or ", ".join(source.path) for source in text),
        files=sum(part.files for part in found),
        total_bytes=sum(part.total_bytes for part in found),
        sha256=found[0].sha256 if len(found) == 1 else hashlib.sha256(whole.encode()).hexdigest(),
    )


def source_fingerprint(source: SourceConfig, cache: Path | None = None) -> DataFingerprint:
    """Hashes one source: the content of its files and how they are to be read, or the commit of a dataset.

    Args:
        source: files, or a dataset's name.
        cache: as of `fingerprint`.

    Raises:
        DataError: as of `fingerprint`; or a dataset that cannot be found.
    """
    read_as = "" if (source.format, source.column) == ("auto", "text") else f"{source.format} {source.column}\n"
    if source.dataset is not None and (folder := Path(source.dataset_parts()[0])).is_dir():
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return _combine(source.title, files, content_hashes(files, cache), f"{read_as}{source.dataset}\n")
    if source.dataset is not None:
        commit = f"{read_as}{source.dataset}\0{dataset_commit(source.dataset)}\n"
        return DataFingerprint(
            name=source.title, files=0, total_bytes=0, sha256=hashlib.sha256(commit.encode()).hexdigest()
        )
    files = [file.path for file in source_files(source)]
    return _combine(source.title, files, content_hashes(files, cache), read_as)


def content_hashes(files: list[Path], cache: Path | None = None) -> list[str]:
    """SHA-256 of each file; one that `cache` (as of `fingerprint`) remembers by inode, size and mtime is not read.

    Raises:
        DataError: a file is not readable.
    """
    before = _read_cache(cache)
    known, hashes = {**before}, []
    for path in files:
        stat = path.stat()
        key = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
        known.setdefault(key, "")
        known[key] = known[key] or _hash_file(path)
        hashes.append(known[key])
    if known != before:
        _write_cache(cache, known)
    return hashes


def _combine(name: str, files: list[Path], hashes: list[str], read_as: str = "") -> DataFingerprint:
    root = os.path.commonpath([path.parent for path in files])
    whole = hashlib.sha256(f"extractor {EXTRACTOR}\n{read_as}".encode())
    for path, digest in zip(files, hashes, strict=True):
        whole.update(f"{path.relative_to(root).as_posix()}\0{digest}\n".encode())
    size = sum(path.stat().st_size for path in files)
    if size == 0:
        raise DataError("the text is empty", facts={"where": name}, fix="--data PATH with text in it")
    return DataFingerprint(name=name, files=len(files), total_bytes=size, sha256=whole.hexdigest())


def _hash_file(path: Path) -> str:
    try:
        return file_sha256(path)
    except PermissionError:
        raise DataError(f"cannot read {path}", fix=f"chmod u+r {in_shell(path)}") from None


def _read_cache(cache: Path | None) -> dict[str, str]:
    try:
        known = json.loads(cache.read_text()) if cache else {}
    except (OSError, ValueError):
        return {}  # a cache only: whatever is wrong with it, the files themselves are read again
    return known if isinstance(known, dict) else {}


def _write_cache(cache: Path | None, known: dict[str, str]) -> None:
    if cache is None:
        return
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_text(cache, json.dumps(known))
    except OSError:
        return  # not being able to remember is no reason to stop
