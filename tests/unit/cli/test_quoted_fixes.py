"""Fixes that repeat what the user gave: as one word of the shell, whatever it contains."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from tests.run_folders import make_run


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("predict|--model|no model|--input|a.csv|--output|b.csv", "a model on the Hub: --model 'hub:no model'"),
        ("finetune|--data|a $b.csv|--data|c.csv", "--data 'a $b.csv'"),
        ("finetune|--data|a b.csv|c d.csv", "--data 'a b.csv' --data 'c d.csv'"),
        ("pretrain|--set|a b|c d", "--set 'a b=c d'"),
        ("pretrain|--column|a b", "--data FILE --column 'a b'"),
        ("finetune|--column|a b", "--column text='a b'"),
    ],
)
def test_given_word_is_quoted_in_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, fix: str
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "home", "bert")
    assert main(["plan", *words.split("|")]) != 0
    assert fix in capsys.readouterr().err


@pytest.mark.parametrize("words", ["download|a b|model|--all", "sweep|extend|a b"])
def test_given_name_is_quoted_in_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    assert main(words.split("|")) == 2
    assert " 'a b' --" in capsys.readouterr().err


class RedirectingServer(BaseHTTPRequestHandler):
    """Redirects to an address with a command of the shell."""

    def do_POST(self) -> None:
        self.send_response(301)
        self.send_header("Location", f"http://{self.headers['Host']}/$(id){self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"error_code": "ENDPOINT_NOT_FOUND", "message": "no"}')

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_address_of_a_redirect_is_quoted_in_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    with HTTPServer(("127.0.0.1", 0), RedirectingServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_address[1]}"
        assert main(["mlflow", "sync", "--all", "--to", uri]) == 2
        server.shutdown()
    assert f"--to '{uri}/$(id)'" in capsys.readouterr().err
