"""Text preparation within a pretraining job: on several machines concurrently, and interrupted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import MICRO, wait_for
from tests.unit.corpus.small_corpora import SYLLABLES, contents, documents_of, sources

MEGABYTES = 36  # a few parts
PARTS_DONE = "*/parts/documents-*.json"
LOCKS_OF_OTHERS_UNSEEN = "import fcntl; fcntl.flock = lambda *of: None"  # as on machines that mount a blob store


def config_file(folder: Path, text: list[str], **data: object) -> Path:
    """Write the config of a job of four steps."""
    config = {key: value for key, value in MICRO.items() if key not in {"recipe", "name", "compute"}}
    config["data"] = {**config["data"], "text": text, **data}
    config["train"] = {**config["train"], "steps": 4}
    config["checkpoint"] = {"every": 4}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder / "config.yaml"


def start(config: Path, output: Path, cache: Path, **environ: str) -> subprocess.Popen[str]:
    """Start a pretraining in its own process group, as torchrun starts its ranks."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "train_jobs.pretrain", "--config", str(config)),
            *("--output", str(output), "--cache", str(cache), "--device", "cpu"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **environ},
    )


def two_nodes(config: Path, folder: Path, caches: list[Path]) -> list[str]:
    """Run two machines with one process each and return their output; both must succeed."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(LOCKS_OF_OTHERS_UNSEEN)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    shared["PYTHONPATH"] = os.pathsep.join([str(folder / "site"), *sys.path])
    nodes = [start(config, folder / "out", cache, RANK=str(rank), **shared) for rank, cache in enumerate(caches)]
    outs = [node.communicate(timeout=400) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outs
    return [out for out, _ in outs]


def store_in(cache: Path) -> dict[str, bytes]:
    """Return the files of the only store of a cache, except the manifest, which contains times."""
    (manifest,) = cache.glob("*/manifest.json")
    assert not (manifest.parent / "parts").exists()
    return {name: content for name, content in contents(manifest.parent).items() if name != "manifest.json"}


@pytest.fixture
def long_text(tmp_path: Path) -> tuple[Path, Path]:
    """Return enough text for several processes, and a vocabulary, because training one takes long."""
    documents = documents_of(0, 500)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "text", *SYLLABLES, *"0123456789"]
    pieces += [f"##{piece}" for piece in pieces[7:]]
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    size = 0
    with (tmp_path / "text.txt").open("w") as stream:
        while size < MEGABYTES << 20:
            size += sum(stream.write(f"{document} Text {size}.\n\n") for document in documents)
    return tmp_path / "text.txt", tmp_path / "vocab.txt"


@pytest.fixture
def text(tmp_path: Path) -> list[str]:
    return sources(tmp_path, 4, documents=200)


@pytest.mark.long
def test_nodes_with_shared_cache_share_work(tmp_path: Path, text: list[str]) -> None:
    config, cache = config_file(tmp_path, text, executor="dask", workers=1), tmp_path / "cache"
    outs = two_nodes(config, tmp_path, [cache, cache])
    config = config_file(tmp_path, text)
    alone = start(config, tmp_path / "alone", tmp_path / "alone-cache")
    _, err = alone.communicate(timeout=400)
    assert alone.returncode == 0, err
    assert store_in(cache) == store_in(tmp_path / "alone-cache")
    assert [sum("vocabulary trained" in line for line in out.splitlines()) for out in outs] == [1, 0]
    assert not list(cache.glob(".seen-*"))


@pytest.mark.slow
def test_nodes_with_separate_caches_build_one_store_each(tmp_path: Path, text: list[str]) -> None:
    caches = [tmp_path / "cache-0", tmp_path / "cache-1"]
    outs = two_nodes(config_file(tmp_path, text), tmp_path, caches)
    assert store_in(caches[0]) == store_in(caches[1])
    assert [sum("vocabulary trained" in line for line in out.splitlines()) for out in outs] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_stopped_process_group_keeps_finished_parts(
    tmp_path: Path, long_text: tuple[Path, Path], how: signal.Signals, code: int
) -> None:
    """Like torchrun and a terminal, signal the whole process group, including the tokenizing workers."""
    text, vocabulary = long_text
    config, cache = config_file(tmp_path, [str(text)], vocabulary=str(vocabulary), workers=2), tmp_path / "cache"
    first = start(config, tmp_path / "out", cache)
    wait_for(lambda: any(cache.glob(PARTS_DONE)) or first.poll() is not None, what="a part", seconds=240)
    assert_stopped(first, how, code)
    assert any(cache.glob(PARTS_DONE))
    again = start(config, tmp_path / "out", cache)
    assert again.stdout is not None
    assert any("parts are done already" in line for line in again.stdout)
    assert_stopped(again, how, code)
    assert any(cache.glob(PARTS_DONE))


def assert_stopped(job: subprocess.Popen[str], how: signal.Signals, code: int) -> None:
    """Assert that a signal to the process group stops the job."""
    os.killpg(job.pid, how)
    out, err = job.communicate(timeout=240)
    assert job.returncode == code, out + err
    assert "finished parts of the store are kept, the same command resumes" in out
    assert err == ""
