"""Outputs of a run in the datastore, with the names of a local run's, and copies of them on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from orchestrator.backends.azure import places
from orchestrator.backends.azure.runs.observer import Observer
from orchestrator.backends.azure.wire.blobs import Blob, Files
from orchestrator.backends.base import PLAN, RANK_ERROR, SPEC, Progress, no_such_output
from orchestrator.support.errors import ConflictError, StorageError
from train_jobs.artifacts.commit import COMMIT, read_commit
from train_jobs.artifacts.files import file_sha256, replace_path

STORE = "store"  # name of the token store among the outputs of a preparation
DRAFT = ".download."  # prefix of the folder of an interrupted download, which the next one resumes


class RemoteOutput(NamedTuple):
    """An output that can be downloaded."""

    path: str
    """Its file or folder, below places.ROOT."""
    files: list[Blob]
    """Its files, named below places.ROOT."""


def outputs_of(files: Files, run: str, store: str | None) -> dict[str, RemoteOutput]:
    """Return the outputs by name: submitted documents and files of the job; of checkpoints only committed ones.

    Args:
        files: of the datastore.
        run: the run's name.
        store: URI of the token store that it prepared; None: it prepared none (yet).
    """
    found: dict[str, RemoteOutput] = {}

    def add(name: str, folder: str, path: str, blob: Blob) -> None:
        """Add a file to an output; `path` and the name of `blob` are relative to `folder`."""
        below = folder.removeprefix(places.ROOT)
        output = found.setdefault(name, RemoteOutput(below + path, []))
        output.files.append(blob._replace(name=below + blob.name))

    of_run = places.run_folder(run)
    blobs = files.list(of_run)
    committed = tuple(blob.name.removesuffix(COMMIT) for blob in blobs if blob.name.endswith(f"/{COMMIT}"))
    for blob in blobs:
        top, _, rest = blob.name.partition("/")
        first, _, below = rest.partition("/")
        if top == "job":
            if rest in {PLAN, SPEC}:
                add(Path(rest).stem, of_run, blob.name, blob)
        elif first.startswith(".") or RANK_ERROR.fullmatch(rest):
            continue
        elif first != "checkpoints" or blob.name.startswith(committed):
            add(first if below else Path(first).stem, of_run, f"{top}/{first}", blob)
    if store is not None:
        name = PurePosixPath(store).name
        for blob in files.list(f"{places.TOKEN_STORES}{name}/"):
            add(STORE, places.TOKEN_STORES, name, blob._replace(name=f"{name}/{blob.name}"))
    return dict(sorted(found.items()))


def download(run: Observer, outputs: Sequence[str], to: Path, *, force: bool, progress: Progress | None) -> list[Path]:
    """Copy outputs to below `to`, all of them or none. After an interruption, the same command resumes the download.

    Args:
        run: the run.
        outputs: names; none: all.
        to: folder; created if missing.
        force: replace what exists.
        progress: called with bytes done and bytes in total.

    Raises:
        NotFoundError: the run has no such output; names those that it has.
        ConflictError: a target exists already, or a checkpoint is damaged.
        StorageError: `to` cannot be written.
    """
    name, files = run.folder.name, run.files()
    known = outputs_of(files, name, run.store())
    unknown = [output for output in outputs if output not in known]
    if unknown or not known:
        raise no_such_output(name, run.refresh().last.state, unknown, known)
    chosen = [known[output] for output in outputs or known]
    targets = {output.path: to / PurePosixPath(output.path).name for output in chosen}
    for target in targets.values():
        if (any(target.iterdir()) if target.is_dir() else target.exists()) and not force:
            raise ConflictError(f"{target} already exists", fix="--to another folder, or --force to replace it")
    # without a process id, unlike downloads on this machine: the next command continues in this folder
    draft = to / f"{DRAFT}{name}"
    blobs = [blob for output in chosen for blob in output.files]
    try:
        draft.mkdir(parents=True, exist_ok=True)
        files.fetch(places.ROOT, blobs, draft, progress)
        _remove_all_but(draft, {draft / blob.name for blob in blobs})
        _check_commits(draft)
        for path, target in targets.items():
            replace_path(draft / path, target)
        shutil.rmtree(draft)
    except OSError as problem:
        raise StorageError(
            f"cannot download to {to}: {problem.strerror}", fix="free some space, or --to another folder"
        ) from problem
    return list(targets.values())


def _remove_all_but(folder: Path, wanted: set[Path]) -> None:
    """Delete what is not of this download: rotated checkpoints, parts of files, copies that were replaced."""
    for path in sorted(folder.rglob("*"), reverse=True):  # a folder after what is in it
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in wanted:
            path.unlink()


def _check_commits(folder: Path) -> None:
    """Compare each file of a checkpoint with the SHA-256 in its commit.

    `verify` of the commit would also refuse checkpoints of formats that this version cannot resume from.
    """
    for commit in folder.rglob(COMMIT):
        for name, written in read_commit(commit.parent).files.items():
            if file_sha256(commit.parent / name) != written.sha256:
                raise ConflictError(
                    f"cannot use the copy of {commit.parent.name}/{name}: it is damaged",
                    facts={"where": commit.parent},
                    fix="run the same command with an earlier checkpoint",
                )
