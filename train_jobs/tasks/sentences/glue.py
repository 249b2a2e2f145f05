"""Splits of built-in tasks of sentences, compared with the official files, and the score of GLUE."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from train_jobs.artifacts.files import file_sha256
from train_jobs.config import DataError
from train_jobs.config.tasks import GLUE_TASKS, OfficialFile, SentenceTask
from train_jobs.tasks.rows.labelled import Examples, make_examples
from train_jobs.tasks.rows.tables import read_table


def read_split(task: SentenceTask, split: str, glue: Path | None, *, file: Path | None = None) -> Examples:
    """One split of a task.

    Args:
        task: a built-in one.
        split: one of its files.
        glue: the folder of GLUE; None with a file.
        file: this one instead of the official one below the folder.

    Returns:
        The examples; their notes tell how the file differs from the official one, row count or content, and what is
        unusual in it. An official file, whose content is known, has no notes.

    Raises:
        DataError: the file is missing, or has rows that cannot be used.
    """
    official = task.files.get(split, OfficialFile((), labelled=False))
    if file is None:
        assert glue is not None, "a split is looked for somewhere"
        file = _find(glue, official)
    path = file
    columns = [task.text, *([task.pair] if task.pair else []), *([task.label] if official.labelled else [])]
    table = read_table(path, columns, format="tsv", header=official.header, quoting=False, pass_over=task.known_flaws)
    found = make_examples(task, table, labelled=official.labelled, empty_texts=task.known_flaws)
    differs = _differences(official, path, len(found))
    if official.sha256 is not None and not differs:
        found.notes.clear()
    found.notes[:0] = differs
    return found


def glue_score(scores: Mapping[str, float]) -> float:
    """The GLUE score: the mean over tasks, of which a task with two metrics or two dev sets gives the mean of the two.

    Args:
        scores: task -> its score; those of GLUE_TASKS that exist are averaged, and AX is not.
    """
    return fmean(scores[name] for name in GLUE_TASKS if name in scores)


def _find(glue: Path, official: OfficialFile) -> Path:
    for name in official.paths:
        if (glue / name).is_file():
            return glue / name
    raise DataError(
        f"no such file: {glue / official.paths[0]}",
        facts={"need": "GLUE's folder as its download script makes it", "where": glue},
        fix="--set data.glue=FOLDER",
    )


def _differences(official: OfficialFile, path: Path, rows: int) -> list[str]:
    if official.rows is not None and rows != official.rows:
        return [f"{path}: {rows:,} rows, the official file has {official.rows:,}"]
    if official.sha256 is not None and (found := file_sha256(path)) != official.sha256:
        return [f"{path}: SHA-256 {found[:8]}, that of the official file is {official.sha256[:8]}: other content"]
    return []
