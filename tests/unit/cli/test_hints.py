"""Wrong words on the command line: what the user meant, and a fix that the parser accepts."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.cli.main import build_parser
from orchestrator.cli.ui.hints import FLAGS, VERBS
from tests.conftest import Finished, write_bert
from tests.mistakes import COLUMNS, FINETUNE, TRAIN

Command = Callable[..., Finished]


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        ("ls", "unknown verb 'ls' (did you mean \"list\"?)", "orchestrator list"),
        ("ps", "unknown verb 'ps' (did you mean \"list\"?)", "orchestrator list"),
        ("stop @last", "unknown verb 'stop' (did you mean \"cancel\"?)", "orchestrator cancel"),
        ("compare a b", "unknown verb 'compare' (did you mean \"diff\"?)", "orchestrator diff"),
        ("show x", "unknown verb 'show' (did you mean \"status\"?)", "orchestrator status"),
        ("statsu", "unknown verb 'statsu' (did you mean \"status\"?)", "orchestrator status"),
        ("data fecth", "unknown action 'fecth' (did you mean \"fetch\"?)", "orchestrator data fetch"),
        ("plan pretrain --data a b c", "--data takes one path, and may be repeated", "--data a --data b --data c"),
        (
            f"plan predict --input {' '.join(f'{number}.csv' for number in range(3000))}",
            "--input takes one path, and may be repeated",
            "--input 0.csv --input 1.csv --input 2.csv --input 3.csv --input 4.csv ...",
        ),
        (
            f"plan pretrain {' '.join(f'{number}.txt' for number in range(3000))}",
            "unknown arguments of plan: 0.txt 1.txt 2.txt 3.txt 4.txt and 2,995 more",
            "orchestrator plan --help",
        ),
        (
            "plan pretrain --set train.steps 50",
            "invalid --set train.steps: not of the form KEY=VALUE",
            "--set train.steps=50",
        ),
        ("plan finetune --init_from x", '(did you mean "--model"?)', "--model"),
        ("plan finetune --epochs 3", "(did you mean --set train.epochs=VALUE?)", "--set train.epochs=VALUE"),
        ("plan finetune --seed 3", "(did you mean --set seeds=VALUE?)", "--set seeds=VALUE"),
        ("plan pretrain --max-steps 3", "(did you mean --set train.steps=VALUE?)", "--set train.steps=VALUE"),
        ("plan pretrain --warmup_ratio 0.1", "schedule.warmup_fraction", "--set schedule.warmup_fraction=VALUE"),
        ("plan sweep --n-trials 3", "(did you mean --set limits.trials=VALUE?)", "--set limits.trials=VALUE"),
        ("plan pretrain --device gpu", "(did you mean --set compute.device=VALUE?)", "--set compute.device=VALUE"),
        ("plan finetune --max_length 64", "data.max_length", "--set data.max_length=VALUE"),
        ("plan sweep --concurrent 2", "limits.concurrent", "--set limits.concurrent=VALUE"),
        ("plan pretrain --recipes tiny", '(did you mean "--recipe"?)', "--recipe"),
        ("plan pretrain --column note", "--column needs the files that have the column", "--data FILE --column note"),
        ("plan finetune --column note", "must be text=NAME, pair=NAME, label=NAME", "--column text=note"),
        ("plan finetune", "init_from: required", "--model RUN"),
        ("plan predict", "input: required", "--model RUN --input FILE"),
        ("plan finetune --column txt=note", '(did you mean "text"?)', "--column text=note"),
    ],
)
def test_wrong_words_get_the_meant_ones(orchestrator: Command, words: str, message: str, fix: str) -> None:
    error = orchestrator(*shlex.split(words))
    assert error.code == 2
    assert message in error.err
    assert re.search(rf"^  fix +{re.escape(fix)}$", error.err, re.MULTILINE)
    assert len(error.err.splitlines()) <= 4


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("learning_rate=1", 'unknown key (did you mean "optimizer.learning_rate"?)'),
        ("mlm_probability=0.2", 'unknown key (did you mean "objective.masked_lm_probability"?)'),
        ("train.fp16=true", 'unknown key (did you mean "train.precision"?)'),
        ("max_seq_length=128", 'unknown key (did you mean "data.sequence_length"?)'),
        ("train.step=5", 'unknown key (did you mean "steps"?)'),
        ("train.steps=abc", "train.steps: must be a whole number, not 'abc'"),
        ("train.steps=1.5", "train.steps: must be a whole number, not 1.5"),
        ("optimizer.learning_rate=fast", "optimizer.learning_rate: must be a number, not 'fast'"),
    ],
)
def test_wrong_assignments_are_explained(orchestrator: Command, assignment: str, message: str) -> None:
    error = orchestrator("plan", "pretrain", "--set", assignment)
    assert (error.code, message in error.err) == (2, True), error.err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("pretrain --epochs 3", "pretraining counts steps, not epochs: --set train.steps=VALUE"),
        ("pretrain --num-train-epochs 3", "pretraining counts steps, not epochs: --set train.steps=VALUE"),
        ("pretrain --warmup 0.1", "did you mean --set schedule.warmup_fraction=VALUE?"),
        ("pretrain --layers 4", "did you mean --set model.num_hidden_layers=VALUE?"),
        ("pretrain --heads 4", "did you mean --set model.num_attention_heads=VALUE?"),
        ("finetune --dropout 0.2", "did you mean --set model.hidden_dropout_prob=VALUE?"),
        ("pretrain --masked 0.2", "did you mean --set objective.masked_lm_probability=VALUE?"),
        ("finetune --lerning-rate 1", "did you mean --set optimizer.learning_rate=VALUE?"),
        ("finetune --metric f1", None),
        ("pretrain --batch 8", None),  # several keys have the word
    ],
)
def test_suggested_flag_is_the_meant_one_or_none(orchestrator: Command, words: str, meant: str | None) -> None:
    error = orchestrator("plan", *shlex.split(words))
    assert (error.code, "--set" in error.err) == (2, meant is not None), error.err
    assert (meant or "--help") in error.err


def test_files_of_a_shell_pattern_get_a_pattern_of_the_same(orchestrator: Command, tmp_path: Path) -> None:
    folder = tmp_path / "runs[1]"
    folder.mkdir()
    paths = [folder / f"{number}.txt" for number in range(3000)]
    for path in paths:
        path.touch()
    _, fix = orchestrator("plan", "pretrain", "--data", *map(str, paths)).err.split("fix  ")
    assert shlex.split(fix) == ["--data", str(tmp_path / "runs[[]1]/*.txt")]
    assert {str(path) for path in tmp_path.glob("runs[[]1]/*.txt")} == set(map(str, paths))
    some = orchestrator("plan", "pretrain", "--data", *map(str, paths[:8])).err
    assert "*" not in some, "a pattern would read more files than were given"
    assert some.rstrip().endswith("4.txt' ...")


def test_flag_is_not_proposed_to_a_verb_without_it(orchestrator: Command) -> None:
    refused = orchestrator("status", "--steps", "3")
    assert (refused.code, "--set" in refused.err) == (2, False)
    assert "fix  orchestrator status --help" in refused.err


def test_hints_name_verbs_and_flags_that_exist() -> None:
    parser = build_parser()
    verbs = next(action for action in parser._actions if action.dest == "verb").choices or {}
    assert all(ours.split()[0] in verbs for ours in VERBS.values())
    assert not VERBS.keys() & set(verbs)
    submit = dict(verbs)["submit"]._option_string_actions
    assert all(ours.split()[0] in submit for ours in FLAGS.values())
    assert not FLAGS.keys() & set(submit)


def test_plain_name_is_a_run_and_does_not_leave_the_machine(
    orchestrator: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "runs" / "notes-0966ffa5").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    (home / "runs" / "notes-0966ffa5" / "request.json").write_text("{}")
    asked: list[object] = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *words, **_: asked.append(words))
    Path("train.csv").write_text(TRAIN)
    error = orchestrator("plan", "finetune", "--model", "nots", "--data", "train.csv", *shlex.split(COLUMNS))
    assert error.code == 5
    assert "unknown run 'nots' (did you mean \"notes-0966ffa5\"?)" in error.err
    assert not asked


def test_failing_hub_is_asked_once(home: Path, tmp_path: Path) -> None:
    """In a process of its own: the Hub's client reads its settings on import."""
    Path("train.csv").write_text(TRAIN)
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as client:
                        asked.append(client.recv(65536))
                        client.sendall(b"HTTP/1.1 500 Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        threading.Thread(target=refuse, daemon=True).start()
        hub = {"HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}", "HF_HUB_CACHE": str(tmp_path / "hub")}
        words = ["plan", "finetune", "--model", "someone/bert", "--data", "train.csv", *shlex.split(COLUMNS)]
        command = [sys.executable, "-m", "orchestrator.cli.main", *words]
        environ = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"} | hub
        error = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert error.returncode != 0
    assert "cannot download the model someone/bert" in error.stderr
    assert "Retrying" not in error.stderr
    assert sum(b"someone/bert" in request for request in asked) == 1, asked


def test_model_in_a_file_names_the_start(orchestrator: Command) -> None:
    write_bert(Path("bert"))
    Path("train.csv").write_text(TRAIN)
    Path("job.yaml").write_text("model: bert\ndata: {train: train.csv, text: note, label: ward, max_length: 32}\n")
    plan = orchestrator("plan", "finetune", "-f", "job.yaml", "-o", "json").json["plan"]
    flag = orchestrator(*shlex.split(f"{FINETUNE} --data train.csv {COLUMNS}"), "-o", "json").json["plan"]
    assert plan["job"]["init_from"] == flag["job"]["init_from"]
    assert plan["run_hash"] == flag["run_hash"]
