"""Files of a contest: some rows of real data to learn from, and a dev set."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

from train_jobs.config.tasks import GLUE_SUITE, NER, SQUAD_1
from train_jobs.tasks.entities.conll import conll_text

TASKS = ("CoLA", "MRPC", "STS-B", "SST-2", SQUAD_1, NER)
SHORT = 450  # characters of a context that is one sequence, whatever its question
WORDS = 50  # of a sentence, so that it is one sequence
DEV_QUESTIONS, DEV_SENTENCES = 300, 500
_WORD = re.compile(r"\w+|[^\w\s]")


def write_files(
    task: str, glue: Path, squad: Path | None, folder: Path, rows: int | None, *, short: bool = True
) -> dict[str, Path]:
    """Write the files of a contest; return them by the names of `Contest`'s fields.

    Args:
        task: one of TASKS.
        glue: folder of GLUE.
        squad: a file of SQuAD 1.1: SQuAD's questions, and NER's text.
        folder: to write to.
        rows: how many to learn from, drawn at random. None: all.
        short: of SQuAD only contexts that are one sequence.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if task in GLUE_SUITE:
        return _tables(task, glue, folder, rows)
    if squad is None:
        raise SystemExit(f"{task} needs --squad FILE, in the form of SQuAD 1.1")
    articles = json.loads(squad.read_text(encoding="utf-8"))["data"]
    # Whole articles: paragraphs of one article in both sets would leak answers into dev.
    random.Random(0).shuffle(articles)
    some = len(articles) // 4
    longest = SHORT if short and task == SQUAD_1 else sys.maxsize
    paragraphs = {
        split: [part for article in found for part in article["paragraphs"] if len(part["context"]) <= longest]
        for split, found in {"train": articles[some:], "dev": articles[:some]}.items()
    }
    return (_questions if task == SQUAD_1 else _sentences)(paragraphs, folder, rows)


def _tables(task: str, glue: Path, folder: Path, rows: int | None) -> dict[str, Path]:
    known = GLUE_SUITE[task]
    lines = {
        split: (glue / known.files[split].paths[0]).read_text(encoding="utf-8-sig").rstrip("\n").split("\n")
        for split in ("train", "dev")
    }
    first = 0 if known.files["train"].header else 1
    header, body = lines["train"][:first], _drawn(lines["train"][first:], rows)
    names = known.files["dev"].header or tuple(lines["dev"][0].split("\t"))
    columns = [names.index(name) for name in (known.text, known.pair) if name is not None]
    texts = [[names[column] for column in columns]]
    # Our job predicts test sets only, so the texts of dev are given to it as a test set as well.
    texts += [[line.split("\t")[column] for column in columns] for line in lines["dev"][first:]]
    for name, found in {"train": [*header, *body], "dev": lines["dev"], "test": map("\t".join, texts)}.items():
        (folder / f"{name}.tsv").write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
    return {name: folder / f"{name}.tsv" for name in ("train", "dev", "test")}


def _questions(splits: dict[str, list[Any]], folder: Path, rows: int | None) -> dict[str, Path]:
    for (name, parts), count in zip(splits.items(), (rows, DEV_QUESTIONS), strict=True):
        asked = [(part["context"], question) for part in parts for question in part["qas"]]
        paragraphs = [{"context": context, "qas": [question]} for context, question in _drawn(asked, count)]
        document = {"version": "1.1", "data": [{"title": name, "paragraphs": paragraphs}]}
        (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    return {name: folder / f"{name}.json" for name in splits}


def _sentences(splits: dict[str, list[Any]], folder: Path, rows: int | None) -> dict[str, Path]:
    """Write sentences with rule-based tags: capitalised words are names, digits are numbers."""
    for (name, parts), count in zip(splits.items(), (rows, DEV_SENTENCES), strict=True):
        found = [_WORD.findall(text) for part in parts for text in part["context"].split(". ")]
        words = _drawn([sentence for sentence in found if 0 < len(sentence) <= WORDS], count)
        text = conll_text(words, [_tags(sentence) for sentence in words])
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.txt" for name in splits}


def _tags(words: list[str]) -> list[str]:
    kinds = ["NAME" if word[0].isupper() else "NUMBER" if word[0].isdigit() else "" for word in words]
    before = ["", *kinds]
    return [
        f"{'I' if kind == previous else 'B'}-{kind}" if kind else "O"
        for kind, previous in zip(kinds, before, strict=False)
    ]


def _drawn(values: list[Any], count: int | None) -> list[Any]:
    return values if count is None else random.Random(0).sample(values, min(count, len(values)))
