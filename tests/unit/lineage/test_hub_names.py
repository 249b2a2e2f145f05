"""Models by their name on the Hugging Face Hub: from the cache, or downloaded by Hugging Face's own client."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from tests.conftest import Console, write_bert, write_spec
from train_jobs.artifacts.hub import hub_folder, is_hub_name
from train_jobs.artifacts.start_model import initial_lineage
from train_jobs.config import SpecError
from train_jobs.pretrain import read_config

COMMIT, NEWER = "0" * 39 + "1", "0" * 39 + "2"
NAME = "someone/small-bert"
LOOK_UP = "import sys; from train_jobs.artifacts.hub import hub_folder; print(hub_folder(sys.argv[1]))"


def put_in_cache(cache: Path, name: str = NAME, *, commit: str = COMMIT, lacks: tuple[str, ...] = ()) -> Path:
    """Write a model into a cache in the Hub's layout: blobs by content, links by name, a ref for `main`."""
    repo = cache / f"models--{name.replace('/', '--')}"
    made = write_bert(cache / "made", weights=commit.encode())
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir(exist_ok=True)
    for file in made.iterdir():
        if file.name not in lacks:
            blob = repo / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
            blob.write_bytes(file.read_bytes())
            (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    (repo / "refs").mkdir(exist_ok=True)
    (repo / "refs" / "main").write_text(commit)
    return snapshot


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty Hub cache for this process, which is offline."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return folder


class Hub(ThreadingHTTPServer):
    """The requests that a Hub client makes for one model: the files of a commit."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.asked = files, list[str]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        repo, _, rest = self.path.partition("/resolve/")
        revision, _, file = rest.partition("/")
        known = repo == f"/{NAME}" and revision in {"main", COMMIT}
        content = self.server.files.get(file) if known else None
        if content is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log nothing: stderr is for failures."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """Start a local Hub that has the model and a README that is not needed."""
    files = {file.name: file.read_bytes() for file in write_bert(tmp_path / "published").iterdir()}
    server = Hub({**files, "README.md": b"# Small\n"})
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def environ(tmp_path: Path, endpoint: str, **more: str) -> dict[str, str]:
    """Return the environment of a process that may contact that Hub."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return {**kept, "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": endpoint, **more}


def test_hub_name_is_recognised() -> None:
    assert all(map(is_hub_name, ["bert-base-uncased", "google-bert/bert_base.v2", "hub:a", "a/b", "hub:a/b"]))
    assert not any(
        map(
            is_hub_name,
            [
                "",
                "a",
                "notes-0966ffa5",
                "hub:",
                "a/b/c",
                "./a",
                "../a",
                "/a/b",
                "~/a",
                "a/",
                "-a",
                "a.",
                "local://a",
                "@last",
                3,
            ],
        )
    )


def test_cached_model_needs_no_network(cache: Path) -> None:
    put_in_cache(cache, commit=NEWER)
    snapshot = put_in_cache(cache)
    assert hub_folder(NAME) == snapshot
    facts = initial_lineage(snapshot).head
    assert (facts.name, facts.facts["revision"]) == (NAME, COMMIT)


def test_cached_old_weights_replace_missing_safetensors(cache: Path) -> None:
    snapshot = put_in_cache(cache, lacks=("model.safetensors",))
    with pytest.raises(SpecError, match=f"{NAME}, and it is not in the cache"):
        hub_folder(NAME)
    (snapshot / "pytorch_model.bin").write_bytes(b"old")
    assert hub_folder(NAME) == snapshot


@pytest.mark.parametrize("lacks", ["tokenizer_config.json", "vocab.txt", "model.safetensors"])
def test_incomplete_cached_model_is_not_used(cache: Path, lacks: str) -> None:
    """Without the tokenizer's settings, the case of a model would be a guess."""
    put_in_cache(cache, lacks=(lacks,))
    with pytest.raises(SpecError, match="cannot download the model"):
        hub_folder(NAME)


def test_offline_uncached_model_names_cache_and_fix(cache: Path) -> None:
    with pytest.raises(SpecError, match=f"the model {NAME}, and it is not in the cache") as caught:
        hub_folder(NAME)
    assert caught.value.facts["cache"] == str(cache)
    assert "offline" in str(caught.value.facts["why"])
    assert caught.value.fix == f"with a network connection: hf download {NAME}; or give a folder with a model"


def test_plain_job_accepts_a_name(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="and it is not in the cache") as caught:
        read_config("tiny", [f"init_from={NAME}"])
    assert caught.value.facts["where"] == "--set: init_from, which is not a folder either"
    assert str(read_config("tiny", [f"init_from={NAME}"], resumes=True).init_from) == NAME  # no longer needed
    snapshot = put_in_cache(cache)
    config = read_config("tiny", [f"init_from={NAME}", "data.sequence_length=32"])
    assert (config.init_from, config.model.hidden_size) == (snapshot, 32)
    (tmp_path / "someone").mkdir()  # now it is a path
    assert str(read_config("tiny", [f"init_from={NAME}"]).init_from) == NAME


def test_download_takes_needed_files_of_one_commit(tmp_path: Path, hub: Hub) -> None:
    del hub.files["tokenizer_config.json"]  # old models have no such file
    hub.files["tokenizer.json"] = b"{}"  # may have the rule of the tokenizer, and added tokens
    command = [sys.executable, "-c", LOOK_UP, NAME]
    done = subprocess.run(command, capture_output=True, text=True, env=environ(tmp_path, hub.url), check=False)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1])
    assert folder.name == COMMIT
    taken = ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt"]
    assert sorted(path.name for path in folder.iterdir()) == taken
    assert (folder / "vocab.txt").read_bytes() == hub.files["vocab.txt"]
    assert {path for path in hub.asked if "/resolve/main/" in path} == {
        f"{verb} /{NAME}/resolve/main/config.json" for verb in ("HEAD", "GET")
    }
    before = len(hub.asked)
    gone = environ(tmp_path, hub.url, HF_HUB_OFFLINE="1")
    again = subprocess.run(command, capture_output=True, text=True, env=gone, check=False)
    assert again.stdout.splitlines()[-1] == str(folder)
    assert len(hub.asked) == before


def test_submission_by_name_records_content(console: Console, hub: Hub, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]})
    words = ("validate", "pretrain", "-f", "job.yaml", "-o", "json")
    known = {"HF_HOME": str(console.home / "hf"), "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
    found = console(*words, "--from", NAME, **known)
    assert found.code == 0, found.err
    asked = len(hub.asked)
    folder = next((console.home / "hf" / "hub").rglob(COMMIT))
    offline = {**known, "HF_HUB_OFFLINE": "1"}
    by_folder = console(*words, "--from", str(folder), **offline)
    assert by_folder.json["name"] == found.json["name"]  # the content decides, not the name
    assert len(hub.asked) == asked

    missing = console(*words, "--from", "someone/else", **known)
    assert missing.code == 5
    error = missing.json["error"]
    assert error["message"] == "unknown run 'someone/else'"
    assert error["facts"]["hub"].startswith("unknown model someone/else")
    assert error["facts"]["where"].endswith(
        "a run, a folder with a model, a name on the Hugging Face Hub, or models:/NAME@ALIAS"
    )
