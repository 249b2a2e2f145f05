"""Mistakes in the data of a newcomer, each with the command line that makes it and the message of the plan.

`docs/site/mistakes.py` makes a table of docs/troubleshooting.md of them.
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import write_bert

CANARY = "zebra-quartz"
"""Part of every text of the data: no message may contain it."""
_WORDS = (
    "patient reports severe pain after meal without fever or cough since two days blood pressure is stable".split()  # noqa: SIM905
)
WARDS = ("cardiology", "dermatology", "neurology", "orthopedics")
Rows = list[list[str]]
FINETUNE = "plan finetune --model bert --set data.max_length=32"
COLUMNS = "--column text=note --column label=ward"
PRETRAIN = "plan pretrain --recipe tiny"


def note_rows(count: int, first: int = 0) -> Rows:
    """Return rows of number, text and class; every text is different."""
    draw = random.Random(first)
    return [
        [str(number), f"{CANARY} {number} " + " ".join(draw.choices(_WORDS, k=20)), WARDS[number % 4]]
        for number in range(first, first + count)
    ]


def table(rows: Rows, header: list[str] | None = None, separator: str = ",") -> str:
    """Return a table as text; without a header if it is empty."""
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=separator, lineterminator="\n")
    writer.writerows([["id", "note", "ward"] if header is None else header] if header != [] else [])
    writer.writerows(rows)
    return stream.getvalue()


def json_lines(rows: Rows) -> str:
    """Return rows as JSON Lines with `id` and `note`."""
    return "".join(json.dumps({"id": int(row[0]), "note": row[1]}) + "\n" for row in rows)


def changed(changes: Mapping[int, tuple[int, str]], *, numbers: bool = False) -> str:
    """Return the table of 120 rows with some fields changed: row from 0 -> column and value."""
    rows = note_rows(120)
    for number, row in enumerate(rows if numbers else ()):
        row[2] = f"{number % 5}.5"
    for number, (column, value) in changes.items():
        rows[number][column] = value
    return table(rows)


Content = str | bytes


@dataclass(frozen=True)
class Mistake:
    """A mistake in the data."""

    name: str
    """What is wrong, for the table of the documentation."""
    files: Mapping[str, Content]
    """Name -> content of each file."""
    words: str
    """Command line after `orchestrator`."""
    message: str
    """Regular expression that a line of the error, or the warning, matches; it contains the place."""
    fix: str = ""
    """Regular expression that the fix matches; "": the message contains it."""
    warns: bool = False
    """Whether it is a warning, because the job can run."""

    def write(self, folder: Path) -> None:
        """Write its files, and the folder of a model."""
        write_bert(folder / "bert")
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    def reported(self, document: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return message and fix in the JSON of a command; None: the mistake was not found."""
        if self.warns:
            told = [(text, "") for text in document["plan"]["warnings"]]
        else:
            error = document["error"]
            listed = [text.partition("\nfix  ")[::2] for text in error.get("problems") or [error["message"]]]
            told = [(text, fix or error["fix"] or "") for text, fix in listed]
        return next((one for one in told if re.search(self.message, one[0])), None)


def _swallowing() -> str:
    """Return the table with a quotation mark in line 6 that another one closes in line 41."""
    lines = table(note_rows(120)).splitlines()
    number, text, ward = lines[5].split(",")
    lines[5] = f'{number},"{text},{ward}'
    number, text, ward = lines[40].split(",")
    lines[40] = f'{number},{text}",{ward}'
    return "\n".join(lines) + "\n"


TRAIN, DEV = table(note_rows(120)), table(note_rows(24, 200))
BOTH = {"train.csv": TRAIN, "dev.csv": DEV}
ON_DEV = "--set data.validation=dev.csv"
_BAD_LINE = json_lines(note_rows(40)).splitlines()
_BAD_LINE[16] = _BAD_LINE[16][:-9]

MISTAKES = (
    Mistake(
        "JSON Lines without the field of the text",
        {"notes.jsonl": json_lines(note_rows(120))},
        f"{PRETRAIN} --data notes.jsonl",
        r"notes\.jsonl:1, 2, 3 and 117 more: no field 'text'; have id, note",
        r"--column note$",
    ),
    Mistake(
        "a misspelt column",
        {"train.csv": TRAIN},
        f"{FINETUNE} --data train.csv --column text=notes --column label=ward",
        r"train\.csv:1: unknown column 'notes' \(did you mean \"note\"\?\)",
        r"--column text=note$",
    ),
    Mistake(
        "a column that does not exist",
        {"train.csv": TRAIN},
        f"{FINETUNE} --data train.csv",
        r"train\.csv:1: unknown column 'label'; have id, note, ward",
        r"--column label=ward$",
    ),
    Mistake(
        "two columns swapped",
        {"train.csv": TRAIN},
        f"{FINETUNE} --data train.csv --column text=ward --column label=note",
        r"train\.csv: columns 'ward' and 'note' are swapped",
        r"--column text=note --column label=ward$",
    ),
    Mistake(
        "labels that are texts, for a regression",
        {"train.csv": TRAIN},
        f"{FINETUNE} --data train.csv {COLUMNS} --set data.regression=true",
        r"train\.csv: labels are names of classes, not numbers",
        r"--set data\.regression=false$",
    ),
    Mistake(
        "numbers with a decimal comma",
        {"train.csv": changed({3: (2, "3,5"), 9: (2, "1,5")}, numbers=True)},
        f"{FINETUNE} --data train.csv {COLUMNS} --set data.regression=true",
        r"train\.csv:5, 11: column 'ward': a number with a decimal comma",
        r"python -c .*replace\(',', '\.'\).*to_csv",
    ),
    Mistake(
        "a quotation mark that is not closed",
        {"train.csv": TRAIN.replace("\n4,", '\n4,"', 1)},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv:6: unbalanced quotation marks",
        r"close the mark",
    ),
    Mistake(
        "a quotation mark that swallows rows",
        {"train.csv": _swallowing()},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv:6: a quotation mark that is not closed: the row contains 34 other rows",
        r"sed -n 6p",
    ),
    Mistake(
        "Latin-1 in place of UTF-8",
        {"train.csv": TRAIN.replace("severe", "sévère").encode("latin1")},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv:\d+.*is not UTF-8",
        r"iconv -f latin1 -t utf-8 ",
    ),
    Mistake(
        "UTF-16 in place of UTF-8",
        {"train.csv": TRAIN.encode("utf-16")},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv:1: is UTF-16, not UTF-8",
        r"iconv -f utf-16 -t utf-8 ",
    ),
    Mistake(
        "a table with semicolons called CSV",
        {"train.csv": table(note_rows(120), separator=";")},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv:1: the fields are separated by semicolons",
        r"python -c .*sep=';'.*to_csv",
    ),
    Mistake(
        "a table with tabs called CSV",
        {"train.csv": table(note_rows(120), separator="\t")},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv:1: the fields are separated by tabs",
        r"--set data\.format=tsv$",
    ),
    Mistake(
        "a line that is not JSON",
        {"notes.jsonl": "\n".join(_BAD_LINE) + "\n"},
        f"{PRETRAIN} --data notes.jsonl --column note",
        r"notes\.jsonl:17: not a JSON object",
        r"sed -i 17d .*notes\.jsonl deletes it",
    ),
    Mistake(
        "spaces around the names of the columns",
        {"train.csv": table(note_rows(120), header=["id ", " note", " ward"])},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv:1: unknown column 'note' \(did you mean \" note\"\?\)",
        r"--column text=' note'$",
    ),
    Mistake(
        "names of the columns in capitals",
        {"train.csv": table(note_rows(120), header=["ID", "NOTE", "WARD"])},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv:1: unknown column 'ward' \(did you mean \"WARD\"\?\)",
        r"--column label=WARD$",
    ),
    Mistake(
        "a JSON array in place of JSON Lines",
        {"train.jsonl": json.dumps([{"id": row[0], "note": row[1], "ward": row[2]} for row in note_rows(120)])},
        f"{FINETUNE} --data train.jsonl {COLUMNS}",
        r"train\.jsonl: is a JSON array, not an object in each line",
        r"python -c .*json\.load.* > .*train\.fixed\.jsonl$",
    ),
    Mistake(
        "JSON objects of several lines",
        {"notes.json": "".join(f"{json.dumps(json.loads(line), indent=2)}\n" for line in _BAD_LINE[:16])},
        f"{PRETRAIN} --data notes.json --column note",
        r"notes\.json: has JSON objects of several lines, not one in each line",
        r"jq -c \. .*notes\.json > .*notes\.fixed\.jsonl$",
    ),
    Mistake(
        "a table without a header",
        {"train.csv": table(note_rows(120), header=[])},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv:1: the first line is a row: the header is missing",
        r"sed -i '1i column1,note,ward' ",
    ),
    Mistake(
        "names of the columns in another language",
        {"train.csv": table(note_rows(120), ["nr", "Notiz", "Station"])},
        f"{FINETUNE} --data train.csv",
        r"train\.csv:1: unknown column 'label'; have 3 columns \(not shown",
        r"--column label=NAME$",
    ),
    Mistake(
        "missing labels",
        {"train.csv": changed({3: (2, "N/A"), 7: (2, "NaN"), 9: (2, ""), 13: (2, "null")})},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv:5, 9, 11 and 1 more: column 'ward': missing label",
        r"python -c .*keep_default_na=False.*value\.strip\(\).*to_csv",
    ),
    Mistake(
        "empty texts",
        {"train.csv": changed({3: (1, ""), 7: (1, "  ")})},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv:5, 9: column 'note': an empty text",
        r"python -c .*keep_default_na=False.*value\.strip\(\).*to_csv",
    ),
    Mistake(
        "a class with a single row",
        {"train.csv": changed({3: (2, "urology")})},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv: 1 class has a single row, .*: urology; add rows, or merge classes",
        warns=True,
    ),
    Mistake(
        "a class in two spellings",
        {"train.csv": changed(dict.fromkeys(range(0, 40, 4), (2, "Cardiology ")))},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv: classes that differ only in case or spaces count as different classes: cardiology;"
        r" python -c .*\['ward'\]\.str\.strip\(\)\.str\.lower\(\).*to_csv",
        warns=True,
    ),
    Mistake(
        "measurements as classes",
        {"train.csv": table([[number, text, f"{int(number) / 7:.2f}"] for number, text, _ in note_rows(120)])},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv: column 'ward' has 120 different numbers, each a class of its own",
        r"--set data\.regression=true$",
    ),
    Mistake(
        "whole numbers as classes",
        {"train.csv": table([[number, text, number] for number, text, _ in note_rows(120)])},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv: column 'ward': 120 of 120 labels occur once: numbers, not classes",
        r"--set data\.regression=true, or --set data\.label=NAME$",
    ),
    Mistake(
        "a text as a label",
        {"train.csv": changed({5: (2, f"{CANARY} {CANARY} {CANARY} {CANARY} {CANARY} {CANARY}")})},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv: column 'ward': 1 label with more than 64 characters occurs once: texts, not classes",
        r"fix or delete these rows, or --set data\.label=NAME$",
    ),
    Mistake(
        "a positive label with a typo",
        {"train.csv": table([[number, text, ward[:1]] for number, text, ward in note_rows(120) if ward[0] in "cd"])},
        f"{FINETUNE} --data train.csv {COLUMNS} --set data.positive_label=cc",
        r"train\.csv: column 'ward': data\.positive_label 'cc' is not a label.*; have c, d",
        r"--set data\.positive_label=LABEL, or null",
    ),
    Mistake(
        "a label that only the dev set has",
        {"train.csv": TRAIN, "dev.csv": table([*note_rows(24, 200), ["9", f"{CANARY} 9", "urology"]])},
        f"{FINETUNE} --data train.csv {COLUMNS} {ON_DEV}",
        r"dev\.csv: column 'ward': 1 row has a label that .*train\.csv lacks: urology",
        r"add such rows to .*train\.csv, or delete these$",
    ),
    Mistake(
        "rows in both train and dev",
        {"train.csv": TRAIN, "dev.csv": table([*note_rows(24, 200), *note_rows(12)])},
        f"{FINETUNE} --data train.csv {COLUMNS} {ON_DEV}",
        r"12 of 36 rows of .*dev\.csv have a text that is also in .*train\.csv: .*delete them from one of the files",
        warns=True,
    ),
    Mistake(
        "texts that are longer than the model can read",
        {"train.csv": table([[number, text * 4, ward] for number, text, ward in note_rows(120)])},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"\d+% of the texts are longer than 32 tokens .*: --set data\.max_length=64",
        warns=True,
    ),
    Mistake(
        "rows to predict without the column that the model was trained on",
        {"new.csv": table(note_rows(12), ["id", "notes", "ward"])},
        "plan predict --model bert --data new.csv --column text=note",
        r"new\.csv:1: unknown column 'note' \(did you mean \"notes\"\?\); have id, notes, ward",
        r"--column text=notes$",
    ),
    Mistake(
        "texts without labels to evaluate on",
        {"new.txt": "".join(f"{row[1]}\n" for row in note_rows(12))},
        "plan evaluate --model bert --set task=text-classification --data new.txt",
        r"cannot read columns of .*new\.txt: it has one text per line",
        r"use a table: \.tsv, \.csv, \.jsonl or \.parquet$",
    ),
    Mistake(
        "a folder of files to predict",
        {"new/a.csv": table(note_rows(12))},
        "plan predict --model bert --data new",
        r"input: .*new is a folder: give its files, --input FILE for each",
    ),
    Mistake(
        "a model that is not a BERT",
        {"t5/config.json": '{"model_type": "t5"}', "t5/model.safetensors": "", "train.csv": TRAIN},
        f"{FINETUNE} --model t5 --data train.csv {COLUMNS}",
        r"t5/config\.json: model_type is 't5', but only 'bert' is supported",
        r"--model RUN, FOLDER or NAME",
    ),
    Mistake(
        "a model without its vocabulary",
        {"own/config.json": '{"model_type": "bert"}', "own/model.safetensors": "", "train.csv": TRAIN},
        f"{FINETUNE} --model own --data train.csv {COLUMNS}",
        r"no vocab\.txt in .*own",
        r"--model RUN, FOLDER or NAME",
    ),
    Mistake(
        "an empty table",
        {"train.csv": ""},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv: is empty",
        r"give a file with text$",
    ),
    Mistake(
        "a folder of empty files",
        {"notes/a.txt": "", "notes/b.txt": ""},
        f"{PRETRAIN} --data notes",
        r"a\.txt: is empty",
        r"give files with text: --data PATH$",
    ),
    Mistake(
        "a folder without readable text",
        {"notes/a.png": b"\x89PNG\r\n\x1a\n" + bytes(100)},
        f"{PRETRAIN} --data notes",
        r"no text in folder .*notes",
        r"--data FILE",
    ),
    Mistake(
        "a folder of notes in Markdown",
        {f"notes/{number}.md": f"{row[1]}\n" for number, row in enumerate(note_rows(12))},
        f"{PRETRAIN} --data notes",
        r"no text in folder .*notes",
        r"--data '.*notes/\*\*/\*\.md'$",
    ),
    Mistake(
        "a folder of which most files are not read",
        {
            "notes/a.txt": "\n\n".join(
                f"{row[1]} {' '.join(f'word{n}' for n in range(150))}" for row in note_rows(200)
            ),
            **{f"notes/{row[0]}.md": f"{row[1]}\n" for row in note_rows(12)},
        },
        f"{PRETRAIN} --data notes --set data.vocab_size=300",
        r"12 of 13 files in .*notes are not read: 0\.md, 1\.md, 10\.md and 9 more; to read more: --data '.*\*\.md'",
        warns=True,
    ),
    Mistake(
        "an Excel workbook called CSV",
        {"train.csv": b"PK\x03\x04" + bytes(100) + b"xl/workbook.xml"},
        f"{FINETUNE} --data train.csv {COLUMNS}",
        r"train\.csv: is an Excel workbook, not text",
        r"pd\.read_excel\(.*to_csv",
    ),
    Mistake(
        "a Word document as text",
        {"notes.docx": b"PK\x03\x04" + bytes(100) + b"word/document.xml"},
        f"{PRETRAIN} --data notes.docx",
        r"notes\.docx: is a Word document, not text",
        r"pandoc .*notes\.docx -t plain --wrap=none -o .*notes\.txt$",
    ),
    Mistake(
        "a folder of PDF documents",
        {f"letters/{number}.pdf": b"%PDF-1.7\n" + bytes(100) for number in range(5)},
        f"{PRETRAIN} --data letters",
        r"no text in folder .*letters",
        r"find .*letters -name '\*\.pdf' -exec pdftotext \{\} \{\}\.txt ';'$",
    ),
    Mistake(
        "a dataset saved by Hugging Face's datasets",
        {"saved/state.json": "{}", "saved/data-00000-of-00001.arrow": b"\xff\xff\xff\xff" + bytes(100)},
        f"{FINETUNE} --data saved {COLUMNS}",
        r"no file of .*saved can be data\.train",
        r"load_from_disk\(.*to_parquet\(.*saved\.parquet'\)\"$",
    ),
    Mistake(
        "a binary file among texts",
        {"notes/a.txt": "a note\n", "notes/b.txt": b"\x89PNG\r\n\x1a\n" + bytes(100)},
        f"{PRETRAIN} --data notes",
        r"b\.txt: is an image, not text",
        r"convert or leave out this one$",
    ),
    Mistake(
        "a vocabulary larger than the text can fill",
        {"notes.jsonl": json_lines(note_rows(120))},
        f"{PRETRAIN} --data notes.jsonl --column note",
        r"the text has about \d+ distinct words, .* a vocabulary of 4,096 pieces: --set data\.vocab_size=\d+",
        warns=True,
    ),
    Mistake(
        "steps that repeat the text more than 40 times",
        {"notes.jsonl": json_lines(note_rows(120))},
        f"{PRETRAIN} --data notes.jsonl --column note",
        r"\d+ epochs of the text: beyond 40, .*: --set train\.steps=\d+, or more text",
        warns=True,
    ),
    Mistake(
        "a text of a single document",
        {"notes.txt": "\n".join(f"note {number} of the ward" for number in range(200))},
        f"{PRETRAIN} --data notes.txt",
        r"cannot split a single document into train and validation",
        r"separate documents by blank lines",
    ),
    Mistake(
        "a text of fewer than 100 different words",
        {"notes.txt": "The patient came and went home.\n\n" * 200 + "The patient stayed.\n"},
        f"{PRETRAIN} --data notes.txt",
        r"the text is too small to train on",
        r"give more text with --data",
    ),
)
