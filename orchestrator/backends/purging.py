"""Purge: delete runs with all their traces on this machine, and list the traces that remain elsewhere.

A prune frees space and keeps records; a purge is for text that must not stay. A `Purging` lists what would be deleted
and what would remain; `Orchestrator.purge` deletes that, and copies to MLflow that were made meanwhile.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from orchestrator.backends import require
from orchestrator.backends.base import PLAN, Backend
from orchestrator.backends.capabilities import RUN_TAG, Deletes
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.folder.served_models import ENDPOINTS, forget_killed
from orchestrator.backends.folder.served_models import delete as delete_endpoint
from orchestrator.backends.retention import (
    BUILDING,
    Deletion,
    Item,
    Users,
    delete_store,
    delete_tree,
    folder_item,
    read_plans,
    text_of_store,
    tree_bytes,
    unused_stores,
)
from orchestrator.backends.tracked_traces import (
    LOCKS,
    TrackedTraces,
    TrackingMarks,
    compact_store,
    delete_traces,
    in_parts,
    open_store,
    tracked_traces,
)
from orchestrator.runs.hidden_folders import DELETED
from orchestrator.runs.status import SWEEP_TAG, Handle, RunStatus
from orchestrator.runs.tracked_run import (
    RECORD,
    SUBMITTED_TAG,
    default_uri,
    other_addresses,
    run_lock,
    submitted_tag,
)
from orchestrator.support.errors import ConflictError
from orchestrator.support.home import FINGERPRINT_CACHE, SWEEPS, TOKEN_STORES
from orchestrator.support.moved_home import MovedHome
from train_jobs.artifacts.files import is_held, read_object
from train_jobs.artifacts.mounts import write_error
from train_jobs.artifacts.tracking.mlflow_store import sqlite_path
from train_jobs.artifacts.tracking.model_registry import FOLDER, cached_copies
from train_jobs.config.errors import in_shell

MODELS = Path("cache", FOLDER)  # copies of registered models, below the home


class Purging(Deletion):
    """Traces of runs: those that would be deleted, and those that would remain."""

    runs: list[Item]
    """Runs, also the trials of the sweeps."""
    sweeps: list[Item]
    """Folders of sweeps."""
    pruned: list[str]
    """Names of runs and sweeps that have other traces, and no folder."""
    token_stores: list[Item]
    """Prepared data of their texts that no other run uses, and unfinished preparations of any text."""
    endpoints: list[str]
    """Endpoints on this machine that serve their models."""
    tracking: list[TrackedTraces]
    """Records in MLflow stores of this machine."""
    marks: TrackingMarks = Field(exclude=True)
    """By what those are found, also if they are made meanwhile."""
    folders: list[Path] = Field(exclude=True)
    """Folders of the runs, also of those that this command does not delete."""
    texts: frozenset[str | None] = Field(exclude=True)
    """Hashes of texts of sweeps, and of runs without a folder. Folders and texts show which token stores may go."""
    stores: list[str]
    """Tracking URIs of all such stores, also of those to which a copy is still being made."""
    caches: list[str]
    """Files and folders below the home folder that later commands write again: hashes, statuses, copies of models."""
    remains: list[str]
    """Traces that this command does not delete, each with what to do."""

    @property
    def items(self) -> list[Item]:
        """Folders that would be deleted."""
        return [*self.runs, *self.sweeps, *self.token_stores]

    @property
    def records(self) -> list[str]:
        """Everything else that would be deleted, one line each."""
        return [
            *(f"endpoint {name}" for name in self.endpoints),
            *(f"MLflow run {run}" for one in self.tracking for run in one.runs),
            *(f"registered model {name} version {version}" for one in self.tracking for name, version in one.models),
            *(f"cache {name}" for name in self.caches),
        ]


def without_folder(home: Path, names: Collection[str]) -> set[str]:
    """Return those of the names of runs and sweeps that have no folder any more, on any backend."""
    return {*names} - {path.name for path in home.glob("*/*")}


def pruned_names(home: Path) -> set[str]:
    """Return the names of runs and sweeps without a folder: those in the home's MLflow store, and half-deleted ones."""
    hidden = (path.name for path in home.glob(f"*/{DELETED}*"))
    names = {name.removeprefix(DELETED).rpartition(".")[0] for name in hidden}
    path = sqlite_path(default_uri(home))
    if path is not None and path.is_file():
        with suppress(sqlite3.Error), closing(open_store(path)) as database:  # of another program, or damaged
            query = "SELECT DISTINCT value FROM tags WHERE key IN (?, ?)"
            names |= {name for (name,) in database.execute(query, (RUN_TAG, SWEEP_TAG))}
    return without_folder(home, names)


def plan_purging(
    statuses: Sequence[RunStatus],
    sweeps: Mapping[str, str],
    backends: Mapping[str, Backend],
    home: Path,
    *,
    needs: Mapping[str, Mapping[str, Any]],
    pruned: Collection[str] = (),
) -> Purging:
    """Return the traces of runs and sweeps.

    Args:
        statuses: of the runs, with the trials of the sweeps.
        sweeps: name of a sweep -> its tracking URI.
        backends: by name; those of the runs.
        home: the user's orchestrator folder.
        needs: see `retention.plan_pruning`.
        pruned: names of runs and sweeps without a folder, which have other traces: trials of the sweeps, and what only
            the home's MLflow store has.

    Raises:
        ConflictError: a run has not ended, or a sweep is running.
    """
    for status in statuses:
        _require_ended(status)
    for name in sweeps:
        if is_held(home / SWEEPS / name / "lock"):
            raise ConflictError(f"cannot purge sweep {name}: it is running", fix=f"orchestrator cancel {name}")
    owners = {status.name: backends[Handle.parse(status.handle).backend] for status in statuses}
    mine = [status for status in statuses if isinstance(owners[status.name], Deletes)]
    folders = {status.name: owners[status.name].folder(status.name) for status in statuses}
    names = {*folders, *sweeps, *pruned}
    uris = {status.tracking_uri or default_uri(home) for status in mine} | set(sweeps.values())
    if pruned:
        uris.add(default_uri(home))
    places = [*filter(None, folders.values()), *(home / SWEEPS / name for name in sweeps)]
    records = [_read(home / SWEEPS / name / "sweep.json") for name in sweeps]
    moves = [RunFolder(place).moved_home() for place in folders.values() if place is not None]
    moves += [MovedHome.find(record.get("homes", ()), home) for record in records]
    for place, moved in zip(places, moves, strict=True):  # in a copied home, never the store of the original
        uris |= set(other_addresses(place) if moved is None else moved.follow(other_addresses(place)))
    created = [*(status.created for status in mine), *(float(record.get("created", 0)) for record in records)]
    marks = TrackingMarks(
        handles=frozenset(status.handle for status in mine),
        names=frozenset([*sweeps, *pruned]),
        submitted=frozenset(submitted_tag(moment)[SUBMITTED_TAG] for moment in created),
        ids=frozenset(str((read_object(place / RECORD) or {}).get("run_id")) for place in places),
    )
    tracking = [found for uri in sorted(uris) if (found := tracked_traces(uri, marks, home)) is not None]
    texts = {*(record.get("data") for record in records), *(text for found in tracking for text in found.texts)}
    stores, unused = _stores(home, folders.values(), texts)
    copies, used = _cached_models(home, marks, backends, needs)
    return Purging(
        runs=[
            Item(
                name=status.name,
                handle=status.handle,
                bytes=tree_bytes(folder) if (folder := folders[status.name]) else None,
                state=status.state,
                ended=status.ended,
            )
            for status in mine
        ],
        sweeps=[folder_item(home, home / SWEEPS / name) for name in sweeps],
        pruned=sorted(pruned),
        token_stores=[folder_item(home, path) for path in stores],
        endpoints=[name for name, run in _endpoints(home) if run in names],
        tracking=tracking,
        marks=marks,
        folders=[folder for folder in folders.values() if folder is not None],
        texts=frozenset(texts),
        stores=[uri for uri in sorted(uris) if sqlite_path(uri) is not None],
        caches=[*_caches(home), *copies],
        remains=[
            *used,
            *(line for status in statuses if status not in mine for line in _elsewhere(status, folders[status.name])),
            *_remaining_files(home, folders, mine),
            *(
                f"MLflow runs and versions of models at {uri}: delete them there, see docs/privacy.md"
                for uri in sorted(uris)
                if sqlite_path(uri) is None
            ),
            *(f"{path.relative_to(home)}, of a text that no run uses: orchestrator prune --stores" for path in unused),
        ],
    )


def _require_ended(status: RunStatus) -> None:
    if not status.state.terminal:
        fix = f"orchestrator cancel {status.name}"
        raise ConflictError(f"cannot purge run {status.name}: it is {status.state}", fix=fix)


def purge(
    purging: Purging, needs: Mapping[str, Mapping[str, Any]], backends: Mapping[str, Backend], home: Path
) -> Purging:
    """Delete what `purging` lists, except for stores and models that are in use by now; return what was deleted.

    The folders of runs and sweeps come last: by them, a purge that is repeated after a kill or an error finds the rest.

    A copy to MLflow that is being made meanwhile is waited for, and deleted too; none is begun afterwards.

    Args:
        purging: returned by `plan_purging`, and shown to the user meanwhile.
        needs: see `retention.plan_pruning`, as they are now.
        backends: by name; those of the runs.
        home: the user's orchestrator folder.

    Raises:
        ConflictError: a run was resumed meanwhile.
        ServiceError: MLflow refused, or a copy takes too long.
        StorageError: something cannot be deleted.
    """
    for endpoint in purging.endpoints:
        delete_endpoint(home, endpoint)
        (home / ENDPOINTS / f"{endpoint}.log").unlink(missing_ok=True)
    forget_killed(home)
    handles = [Handle.parse(str(item.handle)) for item in purging.runs]
    for one in handles:  # again: it would need its token store
        _require_ended(backends[one.backend].describe(one.name))
    for item in purging.sweeps:
        Path(home / item.name).with_name(f".{Path(item.name).name}.lock").unlink(missing_ok=True)
    purging = _delete_caches(_delete_stores(purging, home), needs, backends, home)
    deletions: list[tuple[Path | None, Callable[[], object]]] = [
        (backends[one.backend].folder(one.name), partial(require(backends[one.backend], Deletes).delete, one.name))
        for one in handles
    ]
    deletions += [(home / item.name, partial(delete_tree, home / item.name, hide=True)) for item in purging.sweeps]
    for first in range(0, max(len(deletions), 1), LOCKS):  # once also without folders, for records of pruned runs
        _delete_copied(deletions[first : first + LOCKS], purging, home)
    names = [*(Path(item.name).name for item in (*purging.runs, *purging.sweeps)), *purging.pruned]
    for path in home.glob("*/.*"):  # drafts, deletions that were killed, and what the locks held until here kept
        if path.is_dir() and any(f".{name}." in path.name for name in names):
            delete_tree(path)
    return purging


def _delete_copied(deletions: Sequence[tuple[Path | None, Callable[[], object]]], purging: Purging, home: Path) -> None:
    """Delete the records of runs and sweeps in stores on this machine, then their folders.

    This holds the locks under which other processes copy them to MLflow: one that copies an ended run may still be at
    it, and one that waits for the lock finds no folder afterwards.

    Args:
        deletions: the folder of each, and what deletes it.
        purging: the whole purge; records of its other runs are deleted too, and looked for again under their locks.
        home: the user's orchestrator folder.
    """
    folders = [folder for folder, _ in deletions if folder is not None]
    with ExitStack() as locks:
        for folder in folders:
            try:
                locks.enter_context(run_lock(folder, "purge"))
            except OSError as problem:
                fix = f"chmod -R u+w {in_shell(folder)}"
                raise write_error(f"cannot purge {folder.name}", problem, folder, fix=fix) from problem
        for uri in purging.stores:
            if (traces := tracked_traces(uri, purging.marks, home)) is not None:
                for part in in_parts(traces):
                    delete_traces(part)
            # Always: a purge that was killed here before may have deleted all records, and left their rows in the file.
            compact_store(uri)
        for _, delete in deletions:
            delete()


def _stores(
    home: Path, folders: Collection[Path | None], texts: Collection[str | None]
) -> tuple[list[Path], list[Path]]:
    """Return the token stores to delete, and the others that no run uses.

    To delete are those of the runs' texts that no other run uses, all unfinished ones that no process makes, and those
    that a killed `prune --stores` has hidden.

    Args:
        home: the user's orchestrator folder.
        folders: of the runs.
        texts: hashes of further texts: of sweeps, and of runs that have no folder.
    """
    plans = read_plans(home)
    gone = {*texts, *(plans[folder].text for folder in folders if folder in plans)}
    place = home / TOKEN_STORES
    unused = unused_stores(home, plans, folders)
    chosen = [path for path in unused if text_of_store(path) in gone]
    unfinished = [
        path
        for path in (place.iterdir() if place.is_dir() else ())
        if path.is_dir()
        and (path.name.startswith(".") or text_of_store(path) is None)
        and not is_held(place / f".{path.name}.lock")
    ]
    return sorted([*chosen, *unfinished]), [path for path in unused if path not in chosen]


def _delete_stores(purging: Purging, home: Path) -> Purging:
    """Delete the token stores that are still unused; return the purge with the others among what remains."""
    stores, _ = _stores(home, purging.folders, purging.texts)  # again: a run may have been submitted meanwhile
    deleted, used = list[Item](), list[str]()
    for item in purging.token_stores:
        store = home / item.name
        if store.exists() and (store not in stores or is_held(store.with_name(f".{store.name}.lock"))):
            used.append(f"{item.name}, which is in use by now: purge the runs that use it too")
            continue
        hidden = store.name.startswith(".") and not store.name.endswith(BUILDING)
        (delete_tree if hidden else delete_store)(store)
        deleted.append(item)
    return purging.model_copy(update={"token_stores": deleted, "remains": [*used, *purging.remains]})


def _endpoints(home: Path) -> Iterator[tuple[str, str]]:
    """Yield the endpoints on this machine with the names of their runs."""
    for path in sorted((home / ENDPOINTS).glob("*.json")):
        with suppress(OSError, ValueError, KeyError):
            yield path.stem, str(json.loads(path.read_text())["run"])


def _caches(home: Path) -> list[str]:
    """Return the caches of a home, below it: rows of runs and hashes of files have no other owner."""
    hashes = Path(TOKEN_STORES, "hashes.json")
    found = [*(path.relative_to(home) for path in sorted((home / "cache").glob("*.tsv"))), FINGERPRINT_CACHE, hashes]
    return [str(path) for path in found if (home / path).is_file()]


def _cached_models(
    home: Path, marks: TrackingMarks, backends: Mapping[str, Backend], needs: Mapping[str, Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """Return the copies of registered models of the runs, below the home, and a line for each that is still needed.

    Other jobs started or predicted from them. One that can be resumed finds its model by the path of the copy alone.
    """
    hidden = sorted((home / MODELS).glob(f"*/{DELETED}*"))  # of a purge that was killed
    deleted, used = [str(path.relative_to(home)) for path in hidden], list[str]()
    copies = [*cached_copies(home / "cache", marks.made)]
    runs = [run for one in backends.values() if copies and not one.remote for run in one.list()]
    gone = {run.handle for run in runs if marks.made(run.handle)}
    users = Users(runs, {name: need for name, need in needs.items() if name not in marks.names}, backends, (), gone)
    for folder, records in copies:
        if (user := users.user(folder)) is not None:
            used.append(f"a copy of the model, which {user} needs: when that has completed, rm -r {in_shell(folder)}")
        else:  # the records last: by them, a repeated purge finds what a killed one left
            deleted += [str(path.relative_to(home)) for path in (folder, *records)]
    return deleted, used


def _delete_caches(
    purging: Purging, needs: Mapping[str, Mapping[str, Any]], backends: Mapping[str, Backend], home: Path
) -> Purging:
    """Delete the caches, except for models that are needed by now; return the purge with those among what remains."""
    copies, used = _cached_models(home, purging.marks, backends, needs)
    kept = [name for name in purging.caches if Path(name).is_relative_to(MODELS) and name not in copies]
    caches = [name for name in purging.caches if name not in kept]
    for name in caches:
        path = home / name
        if path.is_dir():
            delete_tree(path, hide=not path.name.startswith("."))  # half a model must never be found
        else:
            path.unlink(missing_ok=True)
    remains = [*(line for line in used if line not in purging.remains), *purging.remains]
    return purging.model_copy(update={"caches": caches, "remains": remains})


def _elsewhere(status: RunStatus, folder: Path | None) -> Iterator[str]:
    """Yield the traces of a run whose backend cannot delete it."""
    backend = Handle.parse(status.handle).backend
    yield f"run {status.name}: its files, record and models at {backend}: delete them there, see docs/privacy.md"
    if folder is not None:
        yield f"its record on this machine, by which commands find it: rm -r {in_shell(folder)}"


def _remaining_files(home: Path, folders: Mapping[str, Path | None], mine: Sequence[RunStatus]) -> Iterator[str]:
    """Yield files of the user, shared data, and runs that learned from the purged ones."""
    plans = {path.parent: _read_own(path.parent, PLAN) for path in sorted(home.glob(f"*/*/{PLAN}"))}
    gone = [folder for folder in folders.values() if folder is not None]
    inside = {status.name for status in mine}
    texts = {text_of_store(store) for store in (home / TOKEN_STORES).glob("[!.]*")}
    for name, folder in folders.items():
        if folder is None or name not in inside:
            continue
        plan, result = plans.get(folder, {}), _read_own(folder, "outputs/result.json")
        yield f"the data of {name}: {plan.get('data', {}).get('name')}"
        if (delivered := plan.get("delivery")) and Path(delivered).exists():
            yield f"predictions of {name}: rm {in_shell(delivered)}"
        if (store := result.get("store")) and not Path(store).is_relative_to(home):
            yield f"the token store of {name}: rm -r {in_shell(store)}"
        text = _sha(plan)
        users = [other.name for other, found in plans.items() if other not in gone and _sha(found) == text in texts]
        if users:
            yield f"token stores of the text of {name}, which other runs use: purge {' '.join(users)} too"
    for other, plan in plans.items():
        parent = (plan.get("parent") or {}).get("facts", {}).get("run") or ""
        if other not in gone and parent.rpartition("/")[2] in folders:
            yield f"run {other.name}, which started from {parent}: purge {other.name} too"
    for copy in sorted(home.glob("mlflow.db.*")):
        yield f"an earlier MLflow store: rm {in_shell(copy)}"
    yield "downloads, exports and backups made by hand"


def _sha(plan: Mapping[str, Any]) -> str | None:
    return (plan.get("data") or {}).get("sha256")


def _read_own(folder: Path, name: str) -> dict[str, Any]:
    """Return a document of a run's folder with the present paths of a moved or copied home; empty without it."""
    with suppress(OSError, ValueError):
        found = RunFolder(folder).read_json(name)
        return found if isinstance(found, dict) else {}
    return {}


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
