"""Detection of secrets. The samples are assembled here, so that no scanner reports this file."""

from __future__ import annotations

import base64
import bz2
import codecs
import gzip
import json
import lzma
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from orchestrator.snapshot.user import secret_name, secrets_in
from train_jobs.artifacts.redaction import redact

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789" * 2
UPPER = "QWERTYUIOPASDFGHJKLZ"
PEM = "-----BEGIN {}PRIVATE" + " KEY{}-----"
SAMPLES = {
    "an AWS access key": ["AKIA" + UPPER[:16], "ASIA" + "0123456789ABCDEF"],
    "an Azure account key": ["AccountKey=" + LETTERS[:86] + "=="],
    "an Azure access key": ["Endpoint=sb://x/;SharedAccessKey=" + LETTERS[:43] + "="],
    "an Azure SAS signature": ["https://x/y?sv=1&sig=" + LETTERS[:42] + "%2F" + "%3D", "?sig=" + LETTERS[:43] + "="],
    "an Azure client secret": ["abc8Q~" + LETTERS[:34]],
    "a Databricks token": ["dapi" + "0123456789abcdef" * 2],
    "a GitHub token": [f"gh{kind}_" + LETTERS[:36] for kind in "oprsu"]
    + ["github_pat_" + LETTERS[:22] + "_" + LETTERS[:59]],
    "a GitLab token": ["glpat-" + LETTERS[:20]],
    "a Google API key": ["AIza" + LETTERS[:35]],
    "a Hugging Face token": ["hf_" + LETTERS[:34]],
    "an OpenAI key": ["sk-" + LETTERS[:48]],
    "an API key": [f"sk-{kind}-" + LETTERS[:50] for kind in ("admin", "ant", "proj", "svcacct")],
    "a PyPI token": ["pypi-AgEIcHlwaS5vcmc" + LETTERS[:50]],
    "a Slack token": [f"xox{kind}-1234567890-" + LETTERS[:24] for kind in "abeoprs"],
    "a Slack webhook": ["https://hooks.slack.com/services/T0123456/B0123456/" + LETTERS[:24]],
    "a bearer token": ["Bearer eyJ" + LETTERS[:20] + ".eyJ" + LETTERS[:20] + "." + LETTERS[:43]],
    "a private key": [
        PEM.format(kind, end) + break_ + LETTERS[:64]
        for kind, end in (("", ""), ("RSA ", ""), ("OPENSSH ", ""), ("ENCRYPTED ", ""), ("PGP ", " BLOCK"))
        for break_ in ("\n", "\r\n", "\\n", '\\n"\n    "', "\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n")
    ],
}


@pytest.mark.parametrize(("what", "text"), [(what, text) for what, texts in SAMPLES.items() for text in texts])
def test_secret_found_with_line_in_any_text_form(what: str, text: str) -> None:
    for before, after in (("", ""), ('key = "', '"'), ("key: ", "\n"), ("KEY=", " # mine"), ("<b>", "</b>")):
        found = list(secrets_in(f"# one\n\n{before}{text}{after}\nlast = 1\n".encode()))
        assert found == [(3, what)], before


def test_every_secret_of_a_file_is_found() -> None:
    first, second = SAMPLES["an AWS access key"]
    token = SAMPLES["a Hugging Face token"][0]
    found = list(secrets_in(f"{token}\n{first}\n{second}\n{first}\n".encode()))
    assert sorted(found) == [(1, "a Hugging Face token")] + [(line, "an AWS access key") for line in (2, 3, 4)]


def test_binary_files_are_searched_too() -> None:
    token = SAMPLES["a GitHub token"][0]
    assert list(secrets_in(b"\x80\x05\xff\0" + token.encode() + b"\0\n")) == [(1, "a GitHub token")]


@pytest.mark.parametrize(
    "text",
    [
        PEM.format("", "") + "\n...\n",
        f'START = b"{PEM.format("OPENSSH ", "")}"\nEND = b"..."\n',
        "-----BEGIN CERTIFICATE-----\n" + LETTERS[:64],
        "-----BEGIN PUBLIC" + " KEY-----\n" + LETTERS[:64],
        "AKIA" + UPPER[:15],
        "X" + "AKIA" + UPPER[:16],
        "AKIA" + UPPER[:17],
        "sk-learn-estimator-doc-link-fitted-and-quite-a-long-name-too",
        "task-" + LETTERS[:48],
        "self_" + LETTERS[:40],
        "hf_hub_download_with_a_long_name_after_it",
        "hf_" + LETTERS[:33],
        "AccountKey=" + "<your account key>",
        "config=" + LETTERS[:60] + "=",
        "eyJ" + LETTERS[:20] + "." + LETTERS[:20],
        "password = 'your_password1'",
        "password = get_password(42)",
        "password = '${DB_PASSWORD_1}'",
        "PASSWORD_HASHER = 'argon2.PasswordHasher'",
        "https://user:password@example.com/",
        "https://{user}:{token1}@host/",
        "sha256-" + LETTERS[:43] + "=",
        'password_field = "#loginPassword1"',
        'password = "{settings.User1}Secret"',
        "password = '$dbPassword1'",
        'secret_address = "https://Vault1.internal/Prod"',
        "service_key: projects/My-Project1/keys/Main",
        "password = load_Password1(user.Name1)",
        "secrets/read.py,sha256=-KLydwaBGKdcWtPOXldwchl20zS-WPlprpozK7XfIzY,5668",
        'export WANDB_API_KEY_FILE="$HOME/.config/wandb/Key1"',
        "SECRET_FILE=$SLURM_SUBMIT_DIR/Keys/team1.json",
        "API_KEY=$(<$HOME/.openAi2)",
        "client_secret: $(servicePrincipalKey2)",
        "password: $2b$12$EixZaYVK1fsbw1ZfbX3OXePaWxn96p36WQoeG6Lruj3vjPGga31lW",
        "password: pbkdf2_sha256$260000$Ab1Cd2Ef3Gh$Xy9Zw8Vu7Ts6Rq5Po4Nm3Lk2Ji1H=",
        'PASSWORD_PATTERN = "^[A-Za-z0-9_]{8,32}$"',
        "password: @Microsoft.KeyVault(VaultName=myVault1;SecretName=DbPass)",
        'secret_arn = "arn:aws:iam::123456789012:role/MyRole1"',
        'PASSWORD_FORMAT = "%(asctime)s:%(levelName1)s"',
        "PASSWORD_FIELD = '//input[@id=Passw1]'",
        "api_key = 'sk_xxxB1aa'",
        "api_key = 'AB1XXXXaa9'",
        "api_key = 'Ab1-key-xxx'",
    ],
)
def test_text_resembling_a_secret_is_not_reported(text: str) -> None:
    assert list(secrets_in(text.encode())) == []


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        (".env", ".env"),
        ("conf/.env.production", ".env.*"),
        ("prod.env", "*.env"),
        (".envrc", ".envrc"),
        ("tls/Server.PEM", "*.pem"),
        ("server.key", "*.key"),
        ("cert.p12", "*.p12"),
        ("cert.pfx", "*.pfx"),
        ("id_rsa", "id_rsa*"),
        ("id_ed25519_work", "id_ed25519*"),
        (".netrc", ".netrc"),
        (".pypirc", ".pypirc"),
        (".git-credentials", ".git-credentials"),
        ("credentials.json", "credentials*.json"),
        ("client_secret_12.json", "client_secret*.json"),
        ("service-account-prod.json", "service-account*.json"),
        ("service_account.json", "service_account*.json"),
        ("secrets.yaml", "secrets.yaml"),
        ("kubeconfig", "kubeconfig"),
        (".aws/credentials", ".aws/credentials"),
        ("home/.aws/credentials", ".aws/credentials"),
        (".kube/config", ".kube/config"),
        (".docker/config.json", ".docker/config.json"),
        (".ssh/known_hosts", ".ssh/*"),
        (".azure/azureProfile.json", ".azure/*"),
    ],
)
def test_secret_files_are_found_by_name(path: str, pattern: str) -> None:
    assert secret_name(path) == pattern


@pytest.mark.parametrize(
    "path",
    [
        *(
            ".env.example",
            ".env.template",
            ".env.sample",
            ".env.dist",
            "example.env",
            "id_rsa.pub",
            "keys/id_ed25519.pub",
        ),
        *(
            "environment.py",
            "env.py",
            "credentials.py",
            "keys.json",
            "config.json",
            "docker/config.json",
            "aws/credentials",
        ),
        *("secrets.py", "tokenizer.json", "monkey.py", "a.pem/x.py", ".env.d/x.py", "deployment/kube/config"),
    ],
)
def test_other_files_are_not_secret_files(path: str) -> None:
    assert secret_name(path) is None


def test_standard_library_has_no_secret() -> None:
    sources = list(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    named = {path.name for path in sources if secret_name(path.name) or list(secrets_in(path.read_bytes()))}
    assert named == set()
    assert len(sources) > 100


MIXED = "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA" * 3
HEX = "0123456789abcdef" * 2
MISSED = {  # what an outside tester planted, and the scan by issuers' prefixes alone did not find
    ".npmrc": "//registry.npmjs.org/:_auth" + "Token=npm_" + MIXED[:36],
    "stripe.py": 'stripe.api_key = "sk_' + "live_" + MIXED[:24] + '"',
    "mail.py": "key = 'SG" + "." + MIXED[:22] + "." + MIXED[:43] + "'",
    "vault.hcl": 'token = "hv' + "s." + MIXED[:90] + '"',
    "db.py": 'URL = "postgresql://app:' + "Sup3rS3cr3t" + '@db.internal:5432/prod"',
    "wandb.sh": "export WANDB_API_" + "KEY=" + HEX + "89abcdef",
    "adc.json": '{"client_secret": "d-FL95Q19q7MQ' + 'mFpd7hHD0Ty", "type": "authorized_user"}',
    "boto.cfg": "[Credentials]\ngs_secret_access_" + "key = " + MIXED[:40],
    "kaggle_copy.json": '{"username": "me", "ke' + f'y": "{HEX}"}}',
    "aws.ini": "aws_secret_access_" + "key = " + MIXED[:40],
    "pw.py": "db_pass" + "word = 'Tr0ub4dor&3'",
    "pw.yaml": "db:\n  pass" + "word: Summer123!",
    "pw.ini": "[db]\npass" + "word = hunter2",
    "note.ipynb": json.dumps({"source": ["api_" + 'key = "kLm29xQ7zz81"\n']}),
}


GENERATED = (
    "Kx9cSeUABxxxXtnYpB",
    "CVepmC7G$OoDzuuN",
    "!bPuTSHt7qkix4",
    "^Co@&V$A1lC%RwI%",
    "3s0K_;xh4~8XXI",
    "]35d/{pB9Fo9wJ",
    "=novuWzPk1MLi=%",
)


@pytest.mark.parametrize("password", GENERATED)
def test_generated_password_with_any_mark_is_found(password: str) -> None:
    for line, path in (
        (f'db_password = "{password}"', "a.py"),
        (f"db_password: str | None = '{password}'", "a.py"),
        (json.dumps({"db_password": password}), "a.json"),
        (json.dumps({"source": [f'db_password = "{password}"\n']}), "a.ipynb"),
    ):
        assert [found.what for found in secrets_in(line.encode(), path)] == ["a password"], line


@pytest.mark.parametrize("path", MISSED)
def test_credential_without_prefix_is_found(path: str) -> None:
    assert list(secrets_in(MISSED[path].encode() + b"\n", path))


@pytest.mark.parametrize(
    "pack",
    [
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-16-le"),
        lambda text: text.encode("utf-16-be"),
        lambda text: gzip.compress(text.encode()),
        lambda text: bz2.compress(text.encode()),
        lambda text: lzma.compress(text.encode()),
        lambda text: gzip.compress(gzip.compress(text.encode("utf-16"))),
        lambda text: text.encode("utf-32"),
        lambda text: codecs.BOM_UTF32_BE + text.encode("utf-32-be"),
        lambda text: gzip.compress(text.encode()) + b"trailing",
        lambda text: gzip.compress(text.encode())[:-8],
        lambda text: gzip.compress((text + LETTERS * 100).encode())[:-20],
        lambda text: zipped({"empty": "", "a/b.txt": text}),
        lambda text: zipped({"inner.zip": zipped({"b.txt": text}), "inner.gz": gzip.compress(b"none")}),
    ],
)
def test_secret_in_another_encoding_is_found(pack: Callable[[str], bytes]) -> None:
    ((line, what),) = secrets_in(pack("first line\n" + SAMPLES["a Hugging Face token"][0] + "\n"))
    assert (line, what.partition(",")[0]) == (2, "a Hugging Face token")


def zipped(members: dict[str, str | bytes]) -> bytes:
    """Return a ZIP file."""
    written = BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return written.getvalue()


@pytest.mark.parametrize(
    "content", [b"\x1f\x8b damaged", b"\xff\xfe\0", b"BZh9", b"", b"\0" * 64, b"PK\x03\x04 damaged", b"PK\x03\x04"]
)
def test_damaged_content_is_searched_as_it_is(content: bytes) -> None:
    assert list(secrets_in(content)) == []
    token = b" " + SAMPLES["a Hugging Face token"][0].encode()
    assert [what for _, what in secrets_in(content.removeprefix(b"\xff\xfe\0") + token)] == ["a Hugging Face token"]


def test_archives_in_archives_are_searched_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.snapshot.packed_texts.MAX_UNPACKED", 1 << 20)
    content: bytes = b"x" * (1 << 20)
    for _ in range(2):
        content = zipped({str(number): content for number in range(20)})
    before = time.process_time()
    assert list(secrets_in(content)) == []
    assert time.process_time() - before < 5
    for _ in range(2000):
        content = gzip.compress(content[:1000], 0)
    assert list(secrets_in(content)) == []


def test_long_line_takes_linear_time() -> None:
    before = time.process_time()
    list(secrets_in(b"password = 'a'," * 100_000, "data.json"))
    assert time.process_time() - before < 20


CODE = "aB3dE5gH" + "7jK9mN1pQ2rS4tU6"
SCRIPTS = {
    "run.sh": f"set -e\nexport HUB_TOKEN={CODE}\n",
    "jobs/train.slurm": f'#SBATCH -N 1\nDB_PASSWORD="{CODE}" python x.py\n',
    "entry": f"#!/usr/bin/env bash\nexport API_KEY='{CODE}'\n",
    "Dockerfile": f"FROM python\nENV PORT=80 API_KEY={CODE}\n",
    "docker/gpu.Dockerfile": f"FROM python\nENV SERVICE_TOKEN {CODE}\n",
    "Dockerfile.dev": f"FROM python\nARG CLIENT_SECRET={CODE}\n",
    ".bashrc": f"alias x=y\nexport WORK_ACCESS_KEY={CODE}\n",
    "set.fish": f"# mine\nset -gx WORK_TOKEN {CODE}\n",
    "hex.sh": f"\nexport SERVICE_API_KEY={HEX}\n",
}


@pytest.mark.parametrize("path", SCRIPTS)
def test_secret_variable_of_a_script_is_found(path: str) -> None:
    (found,) = secrets_in(SCRIPTS[path].encode(), path)
    assert found.line == 2
    assert CODE not in found.what


@pytest.mark.parametrize(
    "line",
    [
        "export TOKEN=$(cat /run/secrets/token1)",
        'export HF_TOKEN="${HF_TOKEN:?not set}"',
        "export API_KEY=your_api_key_12345678",
        "export DB_PASSWORD_FILE=/run/secrets/db1",
        "export SECRET=/run/secrets/Db1",
        "ENV GPG_KEY E3FF2839C048B25C084DEBE9B26995E310250568",
        "ENV TOKENIZERS_PARALLELISM=false MAX_TOKEN=1000000",
        "export CACHE_KEY=v1-linux-" + HEX,
        "export KEY_VAULT_SECRET=projects/my-1/secrets/my-token/versions/1",
    ],
)
def test_ordinary_variable_of_a_script_is_not_reported(line: str) -> None:
    assert list(secrets_in(f"{line}\n".encode(), "Dockerfile" if line.startswith("ENV") else "run.sh")) == []


def tarred(members: dict[str, bytes], mode: str = "w") -> bytes:
    """Return a tar file; mode `w:gz` compresses it."""
    written = BytesIO()
    with tarfile.open(fileobj=written, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, BytesIO(content))
    return written.getvalue()


@pytest.mark.parametrize(
    "pack",
    [
        tarred,
        lambda members: tarred(members, "w:gz"),
        lambda members: tarred(members, "w:xz"),
        lambda members: zipped({**members}),
        lambda members: tarred({"old.zip": zipped({**members})}, "w:gz"),
        lambda members: zipped({"old.tgz": tarred(members, "w:gz")}),
    ],
)
def test_script_in_an_archive_is_searched(pack: Callable[[dict[str, bytes]], bytes]) -> None:
    """Rules that need the name of a file apply to members, and so do encodings."""
    token = SAMPLES["a Hugging Face token"][0]
    found = list(secrets_in(pack({"a/run.sh": SCRIPTS["run.sh"].encode(), "b.txt": token.encode("utf-16")}), "x.tar"))
    assert {what for _, what in found} >= {"a secret in HUB_TOKEN, in a/run.sh", "a Hugging Face token, in b.txt"}


@pytest.mark.parametrize("width", [0, 64, 76])
def test_secret_in_base64_is_found_once_encoded(width: int) -> None:
    text = "the configuration of a service\n" * 5 + SAMPLES["a GitHub token"][0] + "\n"
    encoded = base64.b64encode(text.encode()).decode()
    lines = "\n".join(
        encoded[at : at + (width or len(encoded))] for at in range(0, len(encoded), width or len(encoded))
    )
    assert list(secrets_in(f"# one\ndata: '{lines}'\n".encode())) == [(2, "a GitHub token, in base64")]
    twice = base64.b64encode(encoded.encode())
    assert list(secrets_in(twice)) == []


def test_what_follows_an_archive_is_searched() -> None:
    token = SAMPLES["a GitHub token"][0].encode()
    assert [what for _, what in secrets_in(tarred({"first": b"1"}) + tarred({"b.txt": token}))] == ["a GitHub token"]


def test_archive_with_many_members_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.snapshot.packed_texts.MAX_MEMBERS", 5)
    token = SAMPLES["a GitHub token"][0].encode()
    for pack in (tarred, lambda members: zipped({**members})):
        assert len(list(secrets_in(pack({str(number): token for number in range(9)})))) == 5


@pytest.mark.long
def test_archive_that_unpacks_to_a_gigabyte_is_bounded() -> None:
    """Searched up to 32 MB: the memory of a process that has 300 MB more than it uses."""
    packed = gzip.compress(gzip.compress(bytes(1 << 20), 9) * 1024, 9)
    program = (
        "import resource, sys\n"
        "from orchestrator.snapshot.secret_scan import secrets_in\n"
        "list(secrets_in(b'password'))\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + (300 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used, used)); print(len(list(secrets_in(sys.stdin.buffer.read()))))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=packed, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"0\n"), done.stderr.decode()


@pytest.mark.parametrize("setting", ["FORWARD_PASS=fused_v2", "EOS_TOKEN=eos_tok1", "BYPASS=yes_v2345"])
def test_setting_of_a_script_is_no_secret(setting: str) -> None:
    assert list(secrets_in(f"#!/bin/sh\nexport {setting}\n".encode(), "train.sh")) == []


def test_archive_behind_a_first_line_is_unpacked() -> None:
    """A zipapp begins with the line of its interpreter."""
    stream = BytesIO(b"#!/usr/bin/env python3\n")
    stream.seek(0, 2)
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("settings.py", "TOKEN = 'hf" + f"_{LETTERS[:34]}'\n")
    assert [found.what for found in secrets_in(stream.getvalue(), "app.pyz")]


@pytest.mark.parametrize("text", ["# the machine\n" + 100_000 * "\n", 8000 * "wandb.", 16_000 * "eyJ-"])
def test_repetitions_take_linear_time(text: str) -> None:
    """Quadratic time would be 7 to 50 s of the CPU; linear time is a tenth of a second."""
    before = time.process_time()
    assert list(secrets_in(text.encode())) == []
    assert redact(text) == text
    assert time.process_time() - before < 5


@pytest.mark.parametrize(
    "line",
    [
        'K{0} = "AKI' + 'A{0:016d}"',
        'db_password_{0} = "Tr0ub4dor&{0}x"',
        'u{0} = "https://bob:s3cRet{0}x@host/"',
    ],
)
def test_many_findings_take_linear_time(line: str) -> None:
    """Quadratic time would be 45 s and more of the CPU, however slow or busy the machine is; linear time is 1 s."""
    content = "\n".join(line.format(number) for number in range(20_000)).encode()
    before = time.process_time()
    assert len(list(secrets_in(content))) == 20_000
    assert time.process_time() - before < 20
