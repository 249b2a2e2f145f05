"""What may go: runs that have ended, remains of interrupted commands, token stores of texts that no run is of.

A `Pruning` says what would go and how much that is; `Orchestrator.prune` deletes it, and nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from orchestrator.backends import require
from orchestrator.backends.base import Backend
from orchestrator.backends.capabilities import Deletes
from orchestrator.runs.status import Handle, RunState, RunStatus
from orchestrator.support.errors import ConflictError, NotFoundError, StorageError
from orchestrator.support.home import TOKEN_STORES
from train_jobs.config.base import Config


class Item(Config):
    """Something that may be deleted."""

    name: str
    """A run's name, or a path below the home folder."""
    bytes: int | None
    """What it takes on this machine; None where it is not here."""
    handle: str | None = None
    """A run's handle."""
    state: RunState | None = None
    """How a run ended."""
    ended: float | None = None
    """When, in seconds since the epoch."""


class Pruning(Config):
    """What would go."""

    runs: list[Item]
    """Runs, the oldest first."""
    leftovers: list[Item]
    """What interrupted submissions and deletions left behind."""
    token_stores: list[Item]
    """Prepared data of texts that no remaining run is of."""
    unused_store_bytes: int
    """What such token stores take, whether they would go or not."""

    @property
    def items(self) -> list[Item]:
        """All of it."""
        return [*self.runs, *self.leftovers, *self.token_stores]

    @property
    def total_bytes(self) -> int:
        """What would be free on this machine."""
        return sum(item.bytes or 0 for item in self.items)


class Pruned(Config):
    """What went."""

    deleted: list[Item]
    """In the order in which it was deleted."""
    kept: dict[str, str]
    """Run -> why it was left alone after all."""
    freed_bytes: int
    """On this machine."""


def expired(
    runs: Iterable[RunStatus],
    *,
    keep_last: int | None,
    older_than: float | None,
    states: Collection[RunState],
    now: float,
) -> list[RunStatus]:
    """The runs that may go, the oldest first: those that have ended and that every given rule lets go.

    Args:
        runs: the newest first.
        keep_last: not the newest so many of those that have ended (in one of `states`).
        older_than: only what ended more than so many seconds before `now`.
        states: only what ended in one of these; empty: in any.
        now: seconds since the epoch.
    """
    ended = [status for status in runs if status.state.terminal and (not states or status.state in states)]
    beyond = ended[keep_last or 0 :]
    old = [status for status in beyond if older_than is None or now - (status.ended or status.created) > older_than]
    return old[::-1]


def plan_pruning(
    runs: Iterable[RunStatus],
    backends: Mapping[str, Backend],
    home: Path,
    *,
    keep_last: int | None,
    older_than: float | None,
    states: Collection[RunState],
    stores: bool,
) -> Pruning:
    """What would go of `runs` by these rules (see `expired`), and what was left behind on these backends.

    Args:
        runs: the newest first.
        backends: by name.
        home: the user's orchestrator folder.
        keep_last, older_than, states: the rules.
        stores: also token stores that no remaining run can use.
    """
    gone = expired(runs, keep_last=keep_last, older_than=older_than, states=states, now=time.time())
    folders = [backends[Handle.parse(status.handle).backend].folder(status.name) for status in gone]
    unused = [_item(home, path) for path in unused_stores(home, folders)]
    return Pruning(
        runs=[
            Item(
                name=status.name,
                handle=status.handle,
                bytes=tree_bytes(folder) if folder else None,
                state=status.state,
                ended=status.ended,
            )
            for status, folder in zip(gone, folders, strict=True)
        ],
        leftovers=[
            _item(home, path)
            for backend in backends.values()
            if isinstance(backend, Deletes)
            for path in backend.leftovers()
        ],
        token_stores=unused if stores else [],
        unused_store_bytes=sum(item.bytes or 0 for item in unused),
    )


def prune(pruning: Pruning, backends: Mapping[str, Backend], home: Path) -> Pruned:
    """Deletes what `pruning` lists, but for runs that go on again, and what they may be using.

    Raises:
        StorageError: something cannot be deleted.
    """
    deleted: list[Item] = []
    kept: dict[str, str] = {}
    for item in pruning.runs:
        handle = Handle.parse(str(item.handle))
        try:
            require(backends[handle.backend], Deletes).delete(handle.name)
            deleted.append(item)
        except (ConflictError, NotFoundError) as problem:
            kept[item.name] = problem.message
    for item in pruning.leftovers:
        _remove(home / item.name)
        deleted.append(item)
    unused = unused_stores(home, ())  # of the runs that there are now
    for item in pruning.token_stores:
        store = home / item.name
        if store in unused:
            _remove(store.rename(store.with_name(f".{store.name}.{os.getpid()}.building")))  # a job sees all or nothing
            deleted.append(item)
    return Pruned(deleted=deleted, kept=kept, freed_bytes=sum(item.bytes or 0 for item in deleted))


def unused_stores(home: Path, without: Collection[Path | None]) -> list[Path]:
    """Token stores of texts that no run is of, but for the runs in the folders `without`.

    A store's key is made of the text's hash among other things, so no such store can be the one of a remaining run.
    Where a run's plan cannot be read, its text is not known, and there are none.
    """
    texts = set()
    for plan in home.glob("*/*/plan.json"):
        if plan.parent in without:
            continue
        try:
            texts.add(json.loads(plan.read_text())["data"]["sha256"])
        except (OSError, ValueError, KeyError):
            return []
    found = []
    for manifest in sorted((home / TOKEN_STORES).glob("[!.]*/manifest.json")):
        try:
            text = json.loads(manifest.read_text())["data"]["sha256"]
        except (OSError, ValueError, KeyError):
            continue  # being made, or no store
        if text not in texts:
            found.append(manifest.parent)
    return found


def tree_bytes(folder: Path) -> int:
    """Size of all files below a folder; what goes away in the meantime counts nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).lstat().st_size
    return total


def _item(home: Path, folder: Path) -> Item:
    return Item(name=str(folder.relative_to(home)), bytes=tree_bytes(folder))


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass  # another command deletes it, too
    except OSError as problem:
        raise StorageError(f"cannot delete {folder}: {problem.strerror}") from problem
