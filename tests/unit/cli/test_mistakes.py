"""Mistakes in the data are found by the plan, before anything starts: with their place and fix, and without a text."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import Finished, write_bert
from tests.mistakes import BOTH, CANARY, COLUMNS, FINETUNE, MISTAKES, ON_DEV, WARDS, Mistake, changed, note_rows, table
from train_jobs.config import DataError
from train_jobs.config.finetune import ColumnsConfig
from train_jobs.readers.sentence_data import read_table_task

Command = Callable[..., Finished]


def write(files: Mapping[str, str | bytes]) -> None:
    Mistake("", files, "", "").write(Path())


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_mistake_is_found_with_place_and_fix(orchestrator: Command, mistake: Mistake) -> None:
    mistake.write(Path())
    done = orchestrator(*shlex.split(mistake.words), "-o", "json")
    assert CANARY not in done.out + done.err
    assert "error[bug]" not in done.err
    assert done.code == (0 if mistake.warns else 2)
    found = mistake.reported(done.json)
    assert found is not None, done.out
    assert re.search(mistake.fix, found[1]), found


def test_all_problems_of_a_file_are_listed_at_once(orchestrator: Command) -> None:
    write({"train.csv": changed({3: (2, "N/A"), 7: (1, ""), 20: (2, "null")}), "dev.csv": "id,notes,ward\n"})
    done = orchestrator(*shlex.split(f"{FINETUNE} --data train.csv {COLUMNS} {ON_DEV}"))
    assert done.code == 2
    assert "cannot use the tables: 3 problems" in done.err
    assert "train.csv:5, 22: column 'ward': missing label" in done.err
    assert "train.csv:9: column 'note': an empty text" in done.err
    assert "dev.csv:1: unknown column 'note' (did you mean \"notes\"?)" in done.err


def test_fixed_copy_passes(orchestrator: Command, tmp_path: Path) -> None:
    """The command that an error proposes repairs the table."""
    write({"train.csv": changed({3: (2, "N/A"), 7: (1, ""), 20: (2, "")})})
    done = orchestrator(*shlex.split(f"{FINETUNE} --data train.csv {COLUMNS}"), "-o", "json")
    command = json.loads(done.out)["error"]["problems"][0].partition("\nfix  ")[2]
    subprocess.run(command.replace("python", sys.executable, 1), shell=True, check=True)
    found = orchestrator(*shlex.split(f"{FINETUNE} --data train.fixed.csv {COLUMNS}"), "-o", "json")
    assert found.code == 0, found.err
    assert json.loads(found.out)["plan"]["checked"] == "all 117 rows"


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_fix_of_missing_values_changes_no_other_value(orchestrator: Command, suffix: str) -> None:
    rows = [[str(number), f"{CANARY} {number}", str(number % 2)] for number in range(12)]
    rows[1][1], rows[2][1], rows[4][2] = "None", "  ", ""
    rows[5][1] = 'a 5" "wound"' if suffix == "tsv" else 'a "wound", closed'
    named = [dict(zip(["id", "note", "ward"], row, strict=True)) for row in rows]
    typed = [{**one, "ward": int(one["ward"]) if one["ward"] else None} for one in named]
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(typed), "train.parquet")
    elif suffix == "jsonl":
        Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in typed))
    else:
        Path("train.csv").write_text(table(rows))
        Path("train.tsv").write_text("".join("\t".join(row) + "\n" for row in [["id", "note", "ward"], *rows]))
    write_bert(Path("bert"))
    done = orchestrator(*shlex.split(f"{FINETUNE} --data train.{suffix} {COLUMNS}"), "-o", "json")
    (fix,) = {text.partition("\nfix  ")[2] for text in done.json["error"]["problems"]}
    subprocess.run(fix.replace("python", sys.executable, 1), shell=True, check=True)
    columns = ColumnsConfig(text="note", label="ward")
    task, splits = read_table_task(columns, {"train": Path(f"train.fixed.{suffix}")})
    assert splits["train"].texts == [row[1] for number, row in enumerate(rows) if number not in {2, 4}]
    assert task.labels == ("0", "1")


def test_whole_numbers_with_a_point_are_classes(orchestrator: Command) -> None:
    rows = [[str(number), f"{CANARY} {number}", f"{number % 11}.0"] for number in range(44)]
    write({"train.csv": table(rows)})
    write_bert(Path("bert"))
    done = orchestrator(*shlex.split(f"{FINETUNE} --data train.csv {COLUMNS}"), "-o", "json")
    assert done.code == 0, done.err
    task, _ = read_table_task(ColumnsConfig(text="note", label="ward"), {"train": Path("train.csv")})
    assert task.labels == tuple(f"{number}.0" for number in range(11))
    write({"train.csv": table([[*row[:2], row[2].replace("3.0", "3")] for row in rows] + [["9", "a", "3.0"]])})
    _, splits = read_table_task(ColumnsConfig(text="note", label="ward"), {"train": Path("train.csv")})
    assert "labels '3', '3.0' differ only in a fraction of 0; each is a class" in splits["train"].notes[0]


@pytest.mark.parametrize(
    ("label", "positive", "what", "fix"),
    [
        (lambda row: f"{row % 3}.5", None, "has 3 different numbers, each a class of its own", "data.regression=true"),
        (lambda row: str(row), None, "44 of 44 labels occur once", "--set data.regression=true"),
        (lambda row: f"w{row}", None, "44 of 44 labels occur once: texts, not classes", "data.label=NAME"),
        (
            lambda row: "x" * 76 if row == 7 else f"w{row % 2}",
            None,
            "1 label with more than 64",
            "fix or delete these rows",
        ),
        (lambda row: "one", None, "only one label: one", "add rows of the other classes"),
        (lambda row: ["no", "yes"][row % 2], "yess", "'yess' is not a label", "--set data.positive_label=LABEL"),
        (lambda row: f"w{row % 3}", "w1", "'w1' needs two labels, there are 3", "--set data.positive_label=LABEL"),
    ],
)
def test_labels_refused_by_the_job_are_refused_by_the_plan(
    orchestrator: Command, label: Callable[[int], str], positive: str | None, what: str, fix: str
) -> None:
    write({"train.csv": table([[str(row), f"{CANARY} {row}", label(row)] for row in range(44)])})
    write_bert(Path("bert"))
    sets = [] if positive is None else ["--set", f"data.positive_label={positive}"]
    error = orchestrator(*shlex.split(f"{FINETUNE} --data train.csv {COLUMNS}"), *sets, "-o", "json").json["error"]
    assert what in error["message"]
    assert fix in error["fix"]
    columns = ColumnsConfig(text="note", label="ward", positive_label=positive)
    with pytest.raises(DataError) as refused:
        read_table_task(columns, {"train": Path("train.csv")})
    assert refused.value.message.removeprefix("cannot train: ") == f"train.csv: {error['message'].partition(': ')[2]}"


def test_test_set_with_empty_labels_is_read_without_labels(orchestrator: Command) -> None:
    write({**BOTH, "test.csv": table([[row[0], row[1], ""] for row in note_rows(12, 300)])})
    write_bert(Path("bert"))
    words = shlex.split(f"{FINETUNE} --data train.csv {COLUMNS} {ON_DEV}")
    done = orchestrator(*words, "--set", "data.test=test.csv", "-o", "json")
    assert done.code == 0, done.err
    files = {split: Path(f"{split}.csv") for split in ("train", "dev", "test")}
    _, splits = read_table_task(ColumnsConfig(text="note", label="ward"), files)
    assert splits["test"].labels is None
    assert splits["test"].notes == ["test.csv: column 'ward' is empty: read as a set without labels"]
    swapped = orchestrator(*shlex.split(f"{FINETUNE} --data test.csv {COLUMNS}"), "-o", "json")
    assert swapped.json["error"]["message"].endswith("test.csv: column 'ward' is empty")
    assert swapped.json["error"]["fix"].startswith("--column label=NAME")


@pytest.mark.parametrize(
    "name", ["a JSON array in place of JSON Lines", "a class in two spellings", "numbers with a decimal comma"]
)
def test_fixed_copy_has_no_mistake(orchestrator: Command, name: str) -> None:
    mistake = next(one for one in MISTAKES if one.name == name)
    mistake.write(Path())
    found = mistake.reported(orchestrator(*shlex.split(mistake.words), "-o", "json").json)
    assert found is not None
    fix = found[1] or found[0].partition("; ")[2]
    subprocess.run(fix.replace("python", sys.executable, 1), shell=True, check=True)
    (fixed,) = Path().glob("*.fixed.*")
    done = orchestrator(*shlex.split(mistake.words.replace("train" + fixed.suffix, fixed.name)), "-o", "json")
    assert done.code == 0, done.err
    assert done.json["plan"]["checked"] == "all 120 rows"
    assert not any("differ only in case" in text for text in done.json["plan"]["warnings"])


def test_quick_check_reads_the_beginning_and_all_the_rest(orchestrator: Command) -> None:
    rows = note_rows(40_000)
    rows[-1][2] = "N/A"
    write({"train.csv": table(rows)})
    words = shlex.split(f"{FINETUNE} --data train.csv {COLUMNS}")
    quick = orchestrator(*words, "-o", "json")
    assert quick.code == 0, quick.err
    assert re.fullmatch(r"the first [\d,]+ rows; --check all reads every row", json.loads(quick.out)["plan"]["checked"])
    full = orchestrator(*words, "--check", "all")
    assert full.code == 2
    assert "train.csv:40001: column 'ward': missing label" in full.err


@pytest.mark.parametrize("verb", ["validate", "submit"])
def test_validate_and_submit_find_mistakes_too(orchestrator: Command, verb: str, home: Path) -> None:
    write({**BOTH, "train.csv": changed({3: (2, "N/A")})})
    more = ("--dry-run",) if verb == "submit" else ()
    done = orchestrator(verb, *shlex.split(f"{FINETUNE} --data train.csv {COLUMNS}")[1:], *more)
    assert done.code == 2
    assert "train.csv:5: column 'ward': missing label" in done.err
    assert "resume" not in done.err
    assert not (home / "runs").exists()


def test_check_does_not_change_the_run(orchestrator: Command) -> None:
    write(dict(BOTH))
    words = shlex.split(f"{FINETUNE} --data train.csv {COLUMNS} {ON_DEV}")
    names = {orchestrator(*words, *more, "-o", "json").json["plan"]["name"] for more in ((), ("--check", "all"))}
    assert len(names) == 1


def test_first_row_of_a_table_without_header_is_not_shown(orchestrator: Command) -> None:
    """Its fields are texts, and must not become the name of a column in a fix."""
    write({"notes.csv": table([[row[1], row[0]] for row in note_rows(20)], header=[])})
    for words in ("plan pretrain --data notes.csv", f"{FINETUNE} --data notes.csv {COLUMNS}"):
        done = orchestrator(*shlex.split(words))
        assert done.code == 2
        assert CANARY not in done.out + done.err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (f'id,note\n1,"{" ".join(f"word{n}" for n in range(400)) * 60}"\n2,another\n3,"a\nb"\n', ""),
        (f'id,note\n1,"{CANARY}\n2,another\n', "notes.csv:3: unbalanced quotation marks in or before this line"),
        (f"id,note\n1,{CANARY}\n2\n3,another\n", "notes.csv:3: a row has 1 fields, and the header 2"),
    ],
)
def test_rows_of_a_table_of_text_are_read(orchestrator: Command, rows: str, message: str) -> None:
    write({"notes.csv": rows})
    done = orchestrator("plan", "pretrain", "--data", "notes.csv", "--column", "note", "--recipe", "tiny")
    assert (done.code, CANARY in done.err) == (2 if message else 0, False), done.err
    assert message in done.err


def write_classifier(*labels: str, **more: object) -> None:
    """Write a model with a head that has these labels."""
    write_bert(Path("bert"))
    config = json.loads(Path("bert/config.json").read_text())
    named = {"architectures": ["BertForSequenceClassification"], "id2label": dict(enumerate(labels))}
    Path("bert/config.json").write_text(json.dumps({**config, **named, **more}))


SCORED = "plan evaluate --model bert --data rows.csv --column text=note --column label=ward"


@pytest.mark.parametrize(
    ("content", "message", "fix"),
    [
        (table(note_rows(12), ["id", "notes", "ward"]), r"rows\.csv:1: unknown column 'note' ", "--column text=notes$"),
        (
            table(note_rows(12), ["id", "note", "wards"]),
            r"rows\.csv:1: unknown column 'ward' ",
            "--column label=wards$",
        ),
        (table(note_rows(12), separator=";"), r"rows\.csv:1: the fields are separated by semicolons", "sep=';'"),
        (changed({3: (2, "N/A"), 7: (2, "")}), r"rows\.csv:5, 9: column 'ward': missing label", "notna"),
        (changed({3: (1, "")}), r"rows\.csv:5: column 'note': an empty text", "value.strip"),
        (
            changed({3: (2, "urology")}),
            r"rows\.csv: column 'ward': 1 row has a label that the model does not know: urology",
            "delete",
        ),
        (b"PK\x03\x04" + bytes(100) + b"xl/", r"rows\.csv: is an Excel workbook", "read_excel"),
        ("id,note,ward\n", r"rows\.csv: has no row", "below its header"),
    ],
)
def test_rows_to_score_are_checked(orchestrator: Command, content: str | bytes, message: str, fix: str) -> None:
    write_classifier(*WARDS)
    Path("rows.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    done = orchestrator(*shlex.split(SCORED), "-o", "json")
    assert (done.code, CANARY in done.out + done.err) == (2, False), done.out
    error = done.json["error"]
    assert re.search(message, error["message"]), error
    assert re.search(fix, error["fix"]), error


def test_rows_that_can_be_scored_pass(orchestrator: Command) -> None:
    """Classes may be given as their numbers, and a set may have a single class; columns are not needed to predict."""
    write_classifier(*WARDS)
    Path("rows.csv").write_text(table([[row[0], row[1], "2"] for row in note_rows(12)]))
    done = orchestrator(*shlex.split(SCORED), "-o", "json")
    assert done.code == 0, done.err
    assert done.json["plan"]["checked"] == "all 12 rows"
    Path("rows.csv").write_text(table([[row[1]] for row in note_rows(12)], ["note"]))
    words = "plan predict --model bert --data rows.csv --column text=note -o json"
    assert orchestrator(*shlex.split(words)).json["plan"]["checked"] == "all 12 rows"
    kept = orchestrator(*shlex.split(f"{words} --column id=number"))
    assert "rows.csv:1: unknown column 'number'" in kept.json["error"]["message"]
    Path("rows.csv").write_text(table([["1.5", f"{CANARY} {number}"] for number in range(4)], header=[]))
    words = f"{SCORED} --set data.header=[ward,note] -o json"
    assert "that the model does not know" in orchestrator(*shlex.split(words)).json["error"]["message"]
    write_classifier("LABEL_0", problem_type="regression")
    assert orchestrator(*shlex.split(words)).json["plan"]["checked"] == "all 4 rows"


def test_positive_label_is_one_of_the_two_labels_of_a_model(orchestrator: Command) -> None:
    write_classifier("no", "yes")
    Path("rows.csv").write_text(table([[row[0], row[1], "yes"] for row in note_rows(12)]))
    words = shlex.split(f"{SCORED} -o json --set")
    refused = orchestrator(*words, "data.positive_label=yess").json["error"]
    assert refused["message"].startswith(
        "cannot score: data.positive_label 'yess' is not a label (did you mean \"yes\"?)"
    )
    assert orchestrator(*words, "data.positive_label=yes").code == 0


def test_labels_of_model_are_checked_before_scoring(orchestrator: Command) -> None:
    write_classifier("1", "2", "3")
    Path("rows.csv").write_text(table([[row[0], row[1], "0"] for row in note_rows(12)]))
    done = orchestrator(*shlex.split(SCORED), "-o", "json")
    assert "12 rows have labels that the model does not know: 0" in done.json["error"]["message"]
    Path("dev.tsv").write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\ta\tb\n")
    words = shlex.split("plan evaluate --model bert --data dev.tsv --set task=MRPC -o json")
    assert orchestrator(*words).json["error"]["message"] == "cannot score MRPC: the model has other labels"
    write_classifier("Equivalent", "Not_Equivalent")
    assert orchestrator(*words).code == 0


LETTERS = {
    "of two columns": ('id,text\n1,"Dear doctor\nthe patient has pain, fever\nregards"\n2,"good film"\n', ""),
    "of three columns": ('id,date,text\n1,2024-01-01,"Dear\naspirin, ibuprofen, paracetamol\nregards"\n', ""),
    "with a comma in each line": ('id,text\n1,"Dear doctor\npain, fever\nregards, Ann"\n', "rows.csv:2: a text whose"),
    "that swallow rows": ('id,text\n1,"one\n2,two\n3,three"\n4,four\n', "lines look like 1 other rows"),
}


@pytest.mark.parametrize("name", LETTERS)
def test_texts_of_several_lines_can_be_predicted(orchestrator: Command, name: str) -> None:
    content, warning = LETTERS[name]
    write_classifier(*WARDS)
    Path("rows.csv").write_text(content)
    done = orchestrator(*shlex.split("plan predict --model bert --data rows.csv -o json"))
    assert done.code == 0, done.err
    found = [text for text in done.json["plan"]["warnings"] if "quotation mark" in text]
    assert len(found) == bool(warning)
    assert warning in "".join(found)


def test_texts_of_several_lines_can_be_trained(orchestrator: Command) -> None:
    write_bert(Path("bert"))
    numbers = "".join(f"film {number},{number}.5\n" for number in range(20))
    classes = "".join(f"film {number},{number % 2}\n" for number in range(20))
    letter = '"Morning\naspirin, 1\nevening",1\n'
    write({"numbers.csv": f"note,ward\n{letter}{numbers}", "classes.csv": f"note,ward\n{letter}{classes}"})
    words = f"{FINETUNE} {COLUMNS} -o json"
    assert orchestrator(*shlex.split(f"{words} --data numbers.csv --set data.regression=true")).code == 0
    assert orchestrator(*shlex.split(f"{words} --data classes.csv")).code == 0


def test_columns_of_questions_and_masks_are_checked(orchestrator: Command) -> None:
    write_classifier(architectures=["BertForQuestionAnswering"])
    Path("rows.csv").write_text("question,text\nWho?,Nobody.\n")
    done = orchestrator(*shlex.split("plan predict --model bert --data rows.csv -o json"))
    assert "rows.csv:1: unknown column 'context'" in done.json["error"]["message"]
    assert done.json["error"]["fix"] == "--column context=text"
    assert orchestrator(*shlex.split("plan predict --model bert --data rows.csv --set data.context=text")).code == 0
    write_classifier(architectures=["BertForMaskedLM"])
    words = "plan predict --model bert --data rows.csv -o json"
    assert (
        "rows.csv:2: column 'text': no [MASK] in the text" in orchestrator(*shlex.split(words)).json["error"]["message"]
    )
    Path("rows.csv").write_text("text\nThis is [MASK].\n")
    assert orchestrator(*shlex.split(words)).code == 0


def test_all_rows_to_predict_are_checked_on_request(orchestrator: Command) -> None:
    write_classifier(*WARDS)
    rows = note_rows(40_000)
    rows[-1][1] = ""
    Path("rows.csv").write_text(table(rows))
    words = shlex.split("predict --model bert --data rows.csv --column text=note")
    quick = orchestrator("plan", *words, "-o", "json")
    assert re.fullmatch(r"the first [\d,]+ rows; --check all reads every row", quick.json["plan"]["checked"])
    full = orchestrator("submit", *words, "--check", "all", "--dry-run")
    assert (full.code, "rows.csv:40001: column 'note': an empty text" in full.err) == (2, True)


def test_documentation_lists_every_mistake() -> None:
    """After a change: python docs/site/mistakes.py"""
    page = (Path(__file__).resolve().parents[3] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    assert [mistake.name for mistake in MISTAKES if f"| {mistake.name} |" not in page] == []
