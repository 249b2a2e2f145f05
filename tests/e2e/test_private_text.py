"""Private text after jobs by the command line: only in the files that docs/privacy.md lists."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from tests.conftest import MICRO, Console, write_corpus
from tests.unit.finetuning.finetune_jobs import write_model
from tests.unit.privacy.canary import SENTENCE, WORDS, files_with_canary, found_in

PAGE = Path(__file__).resolve().parents[2] / "docs" / "privacy.md"
TUNING = ("--set", "data.max_length=32", "--set", "compute.threads_per_process=1", "--set", "train.epochs=1")


def listed_files() -> list[str]:
    """Return the patterns of files that hold text, as docs/privacy.md lists them."""
    section = PAGE.read_text().split("## Files that hold text", 1)[1].split("\n## ", 1)[0]
    return [
        pattern
        for row in re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE)
        for pattern in re.findall(r"`(.+?)`", row)
    ]


class Watched:
    """A console whose output and files are searched for the canary."""

    def __init__(self, console: Console, temporary: Path) -> None:
        self._console, self._temporary = console, temporary
        self.searched = 0

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run a command, require its exit code, and return its output, which must not contain the canary."""
        done = self._console(*words, timeout=900, TMPDIR=str(self._temporary))
        assert done.code == code, f"{words}: {done.code}\n{done.out}\n{done.err}"
        assert found_in(done.out + done.err) == [], f"{words}:\n{done.out}\n{done.err}"
        self.searched += 1
        return done.out

    def names(self) -> list[str]:
        """Return the names of all runs."""
        return [one["name"] for one in json.loads(self("list", "-o", "json"))]

    def look_at(self, name: str) -> None:
        """Run the commands that print or write something about a run."""
        reported = [] if name.startswith(("evaluate", "predict", "prepare")) else [("report", name)]  # without curves
        for words in (("status", name, "-o", "json"), ("logs", name), *reported):
            self(*words)


@pytest.fixture
def watched(console: Console, tmp_path: Path) -> Watched:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    return Watched(console, temporary)


def private_corpus(folder: Path) -> Path:
    """Write a corpus whose documents contain the canary."""
    path = write_corpus(folder / "notes.txt")
    path.write_text(path.read_text().replace(".\n\n", f". {SENTENCE}\n\n"))
    return path


def write_tables(folder: Path) -> Path:
    """Write a task whose rows contain the canary, and rows to predict."""
    for name, count in (("train", 32), ("dev", 8), ("new", 4)):
        rows = [f"w{number} {SENTENCE}\t{'good' if number % 2 else 'bad'}" for number in range(count)]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    task = folder / "notes.yaml"
    task.write_text("train: train.tsv\nvalidation: dev.tsv\ntest: new.tsv\ntext: text\nlabel: label\n")
    return task


def write_words(folder: Path) -> Path:
    """Write sentences with tags, whose names are words of the canary."""
    path = folder / "words.conll"
    path.write_text("".join(f"{word} B-PER\nw{number} O\n\n" for number, word in enumerate(WORDS)))
    return path


def splits(path: Path) -> list[str]:
    """Return flags that read all splits of a task from one file."""
    return [word for split in ("train", "validation", "test") for word in ("--set", f"data.{split}={path}")]


def unlisted(home: Path) -> list[str]:
    """Return the files of a home folder that contain the canary, without those that docs/privacy.md lists."""
    patterns = listed_files()
    return [name for name in files_with_canary(home) if not any(fnmatch(name, pattern) for pattern in patterns)]


def traces(home: Path, name: str) -> list[str]:
    """Return the files of a home folder with the canary or a run's name in them, or in their names."""
    files = [path for path in home.rglob("*") if path.is_file()]
    named = [str(path) for path in files if name in str(path) or name.encode() in path.read_bytes()]
    return [*files_with_canary(home), *named]


def test_private_text_stays_in_listed_files_until_purge(watched: Watched, console: Console, tmp_path: Path) -> None:
    spec = {**MICRO, "data": {**MICRO["data"], "text": [str(private_corpus(tmp_path))]}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(spec))
    watched("submit", "pretrain", "-f", "job.yaml")
    (name,) = watched.names()
    watched.look_at(name)
    assert unlisted(console.home) == []
    assert files_with_canary(console.home), "the vocabulary of private text has its words"
    planned = json.loads(watched("prune", "--purge", name, "--dry-run", "-o", "json"))
    assert [len(planned[key]) for key in ("runs", "token_stores", "tracking")] == [1, 1, 1]
    assert traces(console.home, name)
    watched("prune", "--purge", name, "--yes")
    assert traces(console.home, name) == []
    assert watched.names() == []
    assert files_with_canary(tmp_path / "temporary") == set()


def test_private_text_of_refused_jobs_is_in_no_file(watched: Watched, console: Console, tmp_path: Path) -> None:
    write_model(tmp_path)
    task = str(write_tables(tmp_path))
    (tmp_path / "dev.tsv").write_text(f"text\tlabel\n{SENTENCE}\t{SENTENCE}\n")
    words = ("finetune", "--task", task, "--model", "model", *TUNING)
    watched("submit", *words, code=2)
    assert watched.names() == []  # the plan reads the tables, so nothing starts
    assert files_with_canary(console.home) == set()
    shown = console("submit", *words, "--show-values")
    assert SENTENCE in shown.err


@pytest.mark.slow
def test_private_text_of_every_kind_stays_in_listed_files(watched: Watched, console: Console, tmp_path: Path) -> None:
    corpus = private_corpus(tmp_path)
    watched("submit", "prepare", "--data", str(corpus), "--set", "data.vocab_size=256")
    write_model(tmp_path)
    task = str(write_tables(tmp_path))
    model = ("--model", "model", *TUNING)
    for verb in ("validate", "plan", "submit"):
        watched(verb, "finetune", "--task", task, *model)
    tuned = watched.names()[0]
    rows = ("--model", tuned, *TUNING[2:4])
    watched("submit", "predict", "--input", "new.tsv", "--output", "out.jsonl", *rows)
    columns = ("--set", "data.text=text", "--set", "data.label=label")
    watched("submit", "evaluate", "--data", "dev.tsv", *columns, *rows)
    watched("submit", "finetune", "--task", "NER", *splits(write_words(tmp_path)), *model)
    for name in watched.names():
        watched.look_at(name)
    assert unlisted(console.home) == []
    watched("prune", "--purge", *watched.names(), "--yes")
    assert traces(console.home, tuned) == []
    assert files_with_canary(tmp_path / "temporary") == set()
