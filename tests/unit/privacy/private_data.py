"""Data of every kind that contains the canary, and a small model that knows its words."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.finetuning.finetune_jobs import PIECES, write_model
from tests.unit.privacy.canary import SENTENCE, WORDS


def write_private_model(folder: Path) -> Path:
    """Write a BERT with random weights whose vocabulary has the words of the canary."""
    return write_model(folder, [*PIECES, *WORDS, "has", "."])


def write_questions(folder: Path) -> dict[str, Path]:
    """Write question files: titles, contexts, questions, answers and ids are private."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 24), ("dev", 8)):
        paragraphs = []
        for number in range(count):
            answer = {"text": WORDS[1].capitalize(), "answer_start": SENTENCE.index(WORDS[1].capitalize())}
            question = {"id": f"{WORDS[0]}-{number}", "question": f"{WORDS[2]} w{number}"}
            answers = {"answers": [], "is_impossible": True} if number % 4 == 3 else {"answers": [answer]}
            paragraphs.append({"context": SENTENCE, "qas": [question | answers]})
        document = {"version": "v2.0", "data": [{"title": SENTENCE, "paragraphs": paragraphs}]}
        (folder / f"{name}.json").write_text(json.dumps(document))
    return {"train": folder / "train.json", "validation": folder / "dev.json", "test": folder / "dev.json"}


def write_words(folder: Path) -> dict[str, Path]:
    """Write sentences with tags, in which the names of persons are private."""
    folder.mkdir(parents=True, exist_ok=True)
    sentences = "".join(f"{word} B-PER\n{word} I-PER\nw{number} O\n\n" for number, word in enumerate(WORDS))
    (folder / "words.conll").write_text(sentences * 4)
    return dict.fromkeys(("train", "validation", "test"), folder / "words.conll")


def write_rows(folder: Path) -> dict[str, Path]:
    """Write tables with private texts, and the task file notes.yaml for them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 32), ("dev", 8), ("new", 4)):
        rows = [f"w{number} {SENTENCE}\t{'good' if number % 2 else 'bad'}" for number in range(count)]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    (folder / "notes.yaml").write_text(
        "train: train.tsv\nvalidation: dev.tsv\ntest: new.tsv\ntext: text\nlabel: label\n"
    )
    return {name: folder / f"{file}.tsv" for name, file in (("train", "train"), ("validation", "dev"), ("test", "new"))}
