"""Outputs of a run by name, copies of them that are complete or absent, and the weights among them.

Checkpoints are known by their COMMIT.json; the job verifies their files.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.backends.base import RANK_ERROR, Progress, no_such_output
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.runs.status import BestCheckpoint
from orchestrator.support.errors import ConflictError, StorageError
from train_jobs.artifacts.commit import COMMIT, DAMAGED
from train_jobs.artifacts.drafts import draft
from train_jobs.artifacts.files import replace_path, sync
from train_jobs.artifacts.mounts import write_error
from train_jobs.artifacts.unreadable import unreadable
from train_jobs.config.errors import in_shell

BLOCK_BYTES = 16 * 1024 * 1024
WEIGHTS = ("checkpoints", "model")
TRASH = ".deleted."  # prefix of a folder that is being deleted
PLACES = ("", "*/", "*/*/")  # below the outputs: of a run, of a seed or a task, of a seed of a task


def outputs_of(run: RunFolder) -> dict[str, Path]:
    """Return the paths of all outputs by name: submitted documents, logs, and everything that the job has written."""
    found = {"code": run.code, "logs": run.logs, "plan": run.path / "plan.json", "spec": run.path / "spec.yaml"}
    for path in sorted(run.outputs.glob("*")):
        if not (path.name.startswith(".") or RANK_ERROR.fullmatch(path.name)):
            found[path.stem if path.is_file() else path.name] = path
    with suppress(OSError, ValueError, KeyError, TypeError):  # no store, or a damaged result, which is copied as it is
        found["store"] = Path(run.read_json("outputs/result.json")["store"])  # shared by all runs: elsewhere
    return {name: path for name, path in sorted(found.items()) if path.exists()}


def download(run: RunFolder, outputs: Sequence[str], to: Path, *, force: bool, progress: Progress | None) -> list[Path]:
    """Copy outputs to below `to`, all of them or none.

    They are first copied into a hidden folder there, on the same file system, and then renamed to their places.

    Args:
        run: folder of the run.
        outputs: names as in `outputs_of`; none: all.
        to: folder; made if missing.
        force: replace existing copies.
        progress: called with bytes done and bytes in total.

    Raises:
        NotFoundError: the run has no such output; lists those that it has.
        ConflictError: a copy exists already, or an output changed while it was copied.
        StorageError: `to` cannot be written.
    """
    known = outputs_of(run)
    if unknown := [name for name in outputs if name not in known]:
        raise no_such_output(run.name, run.known_state().state, unknown, known)
    sources = [known[name] for name in outputs or known]
    targets = [to / source.name for source in sources]
    taken = [target for target in targets if (any(target.iterdir()) if target.is_dir() else target.exists())]
    if taken and not force:
        raise ConflictError(
            f"{taken[0]} already exists",
            facts={"and": ", ".join(map(str, taken[1:]))} if taken[1:] else None,
            fix="--to another folder, or --force to replace it",
        )
    try:
        to.mkdir(parents=True, exist_ok=True)
        with draft(to / "download") as copies:  # inside `to`, so that the final rename stays on one file system
            copies.mkdir()
            _copy(sources, copies, progress)
            for target in targets:
                replace_path(copies / target.name, target)
        sync(to)
    except FileNotFoundError as problem:
        raise ConflictError(
            f"cannot download run {run.name}: it changed while it was copied",
            facts={"missing": problem.filename},
            fix="run the same command again",
        ) from problem
    except OSError as problem:
        if (closed := Path(problem.filename or to)).is_relative_to(run.path):
            error = unreadable(closed, problem)
            raise StorageError(error.message, facts=error.facts, fix=error.fix) from problem
        raise write_error(
            f"cannot download to {to}", problem, to, fix="free some space", then=", or --to another folder"
        ) from problem
    return targets


def _copy(sources: list[Path], copies: Path, progress: Progress | None) -> None:
    files = [(path, copies / path.relative_to(source.parent)) for source in sources for path in _files(source)]
    total = sum(path.stat().st_size for path, _ in files)
    done = 0
    for source in sources:
        if source.is_dir():
            (copies / source.name).mkdir()  # also of an output that has no files yet
    for path, copy in files:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as reading, copy.open("wb") as writing:
            while block := reading.read(BLOCK_BYTES):
                writing.write(block)
                done += len(block)
                if progress:
                    progress(done, total)
            # before the rename makes the copy visible: after a crash, a complete name must not have empty content
            writing.flush()
            os.fsync(writing.fileno())
        found = path.stat()
        os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))  # not the modes, which are those of a home folder


def _files(source: Path) -> Iterator[Path]:
    """Yield the files of an output; of checkpoints only the committed ones.

    A running job may be writing the newest checkpoint at this moment, and COMMIT.json is the last file that it writes.
    """
    if source.is_file():
        yield source
    for folder, subfolders, names in os.walk(source):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        if source.name == "checkpoints" and Path(folder).parent == source and COMMIT not in names:
            subfolders.clear()
        else:
            yield from (Path(folder, name) for name in sorted(names))


def best_checkpoint(folder: Path, *, scored: bool = False) -> BestCheckpoint | None:
    """Return the committed checkpoint of lowest validation loss, the earliest in a tie; None without any.

    Args:
        folder: of checkpoints.
        scored: whether a fine-tuning wrote them: its engine minimises the negative score as its loss.
    """
    found = []
    for path in folder.glob(f"step-*/{COMMIT}"):
        with suppress(OSError, ValueError, KeyError, TypeError):  # being written or deleted, or of another format
            document = json.loads(path.read_text())
            found.append((float(document["validation_loss"]), int(document["step"]), str(path.parent)))
    if not found:
        return None
    loss, step, place = min(found)
    figure = {"score": -loss} if scored else {"validation_loss": loss}
    return BestCheckpoint(step=step, folder=place, **figure)


def damaged_warning(checkpoints: Path) -> str | None:
    """Return a warning of checkpoints that a resumed run found damaged; None without any."""
    found = sorted(checkpoints.glob(f"{DAMAGED}step-*"))
    steps = ", ".join(path.name.removeprefix(f"{DAMAGED}step-").lstrip("0") for path in found)
    return f"damaged checkpoints were not used: step {steps}; their files: {checkpoints}/{DAMAGED}*" if found else None


def delete_weights(run: RunFolder, why: str) -> bool:
    """Delete checkpoints and models of a run, and leftovers of a deletion that was killed.

    Args:
        run: folder of a finished run.
        why: shown by its status from now on.

    Returns:
        False if another process still holds the run: call again later.

    Raises:
        StorageError: something cannot be deleted.
    """
    if not any(_weights(run)):  # of most runs, which need no lock
        return True
    with run.changing("delete the weights of"):
        return _delete_weights(run, why)


def _delete_weights(run: RunFolder, why: str) -> bool:
    # Folders are renamed before they are deleted, which takes seconds: no reader finds a checkpoint that has lost some
    # of its files, and a killed deletion leaves only hidden folders, which the next call removes.
    weights, trash = _weights(run)
    if not weights and not trash:  # the run was deleted meanwhile
        return True
    state = run.known_state()
    if not state.state.terminal or run.locked():  # it was resumed meanwhile
        return False
    try:
        with run.lock():
            for folder in trash:  # before the new ones, which get the same names
                shutil.rmtree(folder)
            trash = [folder.rename(folder.with_name(TRASH + folder.name)) for folder in weights]
            # before the slow part: if it is killed, the status already explains the missing weights
            run.write_state(state.model_copy(update={"warning": why}))
            for folder in trash:
                shutil.rmtree(folder)
    except OSError as problem:
        fix = f"chmod u+w {in_shell(run.outputs)}"
        raise write_error(f"cannot delete the weights of run {run.name}", problem, run.outputs, fix=fix) from problem
    return True


def _weights(run: RunFolder) -> tuple[list[Path], list[Path]]:
    """Return the folders of weights of a run, and those whose deletion was killed."""
    return _folders(run.outputs, WEIGHTS), _folders(run.outputs, [TRASH + name for name in WEIGHTS])


def _folders(outputs: Path, names: Iterable[str]) -> list[Path]:
    return [path for place in PLACES for name in names for path in outputs.glob(place + name) if path.is_dir()]
