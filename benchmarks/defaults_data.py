"""Data of `benchmarks.finetune_defaults`: small tables with a held-back split, and text to pretrain a small model.

Four tasks are GLUE's: rows are drawn from the training file, and the published dev file is held back. The fifth names
the book of a paragraph: every fourth chapter of twelve books is held back, and no pretraining reads it.
"""

from __future__ import annotations

import csv
import json
import lzma
import random
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from train_jobs.config.tasks import GLUE_SUITE
from train_jobs.readers.sentence_data import Examples, read_split

BOOKS = "books"
TASKS = ("MRPC", "CoLA", "SST-2", "STS-B", BOOKS)
LARGEST = 5_000  # rows of a training table
HELD_BACK_CHAPTER = 4  # every fourth
PARAGRAPHS = LARGEST // 12 + 1, 100  # of a book: to draw from, and held back
SHORTEST, LONGEST = 200, 2_000  # characters of a paragraph: headings and most dialogue are shorter
FEWEST = 5  # paragraphs of a chapter; a table of contents has fewer
_HEADING = re.compile(r"^[ _]*(?:(?:chapter|letter|book|epilogue)\b|[IVXL]+\. [A-Z])", re.IGNORECASE | re.MULTILINE)
_BODY = re.compile(r"\*\*\* ?START OF.*?\*\*\*\n(.*)\*\*\* ?END OF", re.DOTALL)
# Typography belongs to the edition, not to the author.
_PLAIN = str.maketrans({0x201C: '"', 0x201D: '"', 0x2018: "'", 0x2019: "'", 0x2014: "--", "_": None})
_ARTICLE = re.compile(r"<doc [^>]*>\n[^\n]*\n(.*?)</doc>", re.DOTALL)

Row = tuple[str, str | None, str]
"""Text, second text, label."""


def write_tables(task: str, rows: int, data: Path, folder: Path) -> tuple[Path, Path]:
    """Write the training table and the held-back table unless they exist; return their paths.

    A smaller table is the beginning of a larger one.

    Args:
        task: one of TASKS.
        rows: rows to train on, including those that the job divides off as dev set.
        data: folder with `glue` and `gutenberg`.
        folder: folder to write to.
    """
    train, test = folder / f"{task}-{rows}.csv", folder / f"{task}-held-back.csv"
    if not (train.is_file() and test.is_file()):
        pool, held_back = _paragraph_rows(data) if task == BOOKS else _glue_rows(task, data / "glue")
        random.Random(26).shuffle(pool)
        _write(test, held_back)
        _write(train, pool[:rows])
    return train, test


def write_corpus(data: Path, path: Path) -> None:
    """Write the text of the pretraining as JSON Lines: articles, and the chapters that are not held back."""
    with path.open("w", encoding="utf-8") as stream:
        for text in (*_articles(data), *(text for _, text, held_back in _chapters(data) if not held_back)):
            stream.write(json.dumps({"text": text}) + "\n")


def _glue_rows(task: str, glue: Path) -> tuple[list[Row], list[Row]]:
    entry = GLUE_SUITE[task]
    pool, held_back = (_rows_of(read_split(entry, split, glue), entry.labels) for split in ("train", "dev"))
    return pool, held_back


def _rows_of(examples: Examples, labels: tuple[str, ...]) -> list[Row]:
    assert examples.labels is not None
    pairs = examples.pairs or [None] * len(examples)
    names = [labels[int(label)] if labels else str(label) for label in examples.labels]
    return list(zip(examples.texts, pairs, names, strict=True))


def _paragraph_rows(data: Path) -> tuple[list[Row], list[Row]]:
    found: tuple[dict[str, list[Row]], dict[str, list[Row]]] = ({}, {})
    for book, text, held_back in _chapters(data):
        found[held_back].setdefault(book, []).extend((part, None, book) for part in _paragraphs(text))
    draw = random.Random(26)
    pool, test = (
        [row for book in sorted(rows) for row in draw.sample(rows[book], count)]
        for rows, count in zip(found, PARAGRAPHS, strict=True)
    )
    return pool, test


def _chapters(data: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield book, text and whether it is held back, for each chapter of the twelve books."""
    for path in sorted((data / "gutenberg").glob("*.xz")):
        whole = lzma.decompress(path.read_bytes()).decode("utf-8-sig").replace("\r\n", "\n")
        body = _BODY.search(whole)
        text = (body[1] if body else whole).translate(_PLAIN)
        starts = [found.start() for found in _HEADING.finditer(text)]
        chapters = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
        real = [chapter for chapter in chapters if len(_paragraphs(chapter)) >= FEWEST]
        for number, chapter in enumerate(real, start=1):
            yield path.name.partition("_")[2].removesuffix(".txt.xz"), chapter, number % HELD_BACK_CHAPTER == 0


def _paragraphs(text: str) -> list[str]:
    parts = (" ".join(part.split()) for part in text.split("\n\n"))
    return [part for part in parts if SHORTEST <= len(part) <= LONGEST]


def _articles(data: Path) -> Iterator[str]:
    with tarfile.open(data / "wiki_extracted" / "enwiki_topics_wikiextractor.tar.xz") as archive:
        for member in archive:
            if (stream := archive.extractfile(member)) is not None:
                yield from _ARTICLE.findall(stream.read().decode())


def _write(path: Path, rows: list[Row]) -> None:
    paired = rows[0][1] is not None
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("text", "pair", "label") if paired else ("text", "label"))
        writer.writerows(row if paired else (row[0], row[2]) for row in rows)
    partial.replace(path)
