"""Secrets of a run: references, where they are looked up, and their removal from texts and streams."""

from __future__ import annotations

import base64
import html
import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from orchestrator.runs.tracked_run import TrackingRequest, sync
from orchestrator.support.errors import ServiceError, UsageError
from orchestrator.support.redact import is_distinctive, looks_secret
from orchestrator.support.secret_sources import SecretReference, look_up, read_env_file
from orchestrator.testing import AzureDouble
from tests.conftest import Console, last_step, processes_of, wait_for, write_corpus, write_endless_spec
from train_jobs.artifacts.redaction import REDACTED, StreamRedactor, redact

VALUE = "p/+ &=q7Wz!kL0%?"


@pytest.mark.parametrize(
    "text",
    [
        "AZURE_CLIENT_SECRET=" + "abc~123456",
        "AZURE_CLIENT_SECRET: '" + "abc~123456'",
        "https://a.blob.core.windows.net/c?sv=1%26sig%3D" + "abc~123456",
        "https%3A%2F%2Fa%2Fc%3Fsig%3D" + "abc~123456",
        "api_key = '" + "abc~123456'",
        '{"apiKey": "' + 'abc~123456"}',
        "mysql://me:" + "abc~123456@host/db",
        "DB_PASSWORD=" + "abc~123456",
        "Authorization: Basic " + "abc~123456",
    ],
)
def test_redact_hides_named_secrets(text: str) -> None:
    assert "abc~123456" not in redact(f"first line\n{text}\n")


@pytest.mark.parametrize("prefix", ["hf_", "ghp_", "ghs_", "glpat-", "sk-proj-", "npm_", "hvs."])
def test_redact_hides_tokens_by_prefix(prefix: str) -> None:
    assert redact(f"got {prefix}{'aB3' * 8}.") == f"got {REDACTED}."


@pytest.mark.parametrize(
    "text",
    [
        "tokens_per_second=1234567 max_tokens: 16384000 pad_token: [PAD_TOKEN]",
        "sort_key=loss_value monkey: bananas, secretary: unknown",
        "Basic usage: https://host:8080/path@2, user@host.example",
        "TOKENIZERS_PARALLELISM=true OMP_NUM_THREADS=1 KEYBOARD=qwertyuiop",
    ],
)
def test_redact_keeps_settings(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_stream_redactor_hides_value_across_pieces(size: int) -> None:
    encoded = [base64.b64encode(b"x" * before + VALUE.encode()).decode() for before in range(3)]
    text = f"a {VALUE} b {quote(VALUE)} c {quote(VALUE, safe='')} {' '.join(encoded)} end p/\n".encode()
    written: list[bytes] = []
    stream = StreamRedactor([VALUE, "true"], written.append)
    for start in range(0, len(text), size):
        stream.feed(text[start : start + size])
    stream.close()
    found = b"".join(written)
    assert VALUE.encode() not in found
    assert quote(VALUE).encode() not in found
    assert all(one[4:-4].encode() not in found for one in encoded)
    assert found.startswith(b"a REDACTED b REDACTED c REDACTED ")
    assert found.endswith(b" end p/\n")


@pytest.mark.parametrize(
    "value", ["Geheim-Straße-42", "with\ttab", 'it\'s "<&>" \\ it', "line\nbreak", "half-\udcff-byte"]
)
def test_stream_redactor_hides_value_in_quotes(value: str) -> None:
    raw = value.encode(errors="surrogateescape")
    texts = [json.dumps({"dsn": value}), json.dumps([value], ensure_ascii=False), ascii(value), repr(value), repr(raw)]
    written: list[bytes] = []
    stream = StreamRedactor([value], written.append)
    for text in (*texts, html.escape(value), html.escape(value, quote=False), value):
        stream.feed(text.encode(errors="surrogateescape") + b"\n")
    stream.close()
    assert b"".join(written).decode() == (
        f'{{"dsn": "{REDACTED}"}}\n["{REDACTED}"]\n'
        + "".join(f"{text[0]}{REDACTED}{text[-1]}\n" for text in texts[2:4])
        + f"b{texts[4][1]}{REDACTED}{texts[4][-1]}\n{REDACTED}\n{REDACTED}\n{REDACTED}\n"
    )


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "abcdefgh", True),
        ("DB_PASSWORD", "hunter2", True),
        ("NOTE", "ghp_" + "aB3" * 12, True),
        ("URL", "http://me:abc~123456@host", True),
        ("PASSWORD", "value", True),
        ("DB_PASSWORD", "12345678", True),
        ("DB_PASSWORD_2", "12345678", True),
        ("PGPASSWORD", "hunter2", True),
        ("KEY_PASSPHRASE", "abc", True),
        ("API_KEY", "42424242", True),
        ("APIKEY", "42424242", True),
        ("MYSQL_PWD", "1234", True),
        ("CLIENT_SECRET", "abc", True),
        ("DB_CREDENTIALS", "me:you", True),
        ("CONNECTION_STRING", "Server=x", True),
        ("AZURE_STORAGE_CONNECTION_STRING", "abc", True),
        ("AUTHTOKEN", "abcdefgh", True),
        ("REDISCLI_AUTH", "abcdefgh", True),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key.json", False),
        ("DB_PASSWORD", "/run/secrets/db", False),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/key.json", False),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/mnt/my dir/k@1/key.json", False),
        ("DB_PASS", "Tr0ub4dor", True),
        ("NUM_PASS", "10", False),
        ("FORWARD_PASS", "fused", False),
        ("USE_SECRET", "true", False),
        ("PWD", "/home/me", False),
        ("PASSWORD_FILE", "secrets.txt", False),
        ("TOKENIZERS_PARALLELISM", "enabled-always", False),
        ("MAX_TOKEN", "1000000", False),
        ("HF_TOKEN_PATH", "/run/secrets/hf", False),
        ("SSH_KEY", "/home/me/key", False),
        ("NCCL_DEBUG", "INFO", False),
    ],
)
def test_variable_that_looks_secret(name: str, value: str, secret: bool) -> None:
    assert looks_secret(name, value) is secret


def test_declared_value_in_the_spec_is_refused(console: Console) -> None:
    """The shell expanded the variable: the value is neither stored nor shown."""
    value = "Zq4 wkL0%w?"
    words = ("--tag", f"note={value}", "--env", f"DSN=x,{quote(value)}", "--set", f"tracking.experiment={value}")
    command = ("command", "--env", "DB_PASSWORD", *words, "--", "true", "--password", value)
    for verb in ("plan", "submit"):
        done = console(verb, *command, DB_PASSWORD=value)
        assert done.code == 2
        for key in ("tags.note", "environment.variables.DSN", "tracking.experiment", "command"):
            assert f" {key}: contains the value of the declared secret DB_PASSWORD" in done.err
        assert "--env DSN without a value" in done.err
        assert "4 problems" in done.err
        assert value not in done.err + done.out
    assert not any(value.encode() in path.read_bytes() for path in console.home.rglob("*") if path.is_file())


@pytest.mark.parametrize("value", ["ab3", "postgres", "/home/alice", "true"])
def test_ordinary_declared_value_refuses_nothing(console: Console, value: str) -> None:
    (console.cwd / "t.py").write_text(f"print('{value}')\n")
    words = ("--env", "DB_PASSWORD", "--tag", f"note={value}/data", "--", "true", value)
    assert console("plan", "command", *words, DB_PASSWORD=value).code == 0


@pytest.mark.parametrize(
    ("name", "value", "distinctive"),
    [
        ("DB_PASSWORD", "hunter2", True),
        ("DB_PASSWORD", "12345678", True),
        ("DB_PASSWORD", "correcthorsebattery", True),
        ("DB_USER", "alice1", True),
        ("DB_PASSWORD", "password", False),
        ("CUDA_VISIBLE_DEVICES", "0,1,2,3", False),
        ("HOME", "/home/alice", False),
        ("WANDB_MODE", "offline", False),
    ],
)
def test_value_that_a_text_contains_by_chance(name: str, value: str, distinctive: bool) -> None:
    assert is_distinctive(name, value) is distinctive


def test_declared_value_in_the_code_is_refused(console: Console) -> None:
    """Also in a file that an earlier plan accepted, and with a key of several lines."""
    value, key = "Zq4wkL0%w?", "x" * 3 + "A1b2" * 12
    code = console.cwd / "code"
    code.mkdir()
    (code / "t.py").write_text("print(1)\n")
    (code / "cfg.txt").write_text(f"# hosts\nserver {value}\n")
    (code / "key.txt").write_text(f"'{key}'\n")
    plan = ("command", "--code", "code", "--", "python", "t.py")
    assert console("plan", *plan).code == 0
    lines = f"-----BEGIN\n{key}\n-----END"
    submit = ("submit", "command", "--env", "DB_PASSWORD", "--env", "SIGNING_KEY", *plan[1:])
    done = console(*submit, DB_PASSWORD=value, SIGNING_KEY=lines)
    assert done.code == 2
    assert "cfg.txt:2: holds the value of the declared secret DB_PASSWORD" in done.err
    assert "key.txt:1: holds the value of the declared secret SIGNING_KEY" in done.err
    assert value not in done.err + done.out
    assert not (console.home / "runs").exists()


def test_declared_value_in_a_sweep_is_refused(console: Console) -> None:
    value = "Zq4wkL0%w?"
    write_corpus(console.cwd / "corpus.txt")
    trial: dict[str, Any] = {"kind": "pretrain", "recipe": "tiny", "data": {"text": [str(console.cwd / "corpus.txt")]}}
    trial["environment"] = {"secrets": {"DB_PASSWORD": "env:DB_PASSWORD"}}
    space = {"tags.note": {"choices": [value, "other"]}}
    sweep = {"trial": trial, "space": space, "objective": {"metric": "validation_mlm_loss"}}
    (console.cwd / "sweep.yaml").write_text(json.dumps(sweep))
    done = console("submit", "sweep", "-f", "sweep.yaml", "--dry-run", DB_PASSWORD=value)
    assert done.code == 2
    assert "contains the value of the declared secret DB_PASSWORD" in done.err
    assert value not in done.err + done.out


def test_secret_value_on_the_command_line_is_refused(console: Console) -> None:
    """The message names what to type instead, and shows no value."""
    done = console("plan", "command", "--env", "PASSWORD=geheim", "--tag", "API_KEY=offen12", "--", "true")
    assert done.code == 2
    assert "environment.variables.PASSWORD: looks like a secret" in done.err
    assert "--env PASSWORD without a value takes it from your environment" in done.err
    assert "tags.API_KEY: looks like a secret" in done.err
    assert "geheim" not in done.err + done.out
    assert "offen12" not in done.err + done.out
    (console.cwd / "job.py").touch()
    given = console("plan", "command", "--env", "PASSWORD", "--", "true", PASSWORD="geheim")
    assert given.code == 0, given.err
    assert "geheim" not in given.err + given.out


@pytest.mark.parametrize("text", ["hf_value", "env:A B", "file:relative", "keyring:service", "keyvault:v", "x:y"])
def test_invalid_reference_is_refused_without_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="must name the place of the secret") as failure:
        SecretReference.parse(text)
    assert text not in str(failure.value)


def test_secret_in_place_of_its_reference_is_not_shown(console: Console) -> None:
    done = console("plan", "pretrain", "--set", f"environment.secrets.DB_PASS='{VALUE}'")
    assert done.code == 2
    assert "environment.secrets.DB_PASS: must name the place of the secret" in done.err
    assert VALUE not in done.err


def write_env_file(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A=1\nB=a\0b\n", "invalid line 2 of .*: a NUL character"),
        ("A=" + "x" * (1 << 20), "more than 1,048,576 characters"),
    ],
)
def test_env_file_that_no_process_can_have_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read_env_file(write_env_file(tmp_path / "s.env", text))


def test_env_file_has_lines_of_line_feeds_only(tmp_path: Path) -> None:
    path = write_env_file(tmp_path / "s.env", "\ufeffA=x\u2028y\x0bz\r\nB=2\r")
    assert read_env_file(path) == {"A": "x\u2028y\x0bz", "B": "2"}


def test_env_file_is_read_anew(tmp_path: Path) -> None:
    path = write_env_file(tmp_path / "s.env", "# mine\n\nexport A='x=y'\nB = 2\n")
    assert read_env_file(path) == {"A": "x=y", "B": "2"}
    path.write_text("A=rotated")
    assert look_up({"A": f"file:{path}"}, {}) == {"A": "rotated"}


@pytest.mark.parametrize(("text", "mode"), [("A=1", 0o644), ("A=1", 0o640), ("just " + VALUE, 0o600)])
def test_unusable_env_file_is_refused_without_content(tmp_path: Path, text: str, mode: int) -> None:
    with pytest.raises(UsageError) as failure:
        read_env_file(write_env_file(tmp_path / "s.env", text, mode))
    assert VALUE not in str(failure.value)


def test_missing_secrets_are_named_together(tmp_path: Path) -> None:
    path = write_env_file(tmp_path / "s.env", "OTHER=1")
    with pytest.raises(UsageError, match="needs A, B") as failure:
        look_up({"A": "env:A", "B": f"file:{path}", "C": "env:C"}, {"C": "here"})
    assert failure.value.fix == "export A=..., then the same command again"


def test_keyring_is_asked_at_each_start(monkeypatch: pytest.MonkeyPatch) -> None:
    import keyring
    from keyring.backend import KeyringBackend

    class Memory(KeyringBackend):
        priority = 1  # type: ignore[assignment]

        def get_password(self, service: str, username: str) -> str | None:
            return {"hub/me": VALUE}.get(f"{service}/{username}")

        set_password = delete_password = None  # type: ignore[assignment]

    monkeypatch.setattr(keyring.core, "_keyring_backend", Memory())
    assert look_up({"A": "keyring:hub/me"}, {}) == {"A": VALUE}
    with pytest.raises(UsageError, match="needs A"):
        look_up({"A": "keyring:hub/you"}, {})


def test_resume_looks_secrets_up_again(console: Console, untracked: None) -> None:
    """A run that started with a secret needs it again; without it nothing starts, and the run stays resumable."""
    write_endless_spec(console.cwd / "job.yaml", write_corpus(console.cwd / "corpus.txt"))
    started = console("submit", "pretrain", "-f", "job.yaml", "--env", "MY_TOKEN", "-d", "-o", "json", MY_TOKEN=VALUE)
    assert started.code == 0, started.err
    name = started.json["name"]
    wait_for(lambda: processes_of(console.folder(name)), what="the ranks")
    assert console("cancel", name).code == 0
    wait_for(lambda: not processes_of(console.folder(name)), what="the end")
    refused = console("resume", name, "-d")
    assert refused.code == 2
    assert "needs MY_TOKEN" in refused.err
    assert "export MY_TOKEN=..." in refused.err
    assert console("resume", name, "-d", MY_TOKEN="rotated!").code == 0
    assert console("cancel", name).code == 0


@pytest.mark.long
def test_restart_stops_when_the_secret_has_gone(console: Console, untracked: None) -> None:
    """The supervisor reads a file before each attempt; the plan states it, and the run names what it lacks."""
    secret = write_env_file(console.cwd / "s.env", f"MY_TOKEN={VALUE}")
    text = write_corpus(console.cwd / "corpus.txt")
    spec = str(write_endless_spec(console.cwd / "job.yaml", text))
    flags = ("-f", spec, "--env-file", str(secret), "--set", "max_preemptions=3")
    planned = "".join(console("plan", "pretrain", *flags).out.split())  # a long path is broken
    assert "".join(f"MY_TOKEN from {secret}, read at each start".split()) in planned
    started = console("submit", "pretrain", *flags, "-d", "-o", "json")
    assert started.code == 0, started.err
    name = started.json["name"]
    wait_for(lambda: last_step(console.folder(name)), what="a step")
    secret.unlink()
    assert console("preempt", name).code == 0
    status = wait_for(lambda: ended(console, name), what="the end of the run")
    assert (status["state"], status["attempt"]) == ("failed", 2)
    assert "needs MY_TOKEN" in status["reason"]
    assert VALUE not in str(status)


def ended(console: Console, name: str) -> dict[str, Any] | None:
    """Return the status of a finished run without processes."""
    status: dict[str, Any] = console("status", name, "-o", "json").json
    over = status["state"] in {"failed", "completed", "cancelled", "preempted"}
    return status if over and not processes_of(console.folder(name)) else None


class TrackingServer(BaseHTTPRequestHandler):
    """An MLflow server that refuses every request and records its credentials."""

    seen: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.seen.append(self.headers["Authorization"])
        self.send_error(403)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_sync_signs_in_with_a_referenced_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy to a server looks up MLflow's own credentials wherever they are kept, and no other secret."""
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN", raising=False)
    path = write_env_file(tmp_path / "s.env", "MLFLOW_TRACKING_TOKEN=token-of-mine")
    secrets = {"MLFLOW_TRACKING_TOKEN": f"file:{path}", "OTHER": "env:NOT_SET"}
    with HTTPServer(("127.0.0.1", 0), TrackingServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        request = TrackingRequest(
            uri=f"http://127.0.0.1:{server.server_port}",
            experiment="x",
            run_name="run",
            identity={},
            params={},
            tags={},
            folder=str(tmp_path),
            metrics=str(tmp_path / "metrics.jsonl"),
            status="FINISHED",
            started=1.0,
            secrets=secrets,
        )
        with pytest.raises(ServiceError, match="cannot copy run to MLflow"):
            sync(request)
        assert set(TrackingServer.seen) == {"Bearer token-of-mine"}
        assert "MLFLOW_TRACKING_TOKEN" not in os.environ
        path.unlink()
        with pytest.raises(ServiceError) as failure:
            sync(request)
        server.shutdown()
    assert failure.value.facts["reason"] == "needs MLFLOW_TRACKING_TOKEN"
    assert "needs MLFLOW_TRACKING_TOKEN" in (tmp_path / "mlflow-behind.txt").read_text()


def test_key_vault_is_read_here_and_by_the_job(tmp_path: Path) -> None:
    with suppress(OSError):
        urlopen("http://127.0.0.1:9")  # urllib keeps the proxies of its first call, here none
    with AzureDouble(tmp_path / "azure", run_jobs=False) as double:
        double.vaults.values["my-vault/db"] = VALUE
        assert look_up({"A": "keyvault:my-vault/db"}, os.environ) == {"A": VALUE}
        with pytest.raises(UsageError, match="needs B"):
            look_up({"B": "keyvault:my-vault/other"}, os.environ)
        words = [sys.executable, "-m", "train_jobs.tools.with_secrets", "A=my-vault/db", "--"]
        shown = [*words, sys.executable, "-c", "import os; print(os.environ['A'])"]
        of_job = {**os.environ, **double._identity_variables()}
        done = subprocess.run(shown, capture_output=True, text=True, env=of_job, check=True)
        assert done.stdout.strip() == VALUE
        without = {key: value for key, value in of_job.items() if key != "MSI_ENDPOINT"}
        failed = subprocess.run(shown, capture_output=True, text=True, env=without, check=False)
        assert (failed.returncode, failed.stdout) == (1, "")
        assert "needs A: the job has no managed identity" in failed.stderr
