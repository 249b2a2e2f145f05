"""The files of SQuAD: where they lie, and what the official ones hold."""

from __future__ import annotations

from pathlib import Path

from train_jobs.artifacts.files import file_sha256
from train_jobs.config import DataError
from train_jobs.config.finetune import FinetuneConfig
from train_jobs.config.tasks import SQUAD_1, SQUAD_2, TASKS, OfficialFile
from train_jobs.tasks.squad.reading import Squad, read_squad

LISTED = 5  # questions named in an error


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
    official = TASKS[config.task].files[split]
    (name,) = official.paths
    if own is not None:
        return read_squad(own, training=training)
    folder = config.data.squad
    assert folder is not None, "the configuration sees to it"
    if not (folder / name).is_file():
        raise DataError(
            f"no such file: {folder / name}",
            facts={"need": f"SQuAD's folder, with {name} in it", "where": folder},
            fix="--set data.squad=FOLDER, or orchestrator data fetch squad --to FOLDER",
        )
    found = read_squad(folder / name, training=training)
    found.notes[:0] = _differences(found, official)
    return found


def _differences(squad: Squad, official: OfficialFile) -> list[str]:
    if len(squad.questions) != official.rows:
        return [f"{squad.path}: {len(squad.questions):,} questions, the official file has {official.rows:,}"]
    if official.sha256 is not None and (found := file_sha256(squad.path)) != official.sha256:
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
