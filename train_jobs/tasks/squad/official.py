"""The files of SQuAD: where they lie, and what the official ones hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from train_jobs.artifacts.files import file_sha256
from train_jobs.config import DataError
from train_jobs.config.finetune import SQUAD_1, SQUAD_2, FinetuneConfig
from train_jobs.tasks.squad.reading import Squad, read_squad

LISTED = 5  # questions named in an error


class OfficialFile(NamedTuple):
    """A file as its authors published it."""

    name: str
    questions: int
    sha256: str


OFFICIAL: Mapping[str, Mapping[str, OfficialFile]] = {
    SQUAD_1: {
        "train": OfficialFile(
            "train-v1.1.json", 87_599, "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955"
        ),
        "dev": OfficialFile(
            "dev-v1.1.json", 10_570, "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9"
        ),
    },
    SQUAD_2: {
        "train": OfficialFile(
            "train-v2.0.json", 130_319, "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002"
        ),
        "dev": OfficialFile(
            "dev-v2.0.json", 11_873, "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8"
        ),
    },
}
"""Task -> split -> file."""


def read_sets(config: FinetuneConfig) -> dict[str, Squad]:
    """The questions to learn from, to choose by, and to predict if there are any: train, dev, test.

    Raises:
        DataError: a file is missing, or has questions that cannot be used: each with its line and id.
    """
    data = config.data
    found = {
        "train": _read(config, "train", data.train, training=True),
        "dev": _read(config, "dev", data.validation, training=False),
    }
    for squad in found.values():
        _check_version(config.task, squad)
    if data.test is not None:
        found["test"] = read_squad(data.test)
    return found


def _read(config: FinetuneConfig, split: str, own: Path | None, *, training: bool) -> Squad:
    official = OFFICIAL[config.task][split]
    if own is not None:
        return read_squad(own, training=training)
    folder = config.data.squad
    assert folder is not None, "the configuration sees to it"
    if not (folder / official.name).is_file():
        raise DataError(
            f"no such file: {folder / official.name}",
            facts={"need": f"SQuAD's folder, with {official.name} in it", "where": folder},
            fix="--set data.squad=FOLDER, or orchestrator data fetch squad --to FOLDER",
        )
    found = read_squad(folder / official.name, training=training)
    found.notes[:0] = _differences(found, official)
    return found


def _differences(squad: Squad, official: OfficialFile) -> list[str]:
    if len(squad.questions) != official.questions:
        return [f"{squad.path}: {len(squad.questions):,} questions, the official file has {official.questions:,}"]
    if (found := file_sha256(squad.path)) != official.sha256:
        return [f"{squad.path}: SHA-256 {found[:8]}, that of the official file is {official.sha256[:8]}: other content"]
    return []


def _check_version(task: str, squad: Squad) -> None:
    """1.1 always has an answer; 2.0 without a question that has none is another task, which is told."""
    without = [question.id for question in squad.questions if not question.answers]
    if without and task == SQUAD_1:
        more = f" and {len(without) - LISTED:,} more" if len(without) > LISTED else ""
        raise DataError(
            f"{squad.path} has questions without an answer, and {SQUAD_1} has none",
            facts={"where": f"question {', '.join(without[:LISTED])}{more}"},
            fix=f"--set task={SQUAD_2}",
        )
    if not without and task == SQUAD_2:
        squad.notes.append(f"{squad.path}: every question has an answer: should task be {SQUAD_1}?")
