"""Messages, tracebacks and files of jobs that refuse the user's data: without values of the data."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from orchestrator.cli import main as cli
from tests.unit.finetuning.finetune_jobs import settings, write_model
from tests.unit.privacy.canary import SENTENCE, WORDS, files_with_canary, found_in
from train_jobs import finetune, predict, prepare
from train_jobs.config.privacy import SHOW_VALUES, names_text, problem_text, traceback_text, unexpected_text

TEXT, WORD = SENTENCE, WORDS[0]
LINE = json.dumps({"text": TEXT})
WIKI = "<mediawiki><page><title>{}</title><ns>0</ns><revision><text bytes='9'>{}</text></revision></page>"

CORPORA: dict[str, tuple[str, bytes]] = {
    "json: cut off": ("a.jsonl", f'{LINE}\n{{"text": "{TEXT}\n'.encode()),
    "json: garbage": ("a.jsonl", f"{LINE}\n{TEXT}\n".encode()),
    "json: an array": ("a.jsonl", json.dumps([TEXT]).encode()),
    "json: a text": ("a.jsonl", json.dumps(TEXT).encode()),
    "json: key is a text": ("a.jsonl", json.dumps({TEXT: 1, "id": 2}).encode()),
    "json: no text": ("a.jsonl", json.dumps({"text": {"de": TEXT}}).encode()),
    "json: control character": ("a.jsonl", f'{{"text": "{TEXT}\t{TEXT}"}}\n'.encode()),
    "json: bad escape": ("a.jsonl", f'{{"text": "{TEXT}\\q"}}\n'.encode()),
    "json: latin-1": ("a.jsonl", f'{{"text": "{TEXT} \xe9"}}\n'.encode("latin1")),
    "json: one document": ("a.json", json.dumps([{"text": TEXT}]).encode()),
    "text: latin-1": ("a.txt", f"{TEXT} \xe9\n".encode("latin1")),
    "text: one document": ("a.txt", TEXT.encode()),
    "text: bad utf-16": ("a.txt", TEXT.encode("utf-16") + b"\x00\xd8x"),
    "text: cut gzip": ("a.txt.gz", gzip.compress(TEXT.encode() * 99)[:-9]),
    "text: not gzip": ("a.txt.gz", TEXT.encode()),
    "text: a web page": ("a.txt", f"<html><title>{TEXT}</title></html>".encode()),
    "wiki: cut off": ("a.xml", WIKI.format(TEXT, TEXT).encode()),
    "wiki: no text": ("a.xml", (WIKI.format(TEXT, "") + "</mediawiki>").encode()),
    "wiki: bad xml": ("a.xml", WIKI.format(TEXT, f"{TEXT} <b {TEXT}>").encode()),
    "wiki: other root": ("a.xml", f"<{WORD}>{TEXT}</{WORD}>".encode()),
    "wikiextractor: outside": ("a.txt", f'<doc id="1">\n{TEXT}\n</doc>\n{TEXT}\n'.encode()),
    "parquet: damaged": ("a.parquet", b"PAR1" + TEXT.encode() + b"PAR1"),
    "a table": ("a.csv", f"text,label\n{TEXT},1\n".encode()),
    "csv: no header": ("a.csv", f"{WORD},{WORDS[1]}\nSome words of a note,good\n".encode()),
    "tsv: no header": ("a.tsv", f"{WORD}\t{WORDS[1]}\nSome words of a note\tgood\n".encode()),
}

TABLES: dict[str, tuple[str, str]] = {
    "csv: unclosed quote": ("a.csv", f'text,label\n"{TEXT},good\n{TEXT},bad\n'),
    "csv: text after a quote": ("a.csv", f'text,label\n"{TEXT}"{WORD},good\n'),
    "csv: no header": ("a.csv", f"{TEXT},good\n{TEXT},bad\n"),
    "csv: semicolons": ("a.csv", f"text;label\n{TEXT};good\n"),
    "csv: more fields": ("a.csv", f"text,label\n{TEXT},good,{WORD}\n"),
    "csv: latin-1": ("a.csv", f"text,label\n{TEXT} \xe9,good\n"),
    "csv: twice the same header": ("a.csv", f"{TEXT},{TEXT}\nx,good\n"),
    "csv: header is a row of short fields": ("a.csv", f"{WORD},1970\n{WORD},1971\n"),
    "csv: CR alone": ("a.csv", f"text,label\r{TEXT},good\r"),
    "tsv: too few tabs": ("a.tsv", f"text\tlabel\n{TEXT}\n"),
    "jsonl: cut off": ("a.jsonl", f'{{"text": "{TEXT}", "label": "good"}}\n{{"text": "{TEXT}\n'),
    "jsonl: other keys": ("a.jsonl", json.dumps({TEXT: TEXT, "label": "good"}) + "\n"),
    "jsonl: half a character": ("a.jsonl", f'{{"text": "{TEXT} \\ud83d", "label": "good"}}\n'),
    "labels: one is a text": ("a.tsv", "text\tlabel\nx\tgood\ny\tbad\nz\t" + f"{TEXT} {TEXT} {TEXT}\n"),
    "labels: all are texts": (
        "a.tsv",
        "text\tlabel\n" + "".join(f"x\t{TEXT} {number}\n" for number in range(30)),
    ),
    "labels: only one": ("a.tsv", f"text\tlabel\nx\t{TEXT}\ny\t{TEXT}\n"),
}


@pytest.fixture
def job_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Return a function: what a job printed, after a look into the files that it wrote."""

    def read() -> str:
        logging.shutdown()
        streams = capfd.readouterr()
        # documents of an unfinished preparation, which the next start reuses (docs/privacy.md)
        assert not {name for name in files_with_canary(tmp_path / "out") if "/parts/documents-" not in name}
        return streams.out + streams.err

    return read


def refused(output: str) -> None:
    assert "error[data]" in output or "error[spec]" in output, output
    assert found_in(output) == [], output


@pytest.mark.parametrize("case", CORPORA)
def test_refused_corpus_is_not_quoted(tmp_path: Path, job_output: Callable[[], str], case: str) -> None:
    name, content = CORPORA[case]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"data": {"text": [str(tmp_path / name)], "vocab_size": 200}}))
    assert prepare.main(["--config", str(tmp_path / "job.yaml"), "--output", str(tmp_path / "out")]) == 2
    refused(job_output())


def test_plan_guesses_no_key_that_it_withholds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({TEXT: 1, WORD: "the longest text of this row"}))
    assert cli.main(["plan", "pretrain", "--data", str(tmp_path / "a.jsonl")]) == 2
    refused("".join(capsys.readouterr()))


def test_refused_parquet_is_not_quoted(tmp_path: Path, job_output: Callable[[], str]) -> None:
    pq.write_table(pa.table({"id": [TEXT]}), tmp_path / "a.parquet")
    source = {"path": str(tmp_path / "a.parquet"), "column": "text"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"data": {"text": [source]}}))
    assert prepare.main(["--config", str(tmp_path / "job.yaml"), "--output", str(tmp_path / "out")]) == 2
    refused(job_output())


@pytest.mark.parametrize(
    "pieces", [["[PAD]", WORD, WORD], ["[PAD]", WORD], ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", WORD, "", WORD]]
)
def test_refused_vocabulary_is_not_quoted(tmp_path: Path, job_output: Callable[[], str], pieces: list[str]) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (tmp_path / "a.txt").write_text("\n\n".join(f"Some words, the {number}th." for number in range(200)))
    data = {"text": [str(tmp_path / "a.txt")], "vocabulary": str(tmp_path / "vocab.txt")}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"data": data}))
    assert prepare.main(["--config", str(tmp_path / "job.yaml"), "--output", str(tmp_path / "out")]) == 2
    refused(job_output())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("bert"))


def tune(folder: Path, model: Path, task: str, **data: object) -> int:
    """Run a fine-tuning in this process, and return its exit code."""
    (folder / "job.yaml").write_text(yaml.safe_dump(settings(model, task, data)))
    return finetune.main(["--config", str(folder / "job.yaml"), "--output", str(folder / "out"), "--device", "cpu"])


@pytest.mark.parametrize("case", TABLES)
def test_refused_table_is_not_quoted(tmp_path: Path, model: Path, job_output: Callable[[], str], case: str) -> None:
    name, content = TABLES[case]
    (tmp_path / name).write_bytes(content.encode("latin1"))
    (tmp_path / "dev.tsv").write_text("text\tlabel\nx\tgood\n")
    columns = {"text": "text", "label": "label", "validation": tmp_path / "dev.tsv"}
    assert tune(tmp_path, model, "own", train=tmp_path / name, **columns) == 2
    refused(job_output())


@pytest.mark.parametrize("regression", [False, True])
def test_unknown_label_is_not_quoted(
    tmp_path: Path, model: Path, job_output: Callable[[], str], regression: bool
) -> None:
    labels = ("1", "2") if regression else ("good", "bad")
    (tmp_path / "train.tsv").write_text(f"text\tlabel\nx\t{labels[0]}\ny\t{labels[1]}\n")
    (tmp_path / "dev.tsv").write_text(f"text\tlabel\nx\t{labels[0]}\ny\t{TEXT}\n")
    files = {"train": tmp_path / "train.tsv", "validation": tmp_path / "dev.tsv"}
    assert tune(tmp_path, model, "own", text="text", label="label", regression=regression, **files) == 2
    refused(output := job_output())
    assert f"{tmp_path / 'dev.tsv'}:3:" in output
    assert f"a text of {len(TEXT)} characters" in output


def test_values_are_shown_if_asked(
    tmp_path: Path, model: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHOW_VALUES, "1")
    (tmp_path / "train.tsv").write_text("text\tlabel\nx\tgood\ny\tbad\n")
    (tmp_path / "dev.tsv").write_text(f"text\tlabel\ny\t{TEXT}\n")
    files = {"train": tmp_path / "train.tsv", "validation": tmp_path / "dev.tsv"}
    assert tune(tmp_path, model, "own", text="text", label="label", **files) == 2
    assert TEXT in capfd.readouterr().err


SQUADS = {
    "cut off": json.dumps({"data": [{"paragraphs": [{"context": TEXT}]}]})[:-9],
    "no questions": json.dumps({"data": [{"paragraphs": [{"context": TEXT}]}]}),
    "a text": json.dumps({"data": [TEXT]}),
    "answer elsewhere": json.dumps(
        {
            "data": [
                {
                    "paragraphs": [
                        {
                            "context": TEXT,
                            "qas": [
                                {"id": WORD, "question": TEXT, "answers": [{"text": WORDS[1], "answer_start": 2}]},
                                {"id": TEXT, "question": 7, "answers": TEXT},
                            ],
                        }
                    ]
                }
            ]
        }
    ),
}


@pytest.mark.parametrize("case", SQUADS)
def test_refused_questions_are_not_quoted(
    tmp_path: Path, model: Path, job_output: Callable[[], str], case: str
) -> None:
    (tmp_path / "train.json").write_text(SQUADS[case])
    files = {"train": tmp_path / "train.json", "validation": tmp_path / "train.json"}
    assert tune(tmp_path, model, "SQuAD-1.1", **files) == 2
    refused(job_output())


@pytest.mark.parametrize(
    "lines", [f"{WORD} B-PER\n{WORDS[1]} {WORDS[2]}\n", f"{WORD} B-PER\n{WORDS[1]} O {WORDS[2]}\n", f"{WORD}\n"]
)
def test_refused_words_are_not_quoted(tmp_path: Path, model: Path, job_output: Callable[[], str], lines: str) -> None:
    (tmp_path / "train.conll").write_text(lines)
    files = {"train": tmp_path / "train.conll", "validation": tmp_path / "train.conll"}
    assert tune(tmp_path, model, "NER", **files) == 2
    refused(job_output())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", f"{TEXT}\n"),
        ("a.jsonl", json.dumps({TEXT: TEXT}) + "\n"),
        ("a.csv", f"{TEXT}\n{TEXT}\n"),
        ("a.csv", f'text\n"{TEXT}\n'),
    ],
)
def test_refused_rows_to_predict_are_not_quoted(
    tmp_path: Path, model: Path, job_output: Callable[[], str], name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    document = {"model": str(model), "input": str(tmp_path / name)}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document))
    words = ["--config", str(tmp_path / "job.yaml"), "--output", str(tmp_path / "out"), "--device", "cpu"]
    assert predict.main(words) == 2
    refused(job_output())


def crash(text: str) -> None:
    """Fail as a library does that cannot use a value."""
    try:
        {}[text]
    except KeyError as problem:
        raise ValueError(f"could not convert string to float: '{text}'") from problem


def test_unexpected_error_is_reported_without_its_values() -> None:
    with pytest.raises(ValueError, match="could not") as caught:
        crash(TEXT)
    report = traceback_text(caught.value)
    assert found_in(report) == []
    assert "KeyError" in report
    assert "ValueError" in report
    assert f"in {crash.__name__}" in report
    assert unexpected_text(OSError(28, "No space left on device")) == "OSError: [Errno 28] No space left on device"
    assert unexpected_text(RuntimeError("mat1 and mat2 shapes")) == "RuntimeError: mat1 and mat2 shapes"


@pytest.mark.parametrize(
    "message",
    [
        f"Could not convert '{TEXT}' with type str",
        f"can't read \"{TEXT}'s\" it's broken",
        f"bad b'{TEXT}'",
        f"'{TEXT}",
    ],
)
def test_quoted_values_are_left_out(message: str) -> None:
    assert found_in(problem_text(ValueError(message + " 'utf-8'"))) == []


def test_names_of_columns_are_shown_unless_one_is_a_text() -> None:
    assert names_text(["text", "label", "patient id"]) == "text, label, patient id"
    assert names_text(["text", TEXT * 2]).startswith("2 columns (not shown")
    assert names_text(["Anna", "1970"]).startswith("2 columns (not shown")
