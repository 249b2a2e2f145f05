"""What makes a folder a checkpoint: COMMIT.json, written last, over everything else that the folder holds."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Mapping
from pathlib import Path

from train_jobs.artifacts.files import sync
from train_jobs.config import ConflictError
from train_jobs.engine.checkpoint.cadence import Candidate
from train_jobs.engine.checkpoint.safetensors_file import WrittenFile, read_file, write_file
from train_jobs.engine.checkpoint.writer import at_once

FORMAT = 2
COMMIT = "COMMIT.json"


def folder_name(step: int) -> str:
    """Name of the folder of a step's checkpoint."""
    return f"step-{step:08d}"


def commit(folder: Path, found: Candidate, files: Mapping[str, WrittenFile]) -> None:
    """Writes COMMIT.json: step and validation loss; name, size and SHA-256 of every file."""
    document = {"format": FORMAT, **vars(found), "files": {name: vars(file) for name, file in files.items()}}
    at_once(write_file(folder / COMMIT, [json.dumps(document, indent=1).encode()]))
    with contextlib.suppress(OSError):  # not every mounted store can sync a folder
        sync(folder)


def candidate(folder: Path) -> Candidate | None:
    """What COMMIT.json says, or None if it is torn, missing or not of this folder. The other files are not looked at.

    Raises:
        OSError: it is there and cannot be read; it may be whole.
    """
    try:
        document = json.loads((folder / COMMIT).read_text())
        found = Candidate(document["step"], document["validation_loss"])
        return found if folder.name == folder_name(found.step) else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def verify(folder: Path) -> bool:
    """True if COMMIT.json is whole and of this folder, and every file that it names has its size and its SHA-256.

    Raises:
        ConflictError: all of that, and the format is one that this code does not know.
    """
    return at_once(verifying(folder))


def verifying(folder: Path) -> Generator[None, None, bool]:
    """`verify` in small steps."""
    try:
        document = json.loads((folder / COMMIT).read_text())
        written_as, files = document["format"], dict(document["files"])
        if not files or folder.name != folder_name(document["step"]):
            return False
        for name, facts in files.items():
            wanted = WrittenFile(facts["bytes"], facts["sha256"])
            if (folder / name).stat().st_size != wanted.bytes or (yield from read_file(folder / name)) != wanted:
                return False
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if written_as != FORMAT:
        raise ConflictError(
            f"the checkpoint is of format {written_as}",
            facts={"need": f"format {FORMAT}", "where": folder},
            fix="another --output, or go on with the version of the code that wrote it",
        )
    return True
