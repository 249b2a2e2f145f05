"""Removal of secrets from logs: by value, also one line at a time, and by format. Samples are assembled here."""

from __future__ import annotations

import base64
import random

import pytest

from orchestrator.cli.main import main
from orchestrator.support.errors import SpecError
from tests.conftest import Console
from tests.unit.orchestrator.test_snapshot_secrets import LETTERS, PEM, SAMPLES
from train_jobs.artifacts import redaction
from train_jobs.artifacts.redaction import REDACTED, StreamRedactor, redact

BODY = [base64.b64encode(random.Random(line).randbytes(48)).decode() for line in range(25)]
START, END = PEM.format("RSA ", ""), PEM.format("RSA ", "").replace("BEGIN", "END")
KEY = "\n".join([START, *BODY, "AbC3x9+=", END]) + "\n"
TOKEN = "gh" + "p_" + LETTERS[:36]
PASSWORD = "Sup3r" + "S3cr3t"


def streamed(text: str, *, size: int = 1 << 20, values: list[str] | None = None) -> str:
    """Return a text that passed a stream's redaction in pieces."""
    written: list[bytes] = []
    stream = StreamRedactor(values or [], written.append)
    data = text.encode()
    for start in range(0, len(data), size):
        stream.feed(data[start : start + size])
    stream.close()
    return b"".join(written).decode()


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_each_line_of_a_long_secret_is_hidden(size: int) -> None:
    lines = "".join(f"line {line!r} and\n" for line in KEY.splitlines())
    found = streamed(lines + "an ordinary line\n", size=size, values=[KEY])
    assert not [line for line in (*BODY, "AbC3x9+=") if line in found]
    assert found.count(REDACTED) == len(BODY) + 1
    assert found.endswith("an ordinary line\n")


def test_redact_hides_lines_of_a_protected_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_protected", {KEY})
    assert [redact(f"<{line}>") for line in BODY] == [f"<{REDACTED}>"] * len(BODY)


@pytest.mark.parametrize("style", ["text", "json"])
def test_error_of_a_command_is_redacted(
    style: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise SpecError(PASSWORD, facts={"have": PASSWORD}, fix=PASSWORD, problems=[f"a.yaml: {PASSWORD}"])

    monkeypatch.setattr(redaction, "_protected", {PASSWORD})
    monkeypatch.setattr("orchestrator.cli.verbs.models.verify", fail)
    assert main(["model", "verify", "bert", "--key", "signing.pub", "-o", style]) == 2
    printed = "".join(capsys.readouterr())
    assert printed.count(REDACTED) >= 4
    assert PASSWORD not in printed


def test_ordinary_lines_of_a_long_secret_stay() -> None:
    value = f"password\nUSERNAME\nshort\n{START}\n{BODY[0]}\n{END}\n"
    text = f"password USERNAME short\n{START}\nthe username is Password\n"
    assert streamed(text, values=[value]) == text


UNDECLARED = {
    **{f"{what} {number}": text for what, texts in SAMPLES.items() for number, text in enumerate(texts)},
    "short token": "hf" + "_" + LETTERS[:18],
    "password of a URL": f"https://bob:{PASSWORD}@host/x",
    "password by its name": f"db_password: {PASSWORD}",
    "signature": "https://a.blob.core.windows.net/c?sv=1&s" + f"ig={PASSWORD}%3D&se=2",
    "AWS secret key": f"aws_secret_access_key = {LETTERS[:40]}",
}


def secret_part(text: str) -> str:
    """Return a part of a sample that no output may contain."""
    return PASSWORD if PASSWORD in text else max(text.replace("\\n", " ").split(), key=len)[-16:]


@pytest.mark.parametrize("size", [1, 11, 1 << 20])
@pytest.mark.parametrize("kind", UNDECLARED)
def test_undeclared_secret_in_a_stream_is_hidden(kind: str, size: int) -> None:
    text = UNDECLARED[kind]
    found = streamed(f"before\nstep 1 tokens 12 {text} behind\nlast {text}\nend", size=size)
    assert secret_part(text) not in found
    assert found.count(REDACTED) >= 2
    assert found.startswith("before\nstep 1 tokens 12 ")
    assert found.endswith("\nend")


@pytest.mark.parametrize("prefix", ["", "INFO:my.log:", "    "])
@pytest.mark.parametrize("size", [1, 64, 1 << 20])
def test_undeclared_key_block_in_a_stream_is_hidden(prefix: str, size: int) -> None:
    lines = "".join(f"{prefix}{line}\n" for line in KEY.splitlines())
    assert streamed(f"before\n{lines}behind\n", size=size) == f"before\n{prefix}{REDACTED}\nbehind\n"


@pytest.mark.parametrize("size", [1, 64, 1 << 20])
def test_key_block_without_its_end_is_hidden(size: int) -> None:
    found = streamed(f"before\n{START}\n" + "\n".join(BODY) + "\nhere it stopped: after a line\n" * 900, size=size)
    assert not [line for line in BODY if line in found]
    assert found.endswith("\nhere it stopped: after a line\n")


def test_ordinary_log_passes_a_stream_unchanged() -> None:
    lines = [
        "step 12/99  loss 7.0123  lr 1.00e-04  300.5 sequences/s  8192 tokens/s  eta 1:02:03",
        "GET https://host:8080/a_b?config=1 weights key: 12 high task-list disk-size",
        "pad_token: [PAD_TOKEN] sort_key=loss_value vocabulary of 30,522 tokens: ok",
        "\r 50%|█████     | 5/10 [00:01<00:01,  5.00it/s]\r100%|██████████| 10/10",
        f"if text.startswith({START!r}):",
        "Größe: 12 İ é \u2028 ok",
    ]
    text = "\n".join(lines * 20) + "\nno end of line"
    for size in (1, 13, 1 << 20):
        assert streamed(text, size=size) == text


def test_first_line_of_a_key_without_key_does_not_hold_the_log() -> None:
    written: list[bytes] = []
    stream = StreamRedactor([], written.append)
    text = f"reading {START} from /{'a' * 45}\n"
    for number in range(5):
        stream.feed(text.encode())
        text = f"step {number} loss 7.0\n"
    assert b"step 2 loss" in b"".join(written)


@pytest.mark.parametrize("size", [1, 13, 1 << 20])
def test_undeclared_encrypted_key_is_hidden(size: int) -> None:
    head = f"{START}\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,{'0A' * 16}\n\n"
    found = streamed(f"{head}" + "\n".join(BODY) + f"\n{END}\nbehind\n", size=size)
    assert not [line for line in BODY if line in found]
    assert found.endswith("behind\n")


@pytest.mark.parametrize("size", [61, 4096, 1 << 16])
def test_token_at_any_place_of_a_long_line_is_hidden(size: int) -> None:
    found = streamed("x" * 70_000 + f'{{"token": "{TOKEN}"}}, ' * 3000, size=size)
    assert TOKEN[8:] not in found
    assert found.count(REDACTED) == 3000


def test_any_bytes_pass_a_stream_unchanged() -> None:
    written: list[bytes] = []
    stream = StreamRedactor([], written.append)
    data = random.Random(1).randbytes(5000)
    for start in range(0, len(data), 17):
        stream.feed(data[start : start + 17])
    stream.close()
    assert b"".join(written) == data


def test_unfinished_line_without_secret_is_passed_on_at_once() -> None:
    for text in ("> ", "(Pdb) ", "Name: ", "50% done, [y/n]", "\r 50%|###   | 5/10 [00:01<00:01,  5.00it/s]"):
        written: list[bytes] = []
        StreamRedactor([], written.append).feed(text.encode())
        assert b"".join(written).decode() == text


def test_prompt_for_a_secret_is_shown_when_flushed() -> None:
    written: list[bytes] = []
    stream = StreamRedactor([], written.append)
    stream.feed(b"Password: ")
    stream.release_prompt()
    assert written == [b"Password: "]
    stream.feed(b"token gh" + b"p_abcdef")
    stream.release_prompt()
    assert written == [b"Password: "], "half a token waits for the other half"


PRINTS = """
import sys
text = {text!r}
print("undeclared", "".join(reversed(text)), file=sys.stderr, flush=True)
"""


@pytest.mark.long
def test_logs_of_ranks_and_launcher_are_redacted(console: Console, untracked: None) -> None:
    """The code prints a token in each of its interpreters, before it runs: in torchrun's agent too."""
    (code := console.cwd / "code").mkdir()
    source = PRINTS.format(text="".join(reversed(TOKEN)))
    (code / "usercustomize.py").write_text(source)
    (code / "sitecustomize.py").write_text(source)
    (code / "job.py").write_text(source)
    done = console("submit", "command", "--code", str(code), "-o", "json", "--", "python", "job.py")
    assert done.code == 0, done.err
    logs = console.folder(done.json["name"]) / "logs"
    for name in ("agent-0.log", "rank-0.log"):
        assert f"undeclared {REDACTED}" in (logs / name).read_text(), name
    assert TOKEN not in "".join(path.read_text() for path in logs.glob("*.log"))
    assert TOKEN not in done.out + done.err
