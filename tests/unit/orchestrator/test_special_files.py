"""FIFOs, sockets and devices in place of files: refused with their name. Opening a FIFO would wait for a writer."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import Console
from train_jobs.artifacts.files import file_sha256, read_object
from train_jobs.artifacts.layers import read_file
from train_jobs.artifacts.lineage import read_lineage
from train_jobs.artifacts.regular_files import read_bytes
from train_jobs.artifacts.start_model import read_initial_model
from train_jobs.artifacts.store_manifest import require_manifest
from train_jobs.artifacts.vocabulary_file import pieces_of
from train_jobs.config.errors import UserError
from train_jobs.corpus.sources.streams import Piece, ignore, open_piece
from train_jobs.readers.row_readers import open_table
from train_jobs.readers.squad_data import read_squad
from train_jobs.tasks.entities.conll import read_conll
from train_jobs.tools.serve import main as serve

WHY = "it is a FIFO, not a regular file"
COMMANDS = {
    "text": "plan pretrain --data text/pipe.txt",
    "glob": "plan pretrain --data text/*.txt",
    "folder": "plan pretrain --data text",
    "spec": "plan pretrain -f pipe",
    "env file": "plan pretrain --data text/a.txt --env-file pipe",
    "words": "plan pretrain --data text/a.txt --set data.add_tokens=pipe",
    "input": "plan predict --model text --input text/pipe.csv",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_refuses_fifo(console: Console, name: str) -> None:
    (console.cwd / "text").mkdir()
    (console.cwd / "text/a.txt").write_text("One text.\n\nAnother text.\n")
    for path in ("pipe", "text/pipe.txt", "text/pipe.csv"):
        os.mkfifo(console.cwd / path)
    found = console(*shlex.split(COMMANDS[name]), timeout=60)
    assert found.code == 2
    assert WHY in found.err
    assert "Traceback" not in found.err


READERS: dict[str, Callable[[Path], object]] = {
    "squad": read_squad,
    "conll": read_conll,
    "table": lambda path: open_table(path, ["text"], format="csv"),
    "spec": read_file,
    "text": lambda path: open_piece(Piece(str(path)), ignore),
    "vocabulary": pieces_of,
    "lineage": read_lineage,
}


@pytest.mark.parametrize("name", READERS)
def test_reader_refuses_fifo(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="a FIFO, not a regular file"):
        READERS[name](tmp_path / "pipe")


@pytest.mark.parametrize("name", ["config.json", "vocab.txt", "tokenizer_config.json", "tokenizer.json"])
def test_model_folder_with_fifo_is_refused(tmp_path: Path, name: str) -> None:
    for other in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        (tmp_path / other).write_text('{"hidden_size": 768}')
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError):
        read_initial_model(tmp_path)


def test_token_store_with_fifo_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        require_manifest(tmp_path)


def test_socket_and_device_are_refused(tmp_path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="it is a socket"):
            file_sha256(tmp_path / "socket")
    with pytest.raises(OSError, match="it is a device"):
        read_bytes(Path("/dev/zero"))
    assert read_object(Path("/dev/zero")) is None
    (tmp_path / "link").symlink_to("/dev/zero")
    with pytest.raises(UserError, match="it is a device"):
        read_file(tmp_path / "link")


def test_file_above_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    assert read_bytes(path, most=1 << 20) == bytes(1 << 20)
    path.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(OSError, match="more than 1 MiB"):
        read_bytes(path, most=1 << 20)


def test_token_file_that_is_fifo_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "token", 0o600)
    monkeypatch.setenv("ORCHESTRATOR_SERVE_TOKEN_FILE", str(tmp_path / "token"))
    assert serve(["--model", str(tmp_path)]) == 2
    assert WHY in capsys.readouterr().err


def test_spec_from_pipe_of_shell_is_read(console: Console) -> None:
    command = f"{shlex.quote(sys.executable)} -m orchestrator.cli.main validate pretrain -f <(echo 'trian: 1') -o json"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=console.environ(), cwd=console.cwd, check=False
    )
    assert 'did you mean "train"' in done.stdout + done.stderr
