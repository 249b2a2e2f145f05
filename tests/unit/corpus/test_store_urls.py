"""Token stores by URL: the bytes of a store on a disk, despite faults and kills."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from pathlib import Path

import pytest

from tests.conftest import Console
from tests.object_store import BUCKET, ObjectStore
from tests.prepare_jobs import command, finished, start
from tests.unit.corpus.small_corpora import contents, sources
from train_jobs.artifacts.fingerprints import fingerprint
from train_jobs.artifacts.store_places import RemotePath
from train_jobs.config import ConflictError, StorageError, TextConfig
from train_jobs.corpus.pipeline import PreparationProgress
from train_jobs.corpus.preparation import StoreOptions, make_store

SHARE = 0.05  # of the requests fail
URL = f"s3://{BUCKET}/stores/wiki"


def objects_of(store: ObjectStore, url: str) -> dict[str, bytes]:
    """Return the objects of a store by name."""
    store.share = 0.0
    return {path.name: path.read_bytes() for path in RemotePath(url).glob("*")}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return sources(tmp_path_factory.mktemp("text"), 6, documents=300)


@pytest.fixture(scope="module")
def local(text: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("local")
    finished(command(text, folder, "data.workers=1"))
    return contents(folder / "store")


def at_url(text: list[str], folder: Path) -> list[str]:
    return [*command(text, folder, "data.workers=2"), "--set", f"store={URL}"]


@pytest.mark.long
def test_store_is_that_on_a_disk_despite_faults(
    objects: ObjectStore, text: list[str], local: dict[str, bytes], tmp_path: Path
) -> None:
    objects.share = SHARE
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    out = finished(at_url(text, tmp_path), TMPDIR=str(scratch))
    assert sum(objects.faults.values()) > 0
    assert objects_of(objects, URL) == local  # `parts` is deleted
    assert f"prepared {URL}" in out
    assert json.loads((tmp_path / "out" / "result.json").read_text())["store"] == URL
    assert not list(scratch.iterdir())
    assert "prepared" in finished(at_url(text, tmp_path))  # the finished store is found


@pytest.mark.long
def test_killed_jobs_resume_to_the_same_bytes(
    objects: ObjectStore, text: list[str], local: dict[str, bytes], tmp_path: Path
) -> None:
    objects.share = SHARE
    puts = objects.requests["PUT"]
    for wanted in (3, 9, 16):
        process = start(at_url(text, tmp_path))
        while process.poll() is None and objects.requests["PUT"] - puts < wanted:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (RemotePath(URL) / "manifest.json").exists()
    out = finished(at_url(text, tmp_path))
    assert "are done already" in out
    assert objects_of(objects, URL) == local


@pytest.mark.long
def test_damaged_part_is_written_again(
    objects: ObjectStore, text: list[str], local: dict[str, bytes], tmp_path: Path
) -> None:
    finished([*at_url(text, tmp_path), "--set", "keep_steps=true"])
    name = "parts/documents-00002.arrow"
    content = (RemotePath(URL) / name).read_bytes()
    (RemotePath(URL) / "manifest.json").unlink()
    (RemotePath(URL) / name).write_bytes(content[::-1])
    out = finished(at_url(text, tmp_path))
    assert "documents-00002.arrow does not match its record: writing it again" in out
    assert objects_of(objects, URL) == local


def test_folder_with_other_files_is_left_alone(objects: ObjectStore, text: list[str]) -> None:
    objects.put("stores/wiki/thesis.doc", b"work of years")
    data = TextConfig(text=text, vocab_size=200)  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="contains other files"):
        make_store(data, RemotePath(URL), found=fingerprint(data.text), progress=PreparationProgress(lambda _: None))


def test_lock_of_a_store_by_url_is_in_the_cache(
    text: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In /tmp its name would be known to all users, and another user could hold it for ever."""
    cache, scratch = tmp_path / "cache", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    locks = set[Path]()

    def report(_: str) -> None:
        locks.update(path.parent for path in tmp_path.rglob(".prepare-*.lock"))

    data = TextConfig(text=text[:1], vocab_size=200, workers=1)  # type: ignore[arg-type]
    progress, url = PreparationProgress(report), RemotePath("memory://lock/wiki")
    make_store(data, url, found=fingerprint(data.text), progress=progress, hashes=cache / "hashes.json")
    assert locks == {cache}
    assert not list(tmp_path.rglob(".prepare-*.lock"))


@pytest.mark.long
def test_store_of_other_text_is_kept(objects: ObjectStore, text: list[str], tmp_path: Path) -> None:
    finished(at_url(text, tmp_path))
    data = TextConfig(text=text[:2], vocab_size=200)  # type: ignore[arg-type]
    with pytest.raises(ConflictError, match="another text or other settings"):
        make_store(
            data,
            RemotePath(URL),
            found=fingerprint(data.text),
            progress=PreparationProgress(lambda _: None),
            options=StoreOptions(),
        )


@pytest.mark.long
def test_commands_of_stores_take_urls(objects: ObjectStore, text: list[str], console: Console) -> None:
    words = [word for path in text for word in ("--data", path)]
    done = console("submit", "prepare", *words, "--store", URL, "--set", "data.vocab_size=256", "-o", "json")
    assert done.code == 0, done.err
    assert done.json["store"] == URL
    assert f"orchestrator data show {URL}" in console("status", "@last").err
    shown = console("data", "show", URL, "-o", "json")
    assert shown.json["manifest"]["splits"]["train"]["documents"] > 0
    assert console("data", "verify", URL).code == 0
    again = console("submit", "prepare", *words, "--store", URL, "--set", "data.vocab_size=256", "-d")
    assert again.out.startswith(f"{done.json['name']}\n")  # the finished run, not another one
    refused = console("submit", "pretrain", "--data", URL, "--dry-run")
    assert (refused.code, "is a token store" in refused.err) == (2, True)
