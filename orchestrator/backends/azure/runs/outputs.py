"""Outputs of a run in the datastore: by name, as those of a local run, and copies of them on this machine."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from orchestrator.backends.azure.assets import places
from orchestrator.backends.azure.wire.blobs import Blob, Files
from orchestrator.backends.base import Progress, no_such_output
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError, StorageError
from train_jobs.artifacts.commit import COMMIT

STORE = "store"  # name of the output that a preparation leaves beside its own
DRAFT = ".download."  # and the run's name: what an interrupted download left, and goes on from


class Output(NamedTuple):
    """What can be downloaded under one name."""

    path: str
    """Its file or folder, below places.ROOT."""
    files: list[Blob]
    """Named as below places.ROOT."""


def outputs_of(files: Files, run: str, store: str | None) -> dict[str, Output]:
    """What can be downloaded: what was submitted and whatever the job has written, by its name.

    Of checkpoints those that are committed.

    Args:
        files: of the datastore.
        run: whose.
        store: URI of the token store that it prepared; None: it prepared none, or has not ended.
    """
    found: dict[str, Output] = {}
    of_run = places.run_folder(run)
    blobs = files.list(of_run)
    committed = {blob.name.rpartition("/")[0] for blob in blobs if blob.name.endswith(f"/{COMMIT}")}
    for blob in blobs:
        top, _, rest = blob.name.partition("/")
        if top == "job":
            if rest in {"plan.json", "spec.yaml"}:
                _add(found, Path(rest).stem, of_run, f"{top}/{rest}", blob)
            continue
        first, _, below = rest.partition("/")
        if first.startswith((".", "error-")) or (first == "checkpoints" and not _is_committed(blob.name, committed)):
            continue
        _add(found, first if below else Path(first).stem, of_run, f"{top}/{first}", blob)
    if store is not None:
        name = PurePosixPath(store).name
        for blob in files.list(f"{places.TOKEN_STORES}{name}/"):
            _add(found, STORE, places.TOKEN_STORES, name, blob._replace(name=f"{name}/{blob.name}"))
    return dict(sorted(found.items()))


def _add(found: dict[str, Output], name: str, folder: str, path: str, blob: Blob) -> None:
    """One more file of an output: `path` and the name of `blob` are as below `folder`."""
    below = folder.removeprefix(places.ROOT)
    output = found.setdefault(name, Output(below + path, []))
    output.files.append(blob._replace(name=below + blob.name))


def _is_committed(name: str, committed: set[str]) -> bool:
    return any(name.startswith(f"{folder}/") for folder in committed)


def download(
    files: Files,
    run: str,
    outputs: Sequence[str],
    to: Path,
    *,
    store: str | None,
    state: Callable[[], RunState],
    force: bool,
    progress: Progress | None,
) -> list[Path]:
    """Copies outputs to below `to`, all of them or none. The same command after an interruption goes on.

    Args:
        files, run, store: as of `outputs_of`.
        outputs: names; none: all.
        to: folder; made if missing.
        state: how the run stands, asked if it has not what is wanted.
        force: replace what is there.
        progress: told bytes done and bytes in all.

    Raises:
        NotFoundError: the run has no such output; tells those that it has.
        ConflictError: there is something in the place of one, or one is not what it should be.
        StorageError: `to` cannot be written.
    """
    known = outputs_of(files, run, store)
    unknown = [name for name in outputs if name not in known]
    if unknown or not known:
        raise no_such_output(run, state(), unknown, known)
    chosen = {name: known[name] for name in outputs or known}
    targets = {name: to / PurePosixPath(output.path).name for name, output in chosen.items()}
    for target in targets.values():
        if (any(target.iterdir()) if target.is_dir() else target.exists()) and not force:
            raise ConflictError(f"there is something at {target}", fix="--to another folder, or --force to replace it")
    draft = to / f"{DRAFT}{run}"
    try:
        draft.mkdir(parents=True, exist_ok=True)
        files.fetch(places.ROOT, [blob for output in chosen.values() for blob in output.files], draft, progress)
        _forget_all_but(draft, {draft / blob.name for output in chosen.values() for blob in output.files})
        _check_commits(draft)
        for name, target in targets.items():
            _replace(draft / chosen[name].path, target)
        shutil.rmtree(draft)
    except OSError as problem:
        raise StorageError(
            f"cannot download to {to}: {problem.strerror}", fix="free some space, or --to another folder"
        ) from problem
    return list(targets.values())


def _forget_all_but(folder: Path, wanted: set[Path]) -> None:
    """Deletes what an interrupted download left and the run no longer has: steps that were rotated, parts of files."""
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before the folder
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in wanted:
            path.unlink()


def _check_commits(folder: Path) -> None:
    """Every file of a checkpoint against the SHA-256 that its commit has."""
    for commit in folder.rglob(COMMIT):
        wanted: Mapping[str, Mapping[str, object]] = json.loads(commit.read_text()).get("files", {})
        for name, facts in wanted.items():
            with (commit.parent / name).open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != facts["sha256"]:
                    raise ConflictError(
                        f"{commit.parent.name}/{name} is damaged",
                        facts={"where": commit.parent},
                        fix="the same command with an earlier checkpoint",
                    )


def _replace(copy: Path, target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    elif target.exists():
        target.unlink()
    copy.rename(target)
