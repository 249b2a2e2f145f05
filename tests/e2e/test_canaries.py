"""Canaries of 23 kinds in the environment, files, URLs, specs and notebooks: runs leave none anywhere.

Searched for as they are, in base64 and URL-encoded: in each file that changed anywhere, in the command lines of all
processes, in what commands print, and in the requests to the double of Azure.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
import string
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from orchestrator.testing import AzureDouble
from tests.conftest import Console, Finished, processes_of, wait_for, write_corpus, write_spec
from tests.unit.fetch import conftest as servers
from tests.unit.fetch.conftest import Site, cut, status

pytestmark = pytest.mark.long
site = servers.site

LETTERS = string.ascii_letters + string.digits
SEARCHED = (Path("/dev/shm"), Path.home() / ".cache", Path.home() / ".orchestrator")
REDIRECTED = {"HOME": "user", "TMPDIR": "tmp", "XDG_CACHE_HOME": "caches"}
"""Variable -> folder below the folder of a test, in which its commands write; short, for the paths of sockets."""
MAX_BYTES = 64 << 20
LEAKY = """
import base64, os, sys, time
from urllib.parse import quote
names = os.environ["LEAKED"].split()
values = [os.environ[name] for name in names]
for value in values:
    encoded = base64.b64encode(b"user:" + value.encode()).decode()
    print(value, encoded, quote(value, safe=""), file=sys.stderr, flush=True)
    sys.stdout.write("half " + value[:9])
    sys.stdout.flush()
    time.sleep(0.05)
    print(value[9:], flush=True)
print("hook", os.environ.get("ORCHESTRATOR_WEBHOOK"), flush=True)
import train_jobs.pretrain as job
from train_jobs.config import UserError
from train_jobs.engine.runtime import boundary
train = boundary.run
def run(work, *rest, **more):
    train(work, *rest, **more)
    def fail():
        raise UserError(f"cannot use {values}", fix=f"{values[0]}")
    return train(fail, *rest, **more)
boundary.run = run
boundary.exit_process(job.main())
"""


def draw(length: int, alphabet: str = LETTERS) -> str:
    return "".join(random.SystemRandom().choices(alphabet, k=length))


def make_canaries() -> dict[str, str]:
    """Return kind -> canary, new in each run, so that traces of other runs are not found."""
    return {
        "HF_TOKEN": "hf_" + draw(34),
        "GITHUB_TOKEN": "ghp_" + draw(36),
        "AZURE_CLIENT_SECRET_2": draw(3) + "8Q~" + draw(34),
        "DB_PASSWORD": "p/+ &=" + draw(12) + "%?",
        "AWS_SECRET_ACCESS_KEY": draw(40),
        "WANDB_API_KEY": draw(40, "0123456789abcdef"),
        "STRIPE_KEY": "sk_" + "live_" + draw(24),
        "NPM_TOKEN": "npm_" + draw(36),
        "npmrc": "npm_" + draw(36),
        "pem": draw(64),
        "gzip": "glpat-" + draw(20),
        "utf16": "hf_" + draw(34),
        "netrc": "Q7" + draw(14),
        "kaggle": draw(32, "0123456789abcdef"),
        "sas": draw(42) + "%3D",
        "slack": "xoxb-" + draw(12, string.digits) + "-" + draw(24),
        "notebook": "Kx9" + draw(16),
        "url": "Sup3r" + draw(12),
        "remote_sas": draw(42) + "%3D",
        "spec": "Zq4" + draw(20),
        "vault": "V9!" + draw(20),
        "webhook": "hk-" + draw(20),
        "mirror": "Mr8" + draw(12),
    }


def forms_of(value: str) -> set[bytes]:
    """Return a canary as it is, URL-encoded, and as it appears in base64 at each of its three alignments."""
    plain = value.encode()
    encoded = {base64.b64encode(b"x" * before + plain)[4:-4] for before in range(3)}
    return {plain, quote(value).encode(), quote(value, safe="").encode(), *encoded}


class Hunt:
    """A search for canaries in files, command lines and texts."""

    def __init__(self, canaries: dict[str, str], planted: set[Path]) -> None:
        self.kinds = {form: kind for kind, value in canaries.items() for form in forms_of(value)}
        self.planted, self.since, self.found = planted, time.time() - 1, list[str]()
        self.files = self.command_lines = 0

    def look(self, where: object, content: bytes) -> None:
        self.found += [f"{kind} in {where}" for form, kind in self.kinds.items() if form in content]

    def look_at(self, done: Finished) -> Finished:
        self.look("output of a command", (done.out + done.err).encode())
        return done

    def look_in_files(self, *folders: Path) -> None:
        for top in {*folders, *SEARCHED}:
            for folder, _, names in os.walk(top):
                for path in (Path(folder, name) for name in names):
                    with suppress(OSError):  # deleted meanwhile, or another user's
                        status = path.lstat()
                        new = max(status.st_mtime, status.st_ctime) >= self.since and status.st_size < MAX_BYTES
                        if new and path.is_file() and path not in self.planted:
                            self.files += 1
                            self.look(path, path.read_bytes())

    def require_clean(self, console: Console) -> None:
        """Search all files, and require that markers alone are found: they prove that their folders are searched."""
        expected = []
        for name in REDIRECTED:
            marker, path = draw(24), Path(console.variables[name], "marker")
            path.write_text(marker)
            self.kinds |= dict.fromkeys(forms_of(marker), name)
            expected.append(f"{name} in {path}")
        self.look_in_files(console.cwd, console.home)
        assert sorted(self.found) == expected

    @contextmanager
    def watching_processes(self) -> Iterator[None]:
        """Read the command lines of all processes, ten times a second."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.1):
                for entry in Path("/proc").iterdir():
                    if entry.name.isdigit():
                        with suppress(OSError):
                            self.command_lines += 1
                            self.look("ps", (entry / "cmdline").read_bytes())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def redirect(console: Console) -> None:
    """Give the commands of a test a HOME, a TMPDIR and a cache folder of their own, where the hunt looks."""
    for name, folder in REDIRECTED.items():
        (console.cwd / folder).mkdir()
        console.variables[name] = str(console.cwd / folder)


def copy_to_mlflow(hunt: Hunt, console: Console, **variables: str) -> None:
    """Copy everything to MLflow, once no process of a run or a sweep copies it."""
    copy = ("mlflow", "sync", "--all")
    wait_for(lambda: hunt.look_at(console(*copy, **variables)).code == 0, seconds=300, what="the end of other copies")
    assert (console.home / "mlflow.db").exists()


def plant(folder: Path, canaries: dict[str, str]) -> dict[str, bytes]:
    """Write files with canaries next to a user's code; return them."""
    texts = {
        ".npmrc": f"//registry.npmjs.org/:_authToken={canaries['npmrc']}\n",
        "key.txt": "-----BEGIN PRIVATE" + f" KEY-----\n{canaries['pem']}\n",
        "netrc.txt": f"machine db.internal login me password {canaries['netrc']}\n",
        "kaggle_copy.json": json.dumps({"username": "me", "key": canaries["kaggle"]}),
        "urls.txt": f"https://a.blob.core.windows.net/c?sv=1&sig={canaries['sas']}\n",
        "cfg.txt": f"server {canaries['DB_PASSWORD']}\n",
        "bot.yaml": f"slack: {canaries['slack']}\n",
        "try.ipynb": json.dumps({"cells": [{"source": [f'api_key = "{canaries["notebook"]}"\n']}]}),
    }
    files = {name: text.encode() for name, text in texts.items()}
    files["old.log.gz"] = gzip.compress(canaries["gzip"].encode())
    files["wide.txt"] = canaries["utf16"].encode("utf-16")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return files


@pytest.fixture
def canaries() -> dict[str, str]:
    return make_canaries()


@pytest.fixture
def planted_code(console: Console, canaries: dict[str, str]) -> dict[str, bytes]:
    """Write the user's folder: code that prints its secrets, and files with canaries."""
    redirect(console)
    code = console.cwd / "code"
    code.mkdir()
    files = plant(code, canaries)
    (code / "leaky.py").write_text(LEAKY)
    write_corpus(console.cwd / "corpus.txt")
    (console.cwd / "more.env").write_text("\n".join(f"{name}={canaries[name]}" for name in FROM_FILE) + "\n")
    (console.cwd / "more.env").chmod(0o600)
    return files


FROM_SHELL, FROM_FILE = ("HF_TOKEN", "GITHUB_TOKEN", "AZURE_CLIENT_SECRET_2"), ("DB_PASSWORD", "AWS_SECRET_ACCESS_KEY")
AMBIENT = ("STRIPE_KEY", "NPM_TOKEN", "WANDB_API_KEY")  # in the user's environment, and of no concern to the run


def test_no_canary_leaves_its_place(console: Console, canaries: dict[str, str], planted_code: dict[str, bytes]) -> None:
    code = console.cwd / "code"
    data = {"text": [str(console.cwd / "corpus.txt")]}
    write_spec(console.cwd / "job.yaml", data=data, code={"folder": str(code), "entry": "leaky"})
    bad = write_spec(console.cwd / "bad.yaml", data=data, environment={"variables": {"MY_API_KEY": canaries["spec"]}})
    hunt = Hunt(canaries, {bad, console.cwd / "more.env", *(code / name for name in planted_code)})
    known = {name: canaries[name] for name in (*FROM_SHELL, *AMBIENT)}
    submit = ("submit", "pretrain", "-f", "job.yaml", "--env-file", "more.env", *_flags(), "--env", _leaked())

    refused = hunt.look_at(console(*submit, **known))
    assert refused.code == 2
    assert {name for name in planted_code if f"{name}:" in refused.err} == set(planted_code), refused.err
    for words in (
        ("-f", "bad.yaml"),
        ("--set", f"tracking.uri=http://me:{canaries['url']}@mlflow.internal/"),
        ("--set", f"tracking.uri=https://{canaries['url']}@mlflow.internal/"),
        ("--set", f"tracking.uri=https://mlflow.internal/?token={canaries['url']}"),
        ("-b", "azure", "--set", f"azure.data=https://a.blob.core.windows.net/c?sig={canaries['remote_sas']}"),
    ):
        assert hunt.look_at(console("plan", "pretrain", *words)).code == 2

    # the shell expanded the variable
    note = hunt.look_at(console(*submit, "--tag", f"note=at {canaries['DB_PASSWORD']}", **known))
    assert "tags.note: contains the value of the declared secret DB_PASSWORD" in note.err
    (code / ".amlignore").write_text("".join(f"/{name}\n" for name in planted_code))
    with hunt.watching_processes():
        hook = {"ORCHESTRATOR_WEBHOOK": f"http://127.0.0.1:9/{canaries['webhook']}"}
        notify = ("--set", "notify.on=[failed]", "--set", "notify.allow_private=true")
        ended = hunt.look_at(console(*submit, *notify, **known, **hook))
        assert "REDACTED" in ended.err, "the job's own error has its secrets"
        (folder,) = (console.home / "runs").iterdir()
        for words in (("status", "-o", "json"), ("logs",), ("report",)):
            hunt.look_at(console(words[0], folder.name, *words[1:]))
        wait_for(lambda: not processes_of(folder), what="end of all processes")
        copy_to_mlflow(hunt, console, **known)
    log = (folder / "logs" / "rank-0.log").read_text()
    assert "hook None" in log
    assert log.count("half REDACTED") == len(FROM_SHELL) + len(FROM_FILE)
    assert len(list((folder / "outputs" / "checkpoints").glob("*/COMMIT.json"))) > 0, "the job trained"
    hunt.require_clean(console)
    assert hunt.files > 50
    assert hunt.command_lines > 100


def test_password_of_a_mirror_stays_in_the_command(console: Console, canaries: dict[str, str], site: Site) -> None:
    redirect(console)
    hunt = Hunt(canaries, set())
    site.publish("glue/data/RTE.zip", bytes(697_150), cut(4000), status(503, Retry_After="0"), status(404))
    address = site.url.replace("://", f"://bob:{canaries['mirror']}@")
    done = hunt.look_at(console("data", "fetch", "glue:RTE", "--mirror", address))
    assert done.code == 5
    assert len(list(console.cwd.rglob(".RTE.zip.part.json"))) == 1
    hunt.require_clean(console)


def _flags() -> list[str]:
    return [word for name in FROM_SHELL for word in ("--env", name)]


def _leaked() -> str:
    return f"LEAKED={' '.join((*FROM_SHELL, *FROM_FILE))}"


def test_azure_gets_a_reference_to_the_vault(
    console: Console, canaries: dict[str, str], planted_code: dict[str, bytes], tmp_path: Path
) -> None:
    code = console.cwd / "code"
    (code / ".amlignore").write_text("".join(f"/{name}\n" for name in planted_code))
    vault = {"backend": "azure", "environment": {"secrets": {"DB_PASSWORD": "keyvault:my-vault/db"}}}
    data, compute = {"text": [str(console.cwd / "corpus.txt")]}, {"cluster": "cpu", "sku": "Standard_D16s_v5"}
    more = {"azure": {"identity": "managed"}, "code": {"folder": str(code), "entry": "leaky"}}
    write_spec(console.cwd / "job.yaml", data=data, compute=compute, **vault, **more)
    hunt = Hunt(canaries, {console.cwd / "more.env", *(code / name for name in planted_code)})
    with AzureDouble(tmp_path / "azure", run_jobs=False) as double, hunt.watching_processes():
        answer, sent = double._proxy.answer, list[bytes]()

        def recording(call: object) -> object:
            sent.append(repr((call.line, call.query, call.headers)).encode() + call.body)  # type: ignore[attr-defined]
            return answer(call)  # type: ignore[arg-type]

        double._proxy.answer = recording  # type: ignore[assignment]
        double.vaults.values["my-vault/db"] = canaries["vault"]
        known = {**double.environment(), **{name: canaries[name] for name in (*FROM_SHELL, *AMBIENT)}}
        exposed = hunt.look_at(console("submit", "pretrain", "-f", "job.yaml", "--env", "HF_TOKEN", **known))
        assert exposed.code == 2
        assert "all users of the workspace could read" in exposed.err
        assert hunt.look_at(console("submit", "pretrain", "-f", "job.yaml", "-d", **known)).code == 0
        assert len(sent) > 10
        assert any(b"train_jobs.tools.with_secrets DB_PASSWORD=my-vault/db --" in one for one in sent)
        for one in sent:
            hunt.look("a request", one)
    hunt.require_clean(console)
