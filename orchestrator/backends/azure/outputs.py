"""Outputs of a run in the datastore: by name, as those of a local run, and copies of them on this machine."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from orchestrator.backends.azure import places
from orchestrator.backends.azure.storage import Blob, Files
from orchestrator.errors import ConflictError, NotFoundError, StorageError
from train_jobs.config.names import did_you_mean

Progress = Callable[[int, int], None]
COMMIT = "COMMIT.json"
DRAFT = ".download."  # and the run's name: what an interrupted download left, and goes on from


def outputs_of(files: Files, run: str) -> dict[str, list[Blob]]:
    """What can be downloaded: what was submitted and whatever the job has written: name -> its files.

    Of checkpoints those that are committed; names of files are as below the folder of the run.
    """
    found: dict[str, list[Blob]] = {}
    blobs = files.list(places.run_folder(run))
    committed = {blob.name.rpartition("/")[0] for blob in blobs if blob.name.endswith(f"/{COMMIT}")}
    for blob in blobs:
        top, _, rest = blob.name.partition("/")
        if top == "job":
            if rest in {"plan.json", "spec.yaml"}:
                found[Path(rest).stem] = [blob]
            continue
        first, _, below = rest.partition("/")
        if first.startswith((".", "error-")) or (first == "checkpoints" and not _is_committed(blob.name, committed)):
            continue
        found.setdefault(first if below else Path(first).stem, []).append(blob)
    return dict(sorted(found.items()))


def _is_committed(name: str, committed: set[str]) -> bool:
    return any(name.startswith(f"{folder}/") for folder in committed)


def download(
    files: Files, run: str, outputs: tuple[str, ...], to: Path, *, force: bool, progress: Progress | None
) -> list[Path]:
    """Copies outputs to below `to`, all of them or none. The same command after an interruption goes on.

    Raises:
        NotFoundError: the run has no such output; tells those that it has.
        ConflictError: there is something in the place of one, or one is not what it should be.
        StorageError: `to` cannot be written.
    """
    known = outputs_of(files, run)
    unknown = [name for name in outputs if name not in known]
    if unknown or not known:
        raise NotFoundError(
            f"run {run} has no output {', '.join(unknown) or 'yet'}{did_you_mean((unknown or [''])[0], known)}",
            facts={"has": ", ".join(known) or "nothing"},
            fix=f"orchestrator status {run}",
        )
    chosen = {name: known[name] for name in outputs or known}
    targets = {name: to / _top(blobs[0].name) for name, blobs in chosen.items()}
    for target in targets.values():
        if (any(target.iterdir()) if target.is_dir() else target.exists()) and not force:
            raise ConflictError(f"there is something at {target}", fix="--to another folder, or --force to replace it")
    draft = to / f"{DRAFT}{run}"
    try:
        draft.mkdir(parents=True, exist_ok=True)
        files.fetch(places.run_folder(run), [blob for blobs in chosen.values() for blob in blobs], draft, progress)
        _check_commits(draft)
        for name, target in targets.items():
            _replace(draft / _below(chosen[name][0].name), target)
        shutil.rmtree(draft)
    except OSError as problem:
        raise StorageError(
            f"cannot download to {to}: {problem.strerror}", fix="free some space, or --to another folder"
        ) from problem
    return list(targets.values())


def _below(name: str) -> str:
    """The file or folder of an output, as below the run's folder: outputs/model of outputs/model/config.json."""
    return "/".join(name.split("/")[:2])


def _top(name: str) -> str:
    return name.split("/")[1]


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
