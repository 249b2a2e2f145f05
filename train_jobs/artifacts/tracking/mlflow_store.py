"""The SQLite file of an MLflow store: its version and integrity, read without MLflow, and its safe creation.

MLflow creates and migrates a store in place, in about sixty steps that SQLite cannot roll back together: a kill or a
full disk leaves a file that MLflow refuses from then on. Here both happen in a draft in the same folder, under a lock,
and a rename puts the finished draft in place.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from train_jobs.artifacts.files import hold, sync, write_text
from train_jobs.artifacts.mounts import READ_ONLY, is_read_only, remount
from train_jobs.config.errors import StorageError, in_shell

SQLITE = "sqlite:///"
TABLES = {"alembic_version", "experiments", "metrics", "runs"}
PARTS = ("", "-journal", "-wal", "-shm")  # suffixes of the files of one SQLite database
READ_SECONDS = 3.0  # MLflow holds its store for milliseconds
ARTIFACTS = "artifacts"  # folder next to a store
LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""Tables and columns with locations of artifacts."""
CREATION_SECONDS = 60.0  # longest wait for another process that creates a store
STEP_SECONDS = 10.0  # longest step of a creation
LOOK_SECONDS = 0.2
LOCK_SECONDS = 120.0  # creating a store takes a second, migrating a large one longer
REVISION = re.compile(r"^(down_)?revision\b[^=]*=(.*)$", re.MULTILINE)


class Condition(StrEnum):
    """Whether MLflow can use a store."""

    READY = "ready"
    MISSING = "missing"
    OLD = "old"
    """Of an earlier version of MLflow."""
    NEW = "new"
    """Of a later version of MLflow."""
    BROKEN = "broken"
    """Damaged, or its creation was interrupted."""
    UNUSABLE = "unusable"
    """Locked, without permission, or not a store of MLflow."""


UNFINISHED = {Condition.BROKEN, Condition.OLD}
"""Conditions of a store while MLflow creates it: it begins with the first version, and migrates it."""


@dataclass(frozen=True)
class StoreReport:
    """Result of `examine`."""

    condition: Condition
    """Whether MLflow can use it."""
    reason: str = ""
    """Why not, with its path."""
    fix: str = ""
    """Command that makes an unusable one usable."""
    runs: frozenset[str] = frozenset()
    """Ids of its runs, without deleted ones, after a deep check."""


def sqlite_path(uri: str) -> Path | None:
    """Return the file of an SQLite store; None: a tracking URI of another kind."""
    return Path(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else None


@cache
def schema_versions() -> tuple[str | None, frozenset[str]]:
    """Return the schema version of the installed MLflow and all versions that it can migrate; (None, {}) if unknown."""
    package = importlib.util.find_spec("mlflow")  # does not import it, which would take seconds
    if package is None or package.origin is None:
        return None, frozenset()
    made: set[str] = set()
    replaced: set[str] = set()
    for file in (Path(package.origin).parent / "store" / "db_migrations" / "versions").glob("*.py"):
        for before, value in REVISION.findall(file.read_text(encoding="utf-8")):
            (replaced if before else made).update(re.findall(r"\w{8,}", value))
    heads = made - replaced
    return (heads.pop() if len(heads) == 1 else None), frozenset(made)


def examine(path: Path, *, deep: bool = False, seconds: float = READ_SECONDS) -> StoreReport:
    """Return whether MLflow can use a store; changes nothing.

    Args:
        path: the SQLite file.
        deep: also read every page, test whether it can be written, and list its runs.
        seconds: maximum time to wait for a lock of the file.
    """
    if not path.exists():
        return StoreReport(Condition.MISSING, f"{path} does not exist")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=seconds)) as database:
            if deep:
                database.execute("BEGIN IMMEDIATE")  # takes the write lock, as a run does; a read would not wait for it
            report = _schema(path, database)
            return _content(path, database) if deep and report.condition == Condition.READY else report
    except sqlite3.OperationalError as problem:
        if "locked" in str(problem):
            return StoreReport(Condition.UNUSABLE, f"{path} is locked by another process", f"fuser {in_shell(path)}")
        if is_read_only(path.parent):
            return StoreReport(Condition.UNUSABLE, f"{path} is on a {READ_ONLY}", remount(path))
        return StoreReport(Condition.UNUSABLE, f"{path} cannot be used: {problem}", f"ls -l {in_shell(path)}")
    except sqlite3.DatabaseError as problem:
        return StoreReport(Condition.BROKEN, f"{path} is damaged: {problem}")


def _schema(path: Path, database: sqlite3.Connection) -> StoreReport:
    """Compare tables and version with those of the installed MLflow."""
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and not tables & TABLES:
        return StoreReport(Condition.UNUSABLE, f"{path} is a database of another program", "--set tracking.uri=URI")
    if missing := sorted(TABLES - tables):
        reason = f"{path} has no table {', '.join(missing)}: its creation was interrupted"
        return StoreReport(Condition.BROKEN, reason)
    row = database.execute("SELECT version_num FROM alembic_version").fetchone()
    head, known = schema_versions()
    if row is None:
        return StoreReport(Condition.BROKEN, f"{path} has no schema version: its creation was interrupted")
    if head is None or row[0] == head:
        return StoreReport(Condition.READY)
    if row[0] in known:
        return StoreReport(Condition.OLD, f"{path} has schema version {row[0]} of an earlier MLflow, not {head}")
    reason = f"{path} has schema version {row[0]} of a later MLflow, not {head}"
    return StoreReport(Condition.NEW, reason, "pip install --upgrade mlflow, or --set tracking.uri=URI")


def _content(path: Path, database: sqlite3.Connection) -> StoreReport:
    """Read every page, and write a table that is rolled back."""
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        return StoreReport(Condition.BROKEN, f"{path} is damaged: {verdict.splitlines()[-1]}")
    active = "SELECT run_uuid FROM runs WHERE lifecycle_stage = 'active'"  # MLflow's page only marks a deleted one
    runs = frozenset(run for (run,) in database.execute(active))
    database.execute("CREATE TABLE written_by_check (probe)")
    database.rollback()
    return StoreReport(Condition.READY, runs=runs)


def prepare(path: Path, *, deep: bool = False) -> str | None:
    """Make a store ready for MLflow: create a missing one, migrate an old one, replace a broken one.

    Args:
        path: the SQLite file.
        deep: see `examine`; after an error of the store.

    Returns:
        One sentence if the store was migrated or replaced; if replaced, in each call until `forget_replacement`.

    Raises:
        StorageError: it stays unusable; nothing was changed.
    """
    if examine(path, deep=deep).condition == Condition.READY:
        relocate_artifacts(path)
        return _replacement(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_suffix(".lock")
    busy = StorageError(
        f"cannot prepare the MLflow store {path}: another process holds its lock", fix=f"fuser {in_shell(lock)}"
    )
    with hold(lock, seconds=LOCK_SECONDS, busy=busy):
        found = _examine_created(path, deep=deep)
        if found.condition == Condition.READY:  # another process was faster
            relocate_artifacts(path)
            return _replacement(path)
        if found.condition in (Condition.UNUSABLE, Condition.NEW):
            raise StorageError(f"cannot use the MLflow store: {found.reason}", fix=found.fix)
        if found.condition == Condition.OLD and (kept := _migrate(path)):
            relocate_artifacts(path)
            return f"migrated the MLflow store {path} to this version of MLflow; its copy is {kept}"
        if found.condition == Condition.MISSING:
            _create(path)
            _examine_created(path)  # by another process, if that was faster
            return _replacement(path)
        return _replace(path, found.reason)


def _examine_created(path: Path, *, deep: bool = False) -> StoreReport:
    """Return whether MLflow can use a store, once no other process creates it: MLflow's page does so in place."""
    until, idle = time.monotonic() + CREATION_SECONDS, 0
    while (found := examine(path, deep=deep)).condition in UNFINISHED and time.monotonic() < until:
        idle = 0 if _is_open(path) and _is_new(path) else idle + 1
        if idle > 1:  # once is not enough: MLflow closes and opens it again between two of its steps
            break
        time.sleep(LOOK_SECONDS)
    return found


def _is_new(path: Path) -> bool:
    """Return whether a file has changed in the last seconds."""
    with suppress(OSError):
        return time.time() - path.stat().st_mtime < STEP_SECONDS
    return False


def _is_open(path: Path) -> bool:
    """Return whether another process, of those that this user may look at, has a file open."""
    place = str(path.resolve())
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just finished, or belongs to another user
            for opened in (process / "fd").iterdir() if int(process.name) != os.getpid() else ():
                with suppress(OSError):
                    if str(opened.readlink()) == place:
                        return True
    return False


def relocate_artifacts(path: Path) -> None:
    """Give a store that was moved or copied with its folder the artifacts next to it, instead of those of the original.

    MLflow stores the location of each artifact folder as an absolute path. The first experiment, which MLflow creates
    with the store, shows where the store was. Locations elsewhere were chosen by the user, and stay.

    Args:
        path: the SQLite file; nothing happens if it is missing or MLflow cannot use it.

    Raises:
        StorageError: the store cannot be written.
    """
    root, former = path.absolute().parent, _first_folder(path)
    if former is None or former == root or not _is_former(former, root, path.name):
        return
    old, new = f"{(former / ARTIFACTS).as_uri()}/", f"{(root / ARTIFACTS).as_uri()}/"
    try:
        with closing(sqlite3.connect(path, timeout=READ_SECONDS)) as database:
            for table, column in LOCATIONS:
                database.execute(
                    f"UPDATE {table} SET {column} = rtrim(? || substr({column} || '/', ?), '/')"
                    f" WHERE substr({column} || '/', 1, ?) = ?",
                    (new, len(old) + 1, len(old), old),
                )
            database.commit()
    except sqlite3.Error as problem:  # to continue would write artifacts to the original
        raise StorageError(
            f"cannot use the MLflow store {path}: it was moved from {former}, and its locations cannot be changed",
            facts={"reason": problem},
            fix="run the same command again",
        ) from problem


def _first_folder(path: Path) -> Path | None:
    """Return the folder that the locations of a store refer to; None: unknown."""
    if not path.is_file():
        return None
    first = None
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=READ_SECONDS)) as database:
        first = database.execute("SELECT artifact_location FROM experiments ORDER BY experiment_id LIMIT 1").fetchone()
    return _folder_of(first[0] or "") if first else None


def _folder_of(location: str) -> Path | None:
    """Return the folder of the store that chose the location of an experiment; None: the user chose it."""
    address = urlsplit(location)
    if address.scheme != "file":
        return None
    place = Path(unquote(address.path))  # HOME/artifacts, or HOME/artifacts/0 of MLflow's own first experiment
    return next((one.parent for one in (place, place.parent) if one.name == ARTIFACTS), None)


def _is_former(folder: Path, root: Path, store: str) -> bool:
    """Return whether a store was in a folder from which it was moved or copied to `root`."""
    if not ((root / ARTIFACTS).is_dir() or (root / "runs").is_dir()):
        return False  # neither moved with its artifacts nor the store of a home
    original = folder / store
    if original.exists():
        return not original.samefile(root / store)  # else a link or a second mount leads to the same store
    return not (folder / ARTIFACTS).exists()  # else the user chose this place for the artifacts


def _create(path: Path) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    with _draft(path) as draft:
        draft.touch()  # an error where nothing can be written; MLflow would retry for 102 s
        SqlAlchemyStore(f"{SQLITE}{draft}", (path.parent / ARTIFACTS).as_uri())
        _forget(draft)
        if not path.exists():  # else another process, which holds no lock, created it meanwhile: both are empty
            _publish(draft, path)


def _migrate(path: Path) -> Path | None:
    """Migrate a copy of the store and put it in place; return where the original is. None: MLflow cannot migrate it."""
    from mlflow.store.db.utils import _upgrade_db, create_sqlalchemy_engine

    kept = _free(path, "old")
    with _draft(path) as draft, closing(sqlite3.connect(path, timeout=READ_SECONDS)) as original:
        original.execute("BEGIN IMMEDIATE")  # nothing is written to the original until the copy is in place
        with closing(sqlite3.connect(path)) as reader, closing(sqlite3.connect(draft)) as target:
            reader.backup(target)
        engine = create_sqlalchemy_engine(f"{SQLITE}{draft}")
        try:
            _upgrade_db(engine)
        except Exception as problem:
            if "disk is full" in str(problem):
                raise
            print(f"cannot migrate {path}: {first_line(problem)}", file=sys.stderr)
            return None
        finally:
            engine.dispose()
        try:
            os.link(path, kept)
        except OSError:  # a file system without links; to close another stream of the store would release its locks
            with closing(sqlite3.connect(path)) as reader, closing(sqlite3.connect(kept)) as target:
                reader.backup(target)
        _publish(draft, path)
    return kept


def _replace(path: Path, reason: str) -> str:
    """Set a broken store aside and create a new one; return the sentence about it."""
    kept = _free(path, "broken")
    note = f"the MLflow store was broken ({reason}): it is now {kept.name}, and a new one was created"
    write_text(_note_file(path), note)  # before the rename: the next process must know it after a kill
    for part in PARTS:  # a journal that stays would be applied to the new store
        source = Path(f"{path}{part}")
        if source.exists():
            source.rename(f"{kept}{part}")
    _create(path)
    return note


def _note_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


def _replacement(path: Path) -> str | None:
    """Return the sentence about a replaced store that no caller has recorded; None: no store was replaced."""
    try:
        return _note_file(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def forget_replacement(path: Path) -> None:
    """Forget that a store was replaced; the caller has recorded the sentence of `prepare`."""
    _note_file(path).unlink(missing_ok=True)


def _free(path: Path, word: str) -> Path:
    """Return a path that does not exist: mlflow.db.broken-20261123-154210."""
    name = f"{path.name}.{word}-{time.strftime('%Y%m%d-%H%M%S')}"
    taken = {found.name for found in path.parent.glob(f"{name}*")}
    return path.with_name(name if name not in taken else f"{name}-{len(taken) + 1}")


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Yield the path of a draft, free of the files of a killed process, and remove its remaining files."""
    draft = path.with_name(f".{path.name}.draft")  # one name is enough: its users hold the lock
    try:
        _remove(draft)
        draft.touch()  # SQLite itself creates 0644, which the group of a shared home could not write
        with _unsynced(draft):
            yield draft
    finally:
        _forget(draft)
        _remove(draft)


@contextmanager
def _unsynced(draft: Path) -> Iterator[None]:
    """Let MLflow not wait for the disk, as it does a thousand times: `_publish` waits once, for the whole draft."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def connected(connection: sqlite3.Connection, _: object) -> None:
        if connection.execute("PRAGMA database_list").fetchone()[2] == str(draft.resolve()):
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA journal_mode = MEMORY")

    event.listen(Engine, "connect", connected)
    try:
        yield
    finally:
        event.remove(Engine, "connect", connected)


def _remove(draft: Path) -> None:
    for part in PARTS:
        Path(f"{draft}{part}").unlink(missing_ok=True)


def _publish(draft: Path, path: Path) -> None:
    sync(draft)
    draft.replace(path)
    sync(path.parent)
    _forget(path)


def _forget(path: Path) -> None:
    """Close this process's connections to a store: MLflow caches them, and they refer to the file as it was."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    if engine := SqlAlchemyStore._engine_map.get(f"{SQLITE}{path}"):
        engine.dispose()


def first_line(problem: BaseException) -> str:
    """Return the first line of an error's message: SQLAlchemy's have the statement and a link in later ones."""
    return next(iter(str(problem).strip().splitlines()), "") or type(problem).__name__
