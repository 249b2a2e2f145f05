"""User mistakes: each gives a clear error in the standard format, without a traceback or leftover files."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import SMALL_TEXT, Console, Finished, write_corpus, write_spec


def refused(done: Finished, kind: str, code: int) -> str:
    """Check the format of an error that precedes any start, and return it."""
    assert done.code == code, done.err
    assert f"error[{kind}]: " in done.err
    assert "Traceback" not in done.err + done.out
    assert done.out == ""
    return done.err


def failed_run(console: Console, done: Finished, kind: str) -> str:
    """Check a run that failed on its input: state, exit code, message and no partial token store."""
    status = done.json
    assert status["state"] == "failed"
    assert status["reason"].startswith(f"error[{kind}]: ")
    assert "  fix" in status["reason"]
    log = (console.folder(status["name"]) / "logs" / "rank-0.log").read_text()
    assert "Traceback" not in log + done.err
    assert not list((console.home / "token-stores").glob("*/*.arrow"))
    assert not (console.folder(status["name"]) / "outputs" / "model").exists()
    return str(status["reason"])


def submit(console: Console, text: Path, **sections: object) -> Finished:
    write_spec(console.cwd / "job.yaml", data={"text": [str(text)]}, **sections)
    return console("submit", "pretrain", "-f", "job.yaml", "-o", "json")


@pytest.mark.parametrize("words", [("-f", "nowhere.yaml"), ("--data", "nowhere.txt")])
def test_missing_file_is_reported(console: Console, words: tuple[str, ...]) -> None:
    err = refused(console("submit", "pretrain", *words), "spec", 2)
    assert words[1] in err


def test_unknown_verb_and_flag_are_usage_errors(console: Console) -> None:
    refused(console("sumbit", "pretrain"), "usage", 2)
    assert "--set train.steps=VALUE" in refused(console("submit", "pretrain", "--stpes", "3"), "usage", 2)
    assert "orchestrator submit --help" in refused(console("submit", "pretrain", "--xyzzy"), "usage", 2)
    assert "local" in refused(console("submit", "pretrain", "-b", "loca"), "usage", 2)


def test_empty_corpus_fails_run(console: Console) -> None:
    (console.cwd / "empty.txt").touch()
    assert "empty.txt" in refused(console("submit", "pretrain", "--data", "empty.txt"), "data", 2)
    assert not list((console.home / "runs").glob("*"))


def test_corpus_of_blank_lines_is_refused(console: Console) -> None:
    (console.cwd / "blank.txt").write_text("\n\n  \n")
    assert "blank.txt" in refused(console("submit", "pretrain", "--data", "blank.txt"), "data", 2)
    assert not list((console.home / "runs").glob("*"))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("word\n\n" * 500, "the text is too small to train on"),
        (SMALL_TEXT.replace("\n\n", "\n"), "cannot split a single document"),
    ],
)
def test_corpus_that_is_too_small_is_refused(console: Console, text: str, what: str) -> None:
    (console.cwd / "small.txt").write_text(text)
    err = refused(console("submit", "pretrain", "--data", "small.txt"), "data", 2)
    assert what in err
    assert "need" in err
    assert "have" in err
    assert not list((console.home / "runs").glob("*"))


@pytest.mark.slow
def test_corpus_of_identical_documents_fails_run(console: Console) -> None:
    path = console.cwd / "same.txt"
    document = SMALL_TEXT.replace("\n\n", " ")
    path.write_text(f"{document}\n{document}")
    done = submit(console, path)
    assert done.code == 2
    reason = failed_run(console, done, "data")
    assert "need" in reason
    assert "have" in reason


def test_file_that_is_not_utf8_is_refused(console: Console) -> None:
    path = write_corpus(console.cwd / "latin.txt")
    path.write_bytes(path.read_bytes() + "\n\nna\xefve caf\xe9\n".encode("latin-1"))
    lines = path.read_bytes().count(b"\n")
    told = refused(console("submit", "pretrain", "--data", str(path)), "data", 2)
    assert f"latin.txt:{lines}: is not UTF-8" in told
    assert "iconv" in told
    assert not list((console.home / "runs").glob("*"))


def test_port_in_use_is_reported(console: Console, corpus: Path) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, compute={"master_port": port})
        err = refused(console("submit", "pretrain", "-f", "job.yaml"), "conflict", 1)
    assert f"cannot use port {port}" in err
    assert "--set compute.master_port=0" in err
    assert not list((console.home / "runs").glob("*"))


def test_unwritable_home_is_reported(console: Console, corpus: Path) -> None:
    console.home.write_text("a file where the folder should be")
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]})
    err = refused(console("submit", "pretrain", "-f", "job.yaml", "-d"), "storage", 1)
    assert "ORCHESTRATOR_HOME" in err
    assert console.home.read_text() == "a file where the folder should be"


def test_variable_without_value_is_a_reference(console: Console) -> None:
    plan = console("plan", "pretrain", "--env", "FLAVOUR", "-o", "json", FLAVOUR="vanilla")
    assert plan.json["request"]["secrets"] == {"FLAVOUR": "env:FLAVOUR"}
    assert "vanilla" not in plan.out + plan.err
    assert "needs NOT_SET_ANYWHERE" in refused(console("plan", "pretrain", "--env", "NOT_SET_ANYWHERE"), "usage", 2)


def test_broken_pipe_is_quiet(console: Console) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli.main", "plan", "pretrain"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=console.environ(),
        text=True,
        check=False,
    )
    os.close(writing)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
