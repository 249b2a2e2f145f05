"""Private text after jobs by the command line: only in the files that docs/privacy.md lists."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from orchestrator.cli.main import main
from tests.conftest import MICRO, Console, wait_for, write_corpus
from tests.unit.finetuning.finetune_jobs import write_model
from tests.unit.privacy.canary import SENTENCE, files_with_canary, found_in, places
from tests.unit.privacy.private_data import write_private_model, write_questions, write_rows, write_words

THREADS = ("--set", "compute.threads_per_process=1")
TUNING = ("--set", "data.max_length=32", "--set", "train.epochs=1", *THREADS)
HERE = ("-b", "debug")  # in this process, which spares each job the import of torch
ALL_FILES = ("--set", "tracking.artifacts=all")  # also predictions in MLflow
MODEL = {"runs/*/outputs/**/vocab.txt", "runs/*/outputs/**/tokenizer.json"}
VERSION = {"artifacts/models/**/vocab.txt", "artifacts/models/**/tokenizer.json"}
PREDICTED = {"out.jsonl", "runs/*/outputs/predictions.*", "artifacts/**/predictions.*"}


class Watched:
    """The command line in this process, with a search of its output and of all files for the canary.

    The private data are in the folder `data`. Everything else that a command may write to is in the working folder
    too: the home, the folder for temporary files and the user's home directory.
    """

    def __init__(self, console: Console, monkeypatch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        self._cwd, self._captured = console.cwd, captured
        self.home = console.home
        self.data = console.cwd / "data"
        self.data.mkdir()
        for variable, folder in (("TMPDIR", "temporary"), ("HOME", "user")):
            (console.cwd / folder).mkdir()
            monkeypatch.setenv(variable, str(console.cwd / folder))
        monkeypatch.setattr(tempfile, "tempdir", None)  # computed again, from TMPDIR
        monkeypatch.setenv("ORCHESTRATOR_HOME", str(console.home))
        monkeypatch.chdir(console.cwd)
        self._given: dict[str, bytes] = {}

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run a command, require its exit code, and return its output, which must not contain the canary."""
        self._given = self._given or self._contents()
        self._captured.readouterr()
        returned = main(list(words))
        out, err = self._captured.readouterr()
        assert returned == code, f"{words}: {returned}\n{out}\n{err}"
        assert found_in(out + err) == [], f"{words}:\n{out}\n{err}"
        return str(out)

    def _contents(self) -> dict[str, bytes]:
        """Return the private data, and the model that tests start from."""
        folders = (self.data, self._cwd / "model")
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        return {path.relative_to(self._cwd).as_posix(): path.read_bytes() for path in files}

    def names(self) -> list[str]:
        """Return the names of all runs."""
        return [one["name"] for one in json.loads(self("list", "-o", "json"))]

    def copy_to_mlflow(self) -> None:
        """Copy everything to MLflow, once no process of a run or a sweep copies it."""
        wait_for(lambda: main(["mlflow", "sync", "--all"]) == 0, seconds=600, what="the end of other copies")

    def look_at(self, *names: str) -> None:
        """Run the commands that print or write something about runs."""
        for name in names:
            self("status", name, "-o", "json")
            self("logs", name)
            if not name.startswith(("evaluate", "predict", "prepare")):  # they have no curves and no lineage
                self("status", name, "--lineage")
                self("report", name)

    def text_places(self) -> set[str]:
        """Return where the canary is: patterns of docs/privacy.md, or the path of a file that is not listed."""
        assert self._contents() == self._given, "a command wrote to the folder of the data or of the model"
        written = files_with_canary(self._cwd) - self._given.keys() - {"vocab.txt"}  # of the model
        return places({name.removeprefix(f"{self.home.name}/").replace("debug-runs/", "runs/") for name in written})

    def purge(self, *names: str) -> None:
        """Purge runs and sweeps, and require that the home has no trace of them."""
        self("prune", "--purge", *names, "--yes")
        files = {str(path): path.read_bytes() for path in self.home.rglob("*") if path.is_file()}
        assert [(name, path) for name in names for path in files if name in path or name.encode() in files[path]] == []
        assert files_with_canary(self.home) == set()
        assert self.names() == []


@pytest.fixture
def watched(console: Console, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Watched:
    return Watched(console, monkeypatch, capfd)


def private_corpus(folder: Path) -> Path:
    """Write a corpus whose documents contain the canary."""
    path = write_corpus(folder / "notes.txt")
    path.write_text(path.read_text().replace(".\n\n", f". {SENTENCE}\n\n"))
    return path


def splits(files: dict[str, Path]) -> list[str]:
    """Return flags that read the splits of a task from files."""
    return [word for split, path in files.items() for word in ("--set", f"data.{split}={path}")]


@pytest.mark.long
def test_private_text_stays_in_listed_files_until_purge(watched: Watched, tmp_path: Path) -> None:
    spec = {**MICRO, "data": {**MICRO["data"], "text": [str(private_corpus(watched.data))]}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(spec))
    watched("submit", "pretrain", "-f", "job.yaml")
    (name,) = watched.names()
    watched.copy_to_mlflow()
    watched.look_at(name)
    # the vocabulary was trained on the private text
    assert watched.text_places() == {"token-stores/*/vocab.txt", *MODEL}
    planned = json.loads(watched("prune", "--purge", name, "--dry-run", "-o", "json"))
    assert [len(planned[key]) for key in ("runs", "token_stores", "tracking")] == [1, 1, 1]
    watched.purge(name)
    assert watched.text_places() == set()


def test_private_text_of_refused_jobs_is_in_no_file(watched: Watched, console: Console, tmp_path: Path) -> None:
    write_model(tmp_path)
    write_rows(watched.data)
    (watched.data / "dev.tsv").write_text(f"text\tlabel\n{SENTENCE}\t{SENTENCE}\n")
    words = ("finetune", "--task", "data/notes.yaml", "--model", "model", *TUNING)
    watched("submit", *words, code=2)
    assert watched.names() == []  # the plan reads the tables, so nothing starts
    assert watched.text_places() == set()
    shown = console("submit", *words, "--show-values")
    assert SENTENCE in shown.err


@pytest.mark.slow
def test_private_corpus_that_is_prepared_stays_in_store(watched: Watched) -> None:
    watched("submit", "prepare", "--data", str(private_corpus(watched.data)), "--set", "data.vocab_size=256")
    watched.look_at(*watched.names())
    assert watched.text_places() == {"token-stores/*/vocab.txt"}
    watched.purge(*watched.names())
    assert watched.text_places() == set()


class Kind(NamedTuple):
    """A fine-tuning on private data, predictions of its model, and the files that then have text."""

    task: str
    write: Callable[[Path], dict[str, Path]]
    row: dict[str, str]
    """Row to predict."""
    scored: str
    """File to evaluate."""
    expected: set[str]
    more: tuple[str, ...] = ()
    """Flags of the fine-tuning."""


KINDS = {
    "rows": Kind("data/notes.yaml", write_rows, {"id": SENTENCE, "text": f"w1 {SENTENCE}"}, "dev.tsv", set()),
    "questions": Kind(
        "SQuAD-2.0",
        write_questions,
        {"id": SENTENCE, "question": f"w1 {SENTENCE}", "context": SENTENCE},
        "dev.json",
        {"runs/*/outputs/**/predictions/*/*.json", "artifacts/**/predictions/**"},
        ("--set", "data.max_query_length=4", "--set", "data.doc_stride=12"),
    ),
    "entities": Kind(
        "NER",
        write_words,
        {"id": SENTENCE, "text": SENTENCE},
        "words.conll",
        {"runs/*/outputs/**/predictions/*.txt", "artifacts/**/predictions/**"},
    ),
}


@pytest.mark.long
@pytest.mark.usefixtures("copied_later")
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")  # other tests have imported the job
@pytest.mark.parametrize("kind", KINDS)
def test_private_data_of_fine_tuning_stay_in_listed_files(
    watched: Watched, tmp_path: Path, empty_store: Path, kind: str
) -> None:
    """Also in MLflow with the predictions, and in the model that is registered there."""
    task, write, row, scored, expected, more = KINDS[kind]
    write_private_model(tmp_path)
    files = write(watched.data)
    watched.home.mkdir()
    shutil.copy(empty_store, watched.home / "mlflow.db")
    given = () if kind == "rows" else splits(files)
    (watched.data / "new.jsonl").write_text(json.dumps(row) + "\n")
    words = ("finetune", "--task", task, "--model", "model", *given, *more, *TUNING, *ALL_FILES)
    for verb in ("validate", "plan", "submit"):
        watched(verb, *words, *HERE)
    (tuned,) = watched.names()
    predicting = ("--model", tuned, *THREADS, *ALL_FILES, *HERE)
    keep = ("--set", "data.keep=[id]", "--output", "out.jsonl")
    watched("submit", "predict", "--input", "data/new.jsonl", *keep, *predicting)
    watched("submit", "evaluate", "--data", f"data/{scored}", *predicting)
    watched.copy_to_mlflow()
    watched("model", "register", tuned, "--name", "notes", "--checkpoints")
    watched.look_at(*watched.names())
    assert watched.text_places() == {*MODEL, *VERSION, *PREDICTED, *expected}
    watched.purge(*watched.names())
    assert watched.text_places() == {"out.jsonl"}


@pytest.mark.slow
def test_private_data_of_sweep_stay_in_models(watched: Watched, tmp_path: Path) -> None:
    """Neither the sweep nor its trials have text, here and in MLflow, but the vocabulary of their models."""
    write_private_model(tmp_path)
    columns = {name: str(path) for name, path in write_rows(watched.data).items()} | {"text": "text", "label": "label"}
    trial = {
        "kind": "finetune",
        "task": "own",
        "init_from": "model",
        "data": {**columns, "max_length": 32},
        "train": {"epochs": 1},
        "compute": {"threads_per_process": 1},
        "tracking": {"artifacts": "all"},
    }
    space = {"optimizer.learning_rate": [1e-3, 1e-4]}
    sweep = {"trial": trial, "space": space, "sampling": "grid", "limits": {"concurrent": 2}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    for verb in ("validate", "plan", "submit"):
        watched(verb, "sweep", "-f", "sweep.yaml")
    (name,) = [one["name"] for one in json.loads(watched("sweep", "list", "-o", "json"))]
    watched("sweep", "show", name)
    watched("sweep", "best", name, "--spec", "best.yaml")
    watched("sweep", "report", name, "--png", "pictures")
    watched.copy_to_mlflow()
    watched("model", "register", name, "--name", "notes")
    watched.look_at(*watched.names())
    assert watched.text_places() == {*MODEL, *VERSION}
    watched.purge(name)
    assert watched.text_places() == set()
