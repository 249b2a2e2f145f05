"""Hostile files: kept inputs of the fuzzers, and those whose size matters. Readers refuse them in bounded time."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.snapshot.walk import Walk
from orchestrator.support import notify
from orchestrator.support.errors import SpecError
from tests.conftest import Console
from tests.fuzz.readers import PIECES, READERS, STORE, answering
from tests.fuzz.replay import slowness
from train_jobs.artifacts.layers import merge, read_assignments, read_file, read_text
from train_jobs.config.errors import DataError
from train_jobs.corpus.store.token_store import TokenStore

SECONDS = 2.0  # CPU time of all kept inputs of a reader, on an idle machine
ROOT = Path(__file__).resolve().parents[2]


def replayed(corpus: Path, *readers: str) -> list[dict[str, object]]:
    """Replay the inputs of readers in a process of its own; return its lines."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.replay", str(corpus), *readers],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, f"ended with {done.returncode} at:\n{done.stderr[-2000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_kept_inputs_are_read_or_refused() -> None:
    """Kept inputs cause no traceback, take at most 2 s and 512 MB each, and neither hang nor kill the process."""
    lines = replayed(ROOT / "tests/fuzz/corpus", *READERS)
    assert [line for line in lines if "problem" in line] == []
    assert [line["reader"] for line in lines] == list(READERS)
    most = SECONDS * slowness()
    assert [line for line in lines if not line["inputs"] or float(str(line["seconds"])) > most] == []


def test_replay_ends_a_reader_that_sleeps(tmp_path: Path) -> None:
    (tmp_path / "asleep").mkdir()
    (tmp_path / "asleep" / "input").touch()
    script = (
        "import time; from pathlib import Path; from tests.fuzz import replay; replay.STUCK = 0.2;"
        " replay.READERS['asleep'] = lambda folder: lambda data: time.sleep(60);"
        f" list(replay.replay(Path({str(tmp_path)!r}), 'asleep'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGALRM, "asleep/input\n")


def test_word_of_200_mb_in_gzip_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    with gzip.open(tmp_path / "text/word.gz", "wb", compresslevel=1) as stream:
        for _ in range(200):
            stream.write(b"a" * (1 << 20))
    [line] = replayed(tmp_path, "text")
    assert "problem" not in line


def test_long_line_in_gzip_is_refused(console: Console) -> None:
    with gzip.open(console.cwd / "word.gz", "wb", compresslevel=1) as stream:
        stream.write(b"a" * (40 << 20))
    words = [
        sys.executable,
        "-m",
        "train_jobs.prepare",
        "--config",
        "uncased",
        "--set",
        "data.text=[word.gz]",
        "--output",
        "out",
    ]
    done = subprocess.run(words, capture_output=True, text=True, env=console.environ(), cwd=console.cwd, check=False)
    assert "error[data]: " in done.stderr
    assert "a line of more than 32 MiB" in done.stderr


def test_spec_of_10_mb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("train: {steps: 1}\n" * 600_000)
    begin = time.process_time()
    with pytest.raises(SpecError, match="more than 4 MiB"):
        read_file(path)
    assert time.process_time() - begin < SECONDS * slowness()


def test_spec_of_8000_keys_is_read_quickly() -> None:
    begin = time.process_time()
    layer = read_text("\n".join(f"key{number}: {number}" for number in range(8_000)), "job.yaml")
    merged = merge([layer, layer])
    assert len(merged.tree) == len(merged.origins) == 8_000
    assert time.process_time() - begin < SECONDS * slowness()


def test_replaced_section_loses_origins_of_keys() -> None:
    below, above = read_text("train: {steps: 1, seed: 2}", "below"), read_text("train: 3", "above")
    assert {path: str(origin) for path, origin in merge([below, above]).origins.items()} == {("train",): "above:1"}


@pytest.mark.parametrize("value", ["2001-99-99", "0b_", "!!timestamp x", "0x" + "f" * 5_000, "&a [*a]", "[" * 3_000])
def test_hostile_value_of_set_is_spec_error(value: str) -> None:
    with pytest.raises(SpecError) as refused:
        read_assignments([f"train.steps={value}"], "--set")
    assert refused.value.problems[0].startswith("--set train.steps=")


def test_aliases_count_as_written_out() -> None:
    levels = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 9)]
    begin = time.process_time()
    with pytest.raises(SpecError, match="100,000 values with its aliases written out"):
        read_text("\n".join(["a0: &a0 [x]", *levels]), "job.yaml")
    assert time.process_time() - begin < SECONDS * slowness()
    assert read_text("a: &a {b: 1}\nc: *a", "job.yaml").tree == {"a": {"b": 1}, "c": {"b": 1}}


def test_ignore_file_of_5001_lines_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("name\n" * 5_001)
    with pytest.raises(SpecError, match="more than 5,000 lines"):
        Walk(tmp_path, repository=None, excluded={}, reserved=frozenset())


@pytest.mark.parametrize("line", ["*a" * 60 + "b", "**a" * 40 + "b", "a/**/" * 12 + "b"])
def test_wildcards_take_no_exponential_time(tmp_path: Path, line: str) -> None:
    deep = tmp_path.joinpath(*"a" * 60)
    deep.mkdir(parents=True)
    for name in ("a" * 200, "a" * 100 + "b", "c"):
        (deep / name).touch()
    (tmp_path / ".gitignore").write_text(line)
    begin = time.process_time()
    found = Walk(tmp_path, repository=None, excluded={}, reserved=frozenset()).found
    assert time.process_time() - begin < SECONDS * slowness()
    assert {file.path[-1] for file in found} >= {"c"}


def test_manifest_with_2_to_40_blocks_is_damaged(tmp_path: Path) -> None:
    manifest = json.loads((STORE / "manifest.json").read_text())
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (tmp_path / "shard-00000-train.arrow").write_bytes((STORE / "shard.arrow").read_bytes())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert TokenStore.open(tmp_path).blocks("train") == 1
    manifest["shards"][0]["blocks"] = 2**40
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="the token store is damaged"):
        TokenStore.open(tmp_path)


def test_webhook_answer_that_is_no_http_is_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "TRIES", 1)
    with socket.create_server(("127.0.0.1", 0)) as server, answering(server, b"garbage\r\n\r\n"):
        assert not notify.post(f"http://127.0.0.1:{server.getsockname()[1]}/hook", {}, allow_private=True)
    assert "the response is not valid HTTP" in capsys.readouterr().err
