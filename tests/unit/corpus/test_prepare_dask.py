"""Preparation on Dask: identical stores on one node, on several and on a cluster of others, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.conftest import wait_for
from tests.prepare_jobs import command, finished, processes_with, start
from tests.unit.corpus.small_corpora import contents, sources
from train_jobs.artifacts.files import NewFile, file_sha256
from train_jobs.config.errors import DataError, SpecError
from train_jobs.config.prepare import ExecutorConfig, TextConfig, result_settings
from train_jobs.corpus.executors.dask_cluster import ExistingCluster, OwnCluster
from train_jobs.corpus.executors.dask_executor import DaskExecutor
from train_jobs.corpus.executors.dask_process import OTHER_TEXT, NodeWorkers
from train_jobs.corpus.executors.dask_task import require_text
from train_jobs.corpus.executors.node import Node
from train_jobs.corpus.sources.streams import Piece
from train_jobs.corpus.sources.text_parts import Part
from train_jobs.corpus.steps.records import PartTask, PreparationSetting, TextFile

PARTS = 4
TLS = {"tls_ca_file": "ca", "tls_cert": "cert", "tls_key": "key"}
DASK = ("data.executor=dask", "data.workers=2")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return sources of one part each."""
    return sources(tmp_path_factory.mktemp("text"), PARTS, documents=200)


@pytest.fixture(scope="module")
def expected(text: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of the store that this machine's processes make."""
    folder = tmp_path_factory.mktemp("expected")
    finished(command(text, folder))
    return contents(folder / "store")


@pytest.mark.long
def test_cluster_of_job_gives_identical_store_and_ends(
    text: list[str], expected: dict[str, bytes], tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    mark = f"of-{tmp_path.name}-{os.getpid()}"
    finished(command(text, tmp_path, *DASK), TMPDIR=str(scratch), TEST_MARK=mark)
    assert contents(tmp_path / "store") == expected
    assert not (tmp_path / "store" / "parts").exists()
    wait_for(lambda: not processes_with(mark), what="the end of all processes")
    assert list(scratch.iterdir()) == []
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["slowest_source"] in {f"source {number}" for number in range(PARTS)}
    figures = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert any(line["metrics"].get("tokens_workers", 0) >= 1 for line in figures)
    assert figures[-1]["metrics"]["slowest_source_mb_per_second"] > 0


@pytest.mark.long
@pytest.mark.parametrize("executor", [DASK, ()], ids=["dask", "processes"])
def test_damaged_files_are_written_again(
    text: list[str], expected: dict[str, bytes], tmp_path: Path, executor: tuple[str, ...]
) -> None:
    """Documents are in the folder of the records, shards in the store; the damage keeps the sizes."""
    finished(command(text, tmp_path, "keep_steps=true"))
    store = tmp_path / "store"
    (store / "manifest.json").unlink()
    damaged = store / "parts" / "documents-00001.arrow", store / "shard-00002-train.arrow"
    for path in damaged:
        path.write_bytes(path.read_bytes()[::-1])
    out = finished(command(text, tmp_path, *executor))
    for path in damaged:
        assert f"{path.name} does not match its record: writing it again" in out
    assert contents(store) == expected


@pytest.mark.long
def test_nodes_give_identical_store(text: list[str], expected: dict[str, bytes], tmp_path: Path) -> None:
    words = command(text, tmp_path, "data.executor=dask", "data.workers=1")
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    nodes = [start(words, RANK=str(rank), **shared) for rank in range(2)]
    outs = [node.communicate(timeout=400) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outs
    assert contents(tmp_path / "store") == expected
    assert outs[1] == ("", "")
    assert finished(words, RANK="1", **shared) == ""  # the store exists


def test_nodes_with_different_text_are_refused(text: list[str], tmp_path: Path) -> None:
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    other = start(command(text[:2], tmp_path, *DASK), RANK="1", **shared)
    leader = start(command(text, tmp_path, *DASK), RANK="0", **shared)
    try:
        _, err = other.communicate(timeout=200)
    finally:
        leader.kill()
        leader.communicate()
    assert other.returncode == 2, err
    assert "error[data]: the nodes do not see the same text" in err


class Existing:
    """A cluster that the job did not start: a scheduler and one worker, with a scheduler file."""

    def __init__(self, folder: Path, *, site: str = "", of: str = "", cwd: Path | None = None) -> None:
        """Start the processes.

        Args:
            folder: folder of the scheduler file and of the worker's own files.
            site: Python code that runs first, in the processes `of`: "scheduler" or "worker".
            of: see `site`.
            cwd: working directory.
        """
        self.file = folder / "scheduler.json"
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(site)
        path = [str(Path(entry).absolute()) for entry in sys.path]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "DASK_LOGGING__DISTRIBUTED": "error"}
        patched = {**env, "PYTHONPATH": os.pathsep.join([str(folder / "site"), *path])}
        scheduler = [sys.executable, "-m", "dask", "scheduler", "--scheduler-file", str(self.file), "--no-dashboard"]
        worker = [sys.executable, "-m", "dask", "worker", "--scheduler-file", str(self.file), "--nthreads", "1"]
        worker += ["--no-dashboard", "--no-nanny", "--local-directory", str(folder)]
        self.processes = [
            subprocess.Popen(
                [*words, "--host", "127.0.0.1"],
                env=patched if role == of else env,
                cwd=cwd,
                stderr=subprocess.DEVNULL,
            )
            for role, words in (("scheduler", [*scheduler, "--port", "0"]), ("worker", worker))
        ]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def existing(tmp_path: Path) -> Iterator[Existing]:
    cluster = Existing(tmp_path)
    yield cluster
    cluster.end()


@pytest.mark.long
def test_existing_cluster_gives_identical_store(
    text: list[str], expected: dict[str, bytes], tmp_path: Path, existing: Existing
) -> None:
    file = f"data.executor={json.dumps({'name': 'dask', 'scheduler_file': str(existing.file)})}"
    finished(command(text, tmp_path, file))
    assert contents(tmp_path / "store") == expected
    assert [process.poll() for process in existing.processes] == [None, None]
    address = json.loads(existing.file.read_text())["address"]
    (tmp_path / "store" / "manifest.json").unlink()
    finished(command(text, tmp_path, f"data.executor={json.dumps({'name': 'dask', 'scheduler': address})}"))
    assert contents(tmp_path / "store") == expected


def refusal(cluster: Existing, text: list[str], folder: Path) -> tuple[int, str]:
    """Run a job on a cluster, end the cluster, and return exit code and stderr of the job."""
    try:
        job = start(command(text, folder, executor_of(cluster)))
        _, err = job.communicate(timeout=200)
    finally:
        cluster.end()
    return job.returncode, err


def executor_of(cluster: Existing) -> str:
    """Return the setting of a job that uses the cluster."""
    return f"data.executor={json.dumps({'name': 'dask', 'scheduler_file': str(cluster.file)})}"


@pytest.mark.long
def test_worker_that_does_not_see_the_store_is_refused(text: list[str], tmp_path: Path) -> None:
    patch = """
import builtins, io, pathlib
read = pathlib.Path.read_bytes
def away(path):
    if "dask-token" in path.name:
        raise FileNotFoundError(2, "No such file or directory", str(path))
    return read(path)
pathlib.Path.read_bytes = away
"""
    code, err = refusal(Existing(tmp_path, site=patch, of="worker"), text, tmp_path)
    assert code == 1
    assert err.startswith("error[storage]: a Dask worker does not see the token store"), err
    assert re.search(rf"file +{tmp_path}/store/parts/dask-token-", err), err
    assert re.search(r"worker +tcp://127\.0\.0\.1:", err), err
    assert not list((tmp_path / "store" / "parts").glob("d*"))


@pytest.mark.long
def test_scheduler_without_this_package_is_refused(text: list[str], tmp_path: Path) -> None:
    patch = "import sys; sys.modules['train_jobs'] = None"
    code, err = refusal(Existing(tmp_path, site=patch, of="scheduler"), text, tmp_path)
    assert code == 2
    assert err.startswith("error[spec]: the Dask scheduler cannot import this package"), err


@pytest.mark.long
def test_relative_paths_are_those_of_the_job(
    text: list[str], expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers of an existing cluster have another working directory."""
    (tmp_path / "elsewhere").mkdir()
    cluster = Existing(tmp_path, cwd=tmp_path / "elsewhere")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path))
    monkeypatch.chdir(tmp_path)
    try:
        finished(command([os.path.relpath(path) for path in text], Path("work"), executor_of(cluster)))
    finally:
        cluster.end()
    found = contents(tmp_path / "work" / "store")
    shards = {name for name in expected if name != "manifest.json"}  # the manifest has the paths as they were given
    assert {name: found[name] for name in shards} == {name: expected[name] for name in shards}
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_cluster_with_other_versions_is_refused(text: list[str], tmp_path: Path) -> None:
    """The worker has another version of a package: it may write other bytes."""
    patch = "import importlib.metadata as m; f = m.version; m.version = lambda n: '0.1' if n == 'pyarrow' else f(n)"
    code, err = refusal(Existing(tmp_path, site=patch, of="worker"), text, tmp_path)
    assert code == 2
    assert err.startswith("error[spec]: the workers of the Dask cluster have other versions than this job"), err
    assert re.search(r"pyarrow +0\.1 on tcp://127\.0\.0\.1:", err), err
    assert not list((tmp_path / "store" / "parts").glob("documents-*"))


@pytest.mark.long
def test_unusable_text_is_reported_as_by_processes(text: list[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"valid text\n\n" + b"\xff\xfe\xfd" * 100)
    errors = []
    for name, sets in (("one", ()), ("two", DASK)):
        job = start(command([*text, str(broken)], tmp_path / name, *sets))
        errors.append(job.communicate(timeout=200)[1])
        assert job.returncode == 2
    assert errors[0].startswith("error[data]:")
    lines = [[line.split() for line in error.splitlines()] for error in errors]
    assert [words for words in lines[1] if words[0] != "worker"] == lines[0]


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"scheduler": "tcp://host:1"}, "requires name: dask"),
        ({"name": "dask", "scheduler": "tcp://host:1", "scheduler_file": "file"}, "exclude each other"),
        ({"name": "dask", "scheduler": "tls://host:1", "tls_cert": "file"}, "belong together"),
        ({"name": "dask", "tls_ca_file": "file"}, "for an existing cluster"),
        ({"name": "dask", "scheduler": "tcp://host:1", "dashboard": ":8787"}, "that the job starts"),
        ({"name": "dask", "scheduler": "foo"}, "'foo' is not tcp://HOST:PORT"),
        ({"name": "dask", "scheduler": "127.0.0.1"}, "with a port of 1 to 65535"),
        ({"name": "dask", "scheduler": "foo:bar"}, "with a port of 1 to 65535"),
        ({"name": "dask", "scheduler": "tcp://127.0.0.1:99999"}, "with a port of 1 to 65535"),
        ({"name": "dask", "scheduler": "tcp://:8786"}, "is not tcp://HOST:PORT"),
        ({"name": "dask", "scheduler": "http://host:1"}, "must begin with tcp:// or tls://"),
        ({"name": "dask", "scheduler": "tls://host:1", "tls_ca_file": "file"}, "belong together"),
        ({"name": "dask", "scheduler": "tcp://host:1", **TLS}, "requires a scheduler of the form tls://"),
        ({"name": "dask", "dashboard": "abc"}, "'abc' is not HOST:PORT"),
        ("cluster", "'auto', 'processes' or 'dask'"),
    ],
)
def test_contradicting_executor_is_refused(section: object, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        TextConfig(executor=section)


@pytest.mark.parametrize(
    "section",
    [
        {"scheduler": "host.internal:8786"},
        {"scheduler": "tls://[fe80::1]:8786", **TLS},
        {"scheduler": "tls://10.0.0.4:8786"},
        {"scheduler_file": "file", **TLS},
        {"dashboard": ":8787"},
    ],
)
def test_valid_executor_is_accepted(section: dict[str, str]) -> None:
    assert TextConfig(executor={"name": "dask", **section}).executor.name == "dask"


def test_refused_connection_is_spec_error(tmp_path: Path) -> None:
    """TLS without certificates: neither the section nor Dask's own configuration names them."""
    setting = PreparationSetting(data=TextConfig(), store=tmp_path, folder=tmp_path, block_tokens=1)
    cluster = ExistingCluster(ExecutorConfig(name="dask", scheduler="tls://127.0.0.1:8786"))
    task = PartTask(step="documents", number=0, part=Part(0, "part", 1, "text", ()), key="", size=1)
    with DaskExecutor(setting, cluster, print) as executor, pytest.raises(SpecError, match="cannot connect") as caught:
        list(executor.run([task], lambda *_: None))
    assert caught.value.facts["where"] == "tls://127.0.0.1:8786"


def test_meeting_file_of_killed_job_is_ignored(tmp_path: Path) -> None:
    """The setting changed between two starts: the file has another key, and its scheduler does not run."""
    cluster = OwnCluster(tmp_path, Node(), "another key", 0)
    try:
        cluster.start()
        meeting = tmp_path / "dask.json"
        assert asyncio.run(NodeWorkers(meeting, "key", 1).run()) == OTHER_TEXT
        stale = meeting.read_bytes()
    finally:
        cluster.close()
    meeting.write_bytes(stale)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(NodeWorkers(meeting, "key", 1).run(), 8))
    meeting.write_text(json.dumps({"key": "another key"}))
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(NodeWorkers(meeting, "key", 1).run(), 1))


def test_worker_with_another_text_is_refused(tmp_path: Path) -> None:
    """The content differs, or the size, or the file is missing; each with the size of the job's file."""
    path = tmp_path / "text.txt"
    path.write_text("one text\n")
    seen = {str(path): TextFile(size=9, sha256=file_sha256(path))}
    require_text(seen)
    path.write_text("two text\n")
    os.utime(path, (1, 1))
    with pytest.raises(DataError, match="the nodes do not see the same text") as caught:
        require_text(seen)
    assert caught.value.facts == {"file": str(path), "why": "its content differs from what the job sees"}
    path.unlink()
    with pytest.raises(DataError, match="the nodes do not see the same text"):
        require_text(seen)


@pytest.mark.long
def test_cluster_that_sees_another_text_is_refused(tmp_path: Path, existing: Existing) -> None:
    """The file that the job hashed had the same size, but another content."""
    path = tmp_path / "text.txt"
    path.write_text("one text\n")
    setting = PreparationSetting(data=TextConfig(text=[str(path)]), store=tmp_path, folder=tmp_path, block_tokens=1)
    part = Part(0, "part", 9, "text", (Piece(str(path)),), "line")
    text = {str(path): TextFile(size=9, sha256="0" * 64)}
    task = PartTask(step="documents", number=0, part=part, key="", size=9, text=text)
    cluster = ExistingCluster(ExecutorConfig(name="dask", scheduler_file=existing.file))
    with DaskExecutor(setting, cluster, print) as executor, pytest.raises(DataError, match="same text") as caught:
        list(executor.run([task], lambda *_: None))
    assert caught.value.facts["file"] == str(path)
    assert str(caught.value.facts["worker"]).startswith("tcp://127.0.0.1:")
    assert not list(tmp_path.glob("documents-*"))


def test_missing_scheduler_file_is_named(tmp_path: Path) -> None:
    cluster = ExistingCluster(ExecutorConfig(name="dask", scheduler_file=tmp_path / "scheduler.json"))
    assert cluster.describe() == f"the scheduler in {tmp_path / 'scheduler.json'}, which does not exist"


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("no-such-host.invalid", "cannot resolve MASTER_ADDR 'no-such-host.invalid'"),
        ("192.0.2.1", "MASTER_ADDR '192.0.2.1' is not an address of the first node"),
    ],
)
def test_wrong_master_addr_is_named(tmp_path: Path, host: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem) as caught:
        OwnCluster(tmp_path, Node(size=2, address=host), "key", 1)
    assert "MASTER_ADDR" in str(caught.value.fix)


def test_executor_is_no_part_of_the_result() -> None:
    """A store or a run with another executor is the same one."""
    one, other = TextConfig(), TextConfig(executor={"name": "dask", "scheduler": "tcp://host:1"})
    assert result_settings(one.model_dump(mode="json")) == result_settings(other.model_dump(mode="json"))


def test_late_writer_cannot_replace_file_of_its_successor(tmp_path: Path) -> None:
    """A frozen worker wakes up after another one has begun, or finished, the same file."""
    path = tmp_path / "file"
    frozen, successor = NewFile(path), NewFile(path)
    frozen.stream.write(b"half")
    with pytest.raises(OSError, match="another process writes the same file"):
        frozen.commit()
    frozen.discard()
    successor.stream.write(b"whole")
    successor.commit()
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"whole", [path])
    late = NewFile(path)
    late.discard()
    assert path.read_bytes() == b"whole"


def test_jobs_on_one_node_do_not_import_dask(text: list[str], tmp_path: Path) -> None:
    code = "import sys; from train_jobs.prepare import main; main(sys.argv[1:]); print('dask' in sys.modules)"
    words = command(text, tmp_path)[3:]
    assert finished([sys.executable, "-c", code, *words]).splitlines()[-1] == "False"
