"""Clean-up: finished runs, leftovers of interrupted commands, token stores of texts that no run uses.

A `Pruning` lists what would be deleted and its size; `Orchestrator.prune` deletes exactly that.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field
from pydantic_core import from_json

from orchestrator.backends import require
from orchestrator.backends.base import PLAN, Backend
from orchestrator.backends.capabilities import Deletes
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.runs.hidden_folders import delete_folder, remove_tree
from orchestrator.runs.status import Handle, RunState, RunStatus
from orchestrator.support.errors import ConflictError, NotFoundError
from orchestrator.support.home import COMPILE_CACHE, TOKEN_STORES
from train_jobs.artifacts.files import is_held, parse_checked
from train_jobs.artifacts.mounts import write_error
from train_jobs.artifacts.store_manifest import MANIFEST_FILE
from train_jobs.config.errors import in_shell
from train_jobs.config.fields import Config

CODE = "code"  # folder of a local run: the snapshot of its code
BUILDING = ".building"  # end of the name of a token store that is being deleted


class Item(Config):
    """Something that may be deleted."""

    name: str
    """A run's name, or a path below the home folder."""
    bytes: int | None
    """Size on this machine; None: it is elsewhere."""
    handle: str | None = None
    """A run's handle."""
    state: RunState | None = None
    """State in which a run ended."""
    ended: float | None = None
    """When it ended, seconds since the epoch."""


class Deletion(Config):
    """Items that would be deleted."""

    @property
    def items(self) -> list[Item]:
        """Everything that would be deleted."""
        raise NotImplementedError

    @property
    def total_bytes(self) -> int:
        """Bytes that would be free on this machine."""
        return sum(item.bytes or 0 for item in self.items)


class Pruning(Deletion):
    """Runs, leftovers and token stores that would be deleted."""

    runs: list[Item]
    """Runs, the oldest first."""
    kept: dict[str, str] = Field(default={})
    """Run that the rules allow to delete -> why it is kept."""
    leftovers: list[Item]
    """What interrupted submissions and deletions left behind, and compiled code."""
    token_stores: list[Item]
    """Prepared data of texts that no remaining run uses."""
    unused_store_bytes: int
    """Size of all such token stores, also of those that would stay."""

    @property
    def items(self) -> list[Item]:
        """Everything that would be deleted."""
        return [*self.runs, *self.leftovers, *self.token_stores]


class Pruned(Config):
    """Result of a deletion."""

    deleted: list[Item]
    """Deleted items, in order."""
    kept: dict[str, str]
    """Run -> why it was kept after all."""
    freed_bytes: int
    """Bytes freed on this machine."""


def expired(
    runs: Iterable[RunStatus],
    *,
    keep_last: int | None,
    older_than: float | None,
    states: Collection[RunState],
    now: float,
) -> list[RunStatus]:
    """Return the ended runs that every given rule allows to delete, the oldest first.

    Args:
        runs: the newest first.
        keep_last: keep the N newest finished runs (in one of `states`).
        older_than: only runs that ended more than that many seconds before `now`.
        states: only runs that ended in one of these; empty: in any.
        now: seconds since the epoch.
    """
    ended = [status for status in runs if status.state.terminal and (not states or status.state in states)]
    return [
        status
        for status in reversed(ended[keep_last or 0 :])
        if older_than is None or now - (status.ended or status.created) > older_than
    ]


def plan_pruning(
    runs: Sequence[RunStatus],
    needs: Mapping[str, Mapping[str, Any]],
    backends: Mapping[str, Backend],
    home: Path,
    *,
    keep_last: int | None,
    older_than: float | None,
    states: Collection[RunState],
    stores: bool,
) -> Pruning:
    """Return the runs to delete by these rules (see `expired`), and what interrupted commands left on these backends.

    A run whose files another run, a sweep or an endpoint still needs is kept.

    Args:
        runs: the newest first.
        needs: sweep that may start more trials, or endpoint -> configuration with the absolute paths that it needs.
        backends: by name.
        home: the user's orchestrator folder.
        keep_last: see `expired`.
        older_than: see `expired`.
        states: see `expired`.
        stores: also delete token stores that no remaining run uses, and compiled code.
    """
    plans = read_plans(home)
    old = expired(runs, keep_last=keep_last, older_than=older_than, states=states, now=time.time())
    users = Users(runs, needs, backends, plans, {status.handle for status in old})
    gone: list[tuple[RunStatus, Path | None]] = []
    kept: dict[str, str] = {}
    for status in reversed(old):  # the newest first: a run is older than those that start from it
        folder = backends[Handle.parse(status.handle).backend].folder(status.name)
        if reason := users.reason(folder):
            kept[status.name] = reason
            users.add(status)
        else:
            gone.insert(0, (status, folder))
    unused = [folder_item(home, path) for path in unused_stores(home, plans, [folder for _, folder in gone])]
    return Pruning(
        runs=[
            Item(
                name=status.name,
                handle=status.handle,
                bytes=_run_bytes(folder, plans.get(folder)) if folder else None,
                state=status.state,
                ended=status.ended,
            )
            for status, folder in gone
        ],
        kept=kept,
        leftovers=[
            *(
                folder_item(home, path)
                for backend in backends.values()
                if isinstance(backend, Deletes)
                for path in backend.leftovers()
            ),
            # of a prune that was killed: see `delete_store`
            *(folder_item(home, path) for path in sorted((home / TOKEN_STORES).glob(".*.building"))),
            *(folder_item(home, path) for path in _compiled_code(home, runs) if stores),
        ],
        token_stores=unused if stores else [],
        unused_store_bytes=sum(item.bytes or 0 for item in unused),
    )


def prune(
    pruning: Pruning,
    runs: Sequence[RunStatus],
    needs: Mapping[str, Mapping[str, Any]],
    backends: Mapping[str, Backend],
    home: Path,
) -> Pruned:
    """Delete what `pruning` lists, except for runs that were resumed or are needed again, and stores that are used.

    Args:
        pruning: returned by `plan_pruning`, and shown to the user meanwhile.
        runs: the newest first, as they are now.
        needs: see `plan_pruning`, as they are now.
        backends: by name; those of the runs.
        home: the user's orchestrator folder.

    Raises:
        StorageError: something cannot be deleted.
    """
    deleted: list[Item] = []
    kept = dict(pruning.kept)
    users = Users(runs, needs, backends, read_plans(home), {item.handle for item in pruning.runs})
    known = {status.handle: status for status in runs}
    for item in reversed(pruning.runs):  # the newest first, as in `plan_pruning`
        handle = Handle.parse(str(item.handle))
        backend = backends[handle.backend]
        users.add_submitted()
        try:
            if reason := users.reason(backend.folder(handle.name)):
                raise ConflictError(reason)
            require(backend, Deletes).delete(handle.name)
            deleted.insert(0, item)
        except (ConflictError, NotFoundError) as problem:
            if not backend.has(handle.name):  # another command deleted it
                continue
            # resumed or needed since the user read the plan, or a file of it is missing: report it, delete the others
            kept[item.name] = problem.message
            if item.handle in known:
                users.add(known[item.handle])
    for item in pruning.leftovers:
        if item.name == str(COMPILE_CACHE) and not _compiled_code(home, runs):
            continue
        delete_store(home / item.name) if item.name.endswith(BUILDING) else delete_tree(home / item.name)
        deleted.append(item)
    unused = unused_stores(home, read_plans(home), ())  # a run may have been submitted since the pruning was planned
    for item in pruning.token_stores:
        store = home / item.name
        if store in unused:
            delete_store(store)
            deleted.append(item)
    return Pruned(deleted=deleted, kept=kept, freed_bytes=sum(item.bytes or 0 for item in deleted))


def _compiled_code(home: Path, runs: Iterable[RunStatus]) -> list[Path]:
    """Return the folder of compiled code, if it exists and no run is active, which may be compiling."""
    folder = home / COMPILE_CACHE
    return [folder] if folder.is_dir() and all(status.state.terminal for status in runs) else []


class _PlanFacts(NamedTuple):
    """Facts of a plan that was submitted."""

    text: str | None
    """Hash of its text; None: the plan cannot be read."""
    code_bytes: int | None
    """Size of the code that its run has a copy of; None: unknown."""


def read_plans(home: Path) -> dict[Path, _PlanFacts]:
    """Return folder of a run -> facts of its plan."""
    return {plan.parent: plan_facts(plan) for plan in home.glob("*/*/plan.json")}


def plan_facts(document: Path) -> _PlanFacts:
    """Return facts of a plan."""
    try:
        plan = from_json(document.read_bytes())  # of pydantic: it takes half the time of `json`
        return _PlanFacts(str(plan["data"]["sha256"]), plan.get("snapshot", {}).get("total_bytes"))
    except (OSError, ValueError, KeyError, TypeError):
        return _PlanFacts(None, None)


def text_of_store(store: Path) -> str | None:
    """Return the hash of a token store's text; None: the store is unfinished or damaged."""
    try:
        return str(parse_checked((store / MANIFEST_FILE).read_bytes())["data"]["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _needed(folder: Path) -> list[str]:
    """Return the absolute paths that the job of a run's folder reads; none if its plan cannot be read."""
    with suppress(OSError, ValueError):
        plan = RunFolder(folder).read_json(PLAN)
        return list(_paths(plan.get("job"))) if isinstance(plan, dict) else []
    return []


def _paths(value: Any) -> Iterator[str]:
    """Yield the absolute paths in a configuration."""
    if isinstance(value, str):
        if value.startswith(os.sep):
            yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _paths(inner)


class Users:
    """Folders of runs that a resumable run, a sweep or an endpoint still needs: `--model`, `--phase-from`, data.

    Args:
        runs: all runs.
        needs: see `plan_pruning`.
        backends: by name.
        known: folders of runs whose needs are known.
        without: handles of the runs that may be deleted.
    """

    def __init__(
        self,
        runs: Iterable[RunStatus],
        needs: Mapping[str, Mapping[str, Any]],
        backends: Mapping[str, Backend],
        known: Iterable[Path],
        without: Collection[str | None],
    ) -> None:
        self._users: dict[Path, str] = {}
        self._backends, self._known = backends, defaultdict[Path, set[str]](set)
        for folder in known:
            self._known[folder.parent].add(folder.name)
        for name, configuration in needs.items():
            self._need(name, _paths(configuration))
        for status in runs:
            if status.handle not in without:
                self.add(status)

    def _folder(self, status: RunStatus) -> Path | None:
        """Return the folder of a run; None: it is on other machines, and so are the files that it reads."""
        backend = self._backends[Handle.parse(status.handle).backend]
        return None if backend.remote else backend.folder(status.name)

    def add(self, status: RunStatus) -> None:
        """Add a run that is kept; one that completed needs no other."""
        if status.state != RunState.COMPLETED and (folder := self._folder(status)) is not None:
            self._need(status.name, _needed(folder))

    def add_submitted(self) -> None:
        """Add the runs that were submitted meanwhile."""
        for place, known in self._known.items():
            for name in set(os.listdir(place)) - known:  # noqa: PTH208  # for each deletion: Path would take much longer
                known.add(name)
                if not name.startswith("."):
                    self._need(name, _needed(place / name))

    def reason(self, folder: Path | None) -> str | None:
        """Return why a run must be kept; None: nothing needs it."""
        user = None if folder is None else self.user(folder)
        return None if user is None else f"{user} needs its files"

    def user(self, folder: Path) -> str | None:
        """Return what needs files of a folder; None: nothing does."""
        return self._users.get(folder.resolve()) if self._users else None

    def _need(self, user: str, paths: Iterable[str]) -> None:
        for path in paths:
            for folder in ((real := Path(path).resolve()), *real.parents):
                self._users.setdefault(folder, user)


def unused_stores(home: Path, plans: Mapping[Path, _PlanFacts], without: Collection[Path | None]) -> list[Path]:
    """Return the token stores of texts that no run uses, apart from the runs in the folders `without`.

    A store's key includes the hash of its text, so a store of another text cannot belong to a remaining run. If the
    plan of a run cannot be read, its text is unknown, and no store counts as unused.
    """
    texts = {plans[folder].text for folder in plans.keys() - set(without)}
    if None in texts:
        return []  # deleting is the one thing that cannot be undone: when in doubt, keep
    texts.add(None)  # a store without a valid manifest may be in preparation
    manifests = sorted((home / TOKEN_STORES).glob(f"[!.]*/{MANIFEST_FILE}"))
    return [manifest.parent for manifest in manifests if text_of_store(manifest.parent) not in texts]


def _run_bytes(folder: Path, plan: _PlanFacts | None) -> int:
    """Return the size of a run. That of its code is in its plan: a copy has hundreds of files."""
    known = plan.code_bytes if plan is not None else None
    if known is None:
        return tree_bytes(folder)
    return known + tree_bytes(folder, skip=CODE)


def tree_bytes(folder: Path | str, skip: str | None = None) -> int:
    """Return the size of all files below a folder; a file that is deleted meanwhile does not count.

    Args:
        folder: the folder.
        skip: name of a folder directly below it that is left out.
    """
    total = 0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                total += tree_bytes(entry.path) if entry.name != skip else 0
            else:
                with suppress(FileNotFoundError):
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def folder_item(home: Path, folder: Path) -> Item:
    """Return a folder below the home folder as an item."""
    return Item(name=str(folder.relative_to(home)), bytes=tree_bytes(folder))


def delete_store(store: Path) -> None:
    """Delete a token store and its lock file, or one that a killed command has hidden.

    Args:
        store: its folder.

    Raises:
        StorageError: it cannot be deleted.
    """
    with _deleting(store):
        hidden, key = store, store.name
        if key.endswith(BUILDING):
            key = key.removeprefix(".").removesuffix(BUILDING).rpartition(".")[0]
        else:
            # Renamed first: a job that starts at this moment sees a complete store or none, and a hidden folder is
            # never taken for a store.
            hidden = store.rename(store.with_name(f".{key}.{os.getpid()}{BUILDING}"))
        # Before the folder, by which the next command finds the lock if this one is killed.
        lock = store.with_name(f".{key}.lock")
        if not is_held(lock):  # no process prepares the store again
            lock.unlink(missing_ok=True)
        remove_tree(hidden)


def delete_tree(folder: Path, *, hide: bool = False) -> None:
    """Delete a folder, see `remove_tree`; one that another command deletes too is no error.

    Args:
        folder: the folder.
        hide: rename it first, see `delete_folder`.

    Raises:
        StorageError: it cannot be deleted.
    """
    with _deleting(folder):
        (delete_folder if hide else remove_tree)(folder)


@contextmanager
def _deleting(folder: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as problem:
        raise write_error(f"cannot delete {folder}", problem, folder, fix=f"chmod u+w {in_shell(folder)}") from problem
