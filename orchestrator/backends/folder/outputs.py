"""Outputs of a run by name, and copies of them that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.backends.base import Progress, no_such_output
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.support.errors import ConflictError, StorageError
from train_jobs.artifacts.commit import COMMIT
from train_jobs.artifacts.files import sync

COPIED_AT_ONCE = 16 * 1024 * 1024


def outputs_of(run: RunFolder) -> dict[str, Path]:
    """What can be downloaded: what was submitted, the logs, and whatever the job has written, by its name."""
    found = {"code": run.code, "logs": run.logs, "plan": run.path / "plan.json", "spec": run.path / "spec.yaml"}
    written = [path for path in sorted(run.outputs.glob("*")) if not path.name.startswith((".", "error-"))]
    found |= {path.stem if path.is_file() else path.name: path for path in written}
    if (store := run.read_result().get("store")) is not None:  # lies elsewhere: all runs share it
        found["store"] = Path(store)
    return {name: path for name, path in sorted(found.items()) if path.exists()}


def download(run: RunFolder, outputs: Sequence[str], to: Path, *, force: bool, progress: Progress | None) -> list[Path]:
    """Copies outputs to below `to`, all of them or none: beside their places first, then into them.

    Args:
        run: whose.
        outputs: names as in `outputs_of`; none: all.
        to: folder; made if missing.
        force: replace what is there.
        progress: told bytes done and bytes in all.

    Raises:
        NotFoundError: the run has no such output; tells those that it has.
        ConflictError: there is something in the place of one, or it changed while it was copied.
        StorageError: `to` cannot be written.
    """
    sources = _chosen(run, outputs)
    targets = [to / source.name for source in sources]
    taken = [target for target in targets if _in_the_way(target)]
    if taken and not force:
        raise ConflictError(
            f"there is something at {taken[0]}",
            facts={"and": ", ".join(map(str, taken[1:]))} if taken[1:] else None,
            fix="--to another folder, or --force to replace it",
        )
    draft = to / f".download.{run.name}.{os.getpid()}"
    try:
        draft.mkdir(parents=True)
        _copy(sources, draft, progress)
        for source, target in zip(sources, targets, strict=True):
            _move(draft / source.name, target)
        sync(to)
    except FileNotFoundError as problem:
        raise ConflictError(
            f"run {run.name} changed while it was copied",
            facts={"gone": problem.filename},
            fix="the same command again",
        ) from problem
    except OSError as problem:
        raise StorageError(
            f"cannot download to {to}: {problem.strerror}", fix="free some space, or --to another folder"
        ) from problem
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return targets


def _chosen(run: RunFolder, outputs: Sequence[str]) -> list[Path]:
    known = outputs_of(run)
    unknown = [name for name in outputs if name not in known]  # or not written yet
    if unknown:
        raise no_such_output(run.name, run.read_state().state, unknown, known)
    return [known[name] for name in outputs or known]


def _in_the_way(target: Path) -> bool:
    return any(target.iterdir()) if target.is_dir() else target.exists()


def _copy(sources: list[Path], draft: Path, progress: Progress | None) -> None:
    files = [(path, draft / path.relative_to(source.parent)) for source in sources for path in _files(source)]
    total = sum(path.stat().st_size for path, _ in files)
    done = 0
    for source in sources:
        if source.is_dir():
            (draft / source.name).mkdir()  # also of an output without a file yet
    for path, copy in files:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as reading, copy.open("wb") as writing:
            while block := reading.read(COPIED_AT_ONCE):
                writing.write(block)
                done += len(block)
                if progress:
                    progress(done, total)
            writing.flush()
            os.fsync(writing.fileno())
        shutil.copystat(path, copy)


def _files(source: Path) -> Iterator[Path]:
    """Files of an output; of checkpoints those that are committed."""
    if source.is_file():
        yield source
        return
    for folder, subfolders, names in os.walk(source):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        if source.name == "checkpoints" and Path(folder).parent == source and COMMIT not in names:
            subfolders.clear()
            continue
        yield from (Path(folder, name) for name in sorted(names))


def _move(copy: Path, target: Path) -> None:
    """Into its place; what lies there is moved out of the way first, and back if that fails."""
    old = copy.with_name(f"{copy.name}.old")
    if target.exists():
        target.rename(old)
    try:
        copy.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
