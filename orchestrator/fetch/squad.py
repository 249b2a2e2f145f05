"""SQuAD: the four files, their hashes, and how many questions are in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from orchestrator.fetch.checked_file import Checksum, Fetched, Remote
from orchestrator.fetch.http import Client
from orchestrator.support.errors import DataError, UsageError
from train_jobs.config.tasks import SQUAD_1, SQUAD_2, TASKS

NAME = "squad"


class SquadFile(NamedTuple):
    """A file of SQuAD."""

    name: str
    size: int
    sha256: str
    questions: int


def _published(task: str) -> tuple[SquadFile, ...]:
    files = TASKS[task].files.values()
    return tuple(SquadFile(file.paths[0], file.size or 0, file.sha256 or "", file.rows or 0) for file in files)


FILES = {"v1.1": _published(SQUAD_1), "v2.0": _published(SQUAD_2)}


def fetch_squad(client: Client, folder: Path, version: str) -> list[Fetched]:
    """Fetches a version, or both.

    Raises:
        UsageError: there is no such version.
        UserError: as of `Client.get`; or a file with another number of questions.
    """
    if version and version not in FILES:
        raise UsageError(f"there is no SQuAD {version}", fix=f"orchestrator data fetch squad:{next(iter(FILES))}")
    files = [file for known, group in FILES.items() if version in {"", known} for file in group]
    return [_fetch(client, folder, file) for file in files]


def _fetch(client: Client, folder: Path, file: SquadFile) -> Fetched:
    remote = Remote(file.name, Checksum("sha256", file.sha256), file.size)
    fetched = client.get(remote, folder / file.name)
    have = count_questions(fetched.path)
    if have != file.questions:
        raise DataError(
            f"{fetched.path} has the wrong number of questions", facts={"need": file.questions, "have": have}
        )
    return Fetched(fetched.path, fetched.bytes, fetched.new, f"{fetched.checked}, {have} questions")


def count_questions(path: Path) -> int:
    """Questions in a file of SQuAD."""
    articles = json.loads(path.read_bytes())["data"]
    return sum(len(paragraph["qas"]) for article in articles for paragraph in article["paragraphs"])
