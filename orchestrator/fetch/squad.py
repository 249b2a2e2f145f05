"""SQuAD: the four files, their hashes, and how many questions are in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from orchestrator.fetch.checked_file import Checksum, Fetched, Remote
from orchestrator.fetch.http import Client
from orchestrator.support.errors import DataError, UsageError

NAME = "squad"


class SquadFile(NamedTuple):
    """A file of SQuAD."""

    name: str
    size: int
    sha256: str
    questions: int


# Sizes, hashes and counts of huggingface/datasets, datasets/squad and squad_v2/dataset_infos.json.
FILES = {
    "v1.1": (
        SquadFile(
            "train-v1.1.json", 30_288_272, "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955", 87_599
        ),
        SquadFile(
            "dev-v1.1.json", 4_854_279, "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9", 10_570
        ),
    ),
    "v2.0": (
        SquadFile(
            "train-v2.0.json", 42_123_633, "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002", 130_319
        ),
        SquadFile(
            "dev-v2.0.json", 4_370_528, "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8", 11_873
        ),
    ),
}


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
