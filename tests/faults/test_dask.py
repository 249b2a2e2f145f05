"""Faults of a preparation on Dask: each gives the same store, reads no source too often and leaves nothing over.

Workers, scheduler and client are real processes, killed or frozen by signals. An audit hook in the workers notes each
opened source and makes the tasks last, so that the faults hit running ones.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.prepare_jobs import command, finished, processes_with, start
from tests.unit.corpus.small_corpora import contents, sources

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
PARTS, WORKERS = 12, 4
SECONDS_OF_TASK = 2.0
MARK = "TEST_DASK_FAULTS"
HOOK = """
import errno, os, sys, threading, time

def hook(event, arguments):
    if event != "open" or "Dask-Default" not in threading.current_thread().name:
        return
    path, mode = str(arguments[0]), str(arguments[1])
    if path.startswith(os.environ["TEST_TEXT"]):
        with open(os.environ["TEST_READS"], "a") as stream:
            stream.write(f"{os.path.basename(path)}\\n")
    if "documents-" in path or path.startswith(os.environ["TEST_TEXT"]):
        time.sleep(float(os.environ["TEST_SECONDS"]))
    full = os.environ.get("TEST_FULL")
    if full and mode == "x" and ".arrow" in path and is_full(full):
        raise OSError(errno.ENOSPC, "No space left on device", path)

def is_full(flag):
    # the first worker that writes is the one whose disk is full
    try:
        with open(flag, "x") as stream:
            stream.write(str(os.getpid()))
    except FileExistsError:
        pass
    return open(flag).read() == str(os.getpid())

if "TEST_TEXT" in os.environ:
    sys.addaudithook(hook)
"""


@dataclass
class Scene:
    """A preparation on Dask with its processes."""

    text: list[str]
    folder: Path
    environ: dict[str, str]

    @property
    def words(self) -> list[str]:
        return command(self.text, self.folder, "data.executor=dask", f"data.workers={WORKERS}")

    def start(self) -> subprocess.Popen[str]:
        return start(self.words, **self.environ)

    def processes(self, word: str) -> list[int]:
        """Return the living processes of the scene with a word in their command line."""
        found = []
        for pid in processes_with(self.environ[MARK]):
            with suppress(OSError):
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "):
                    found.append(pid)
        return found

    @property
    def workers(self) -> list[int]:
        return self.processes("spawn_main")

    def reads(self) -> Counter[str]:
        """Return how often workers have opened each source."""
        path = Path(self.environ["TEST_READS"])
        return Counter(path.read_text().split() if path.exists() else [])

    def assert_completes(self, job: subprocess.Popen[str], expected: dict[str, bytes], deaths: int) -> str:
        """Assert that the job makes the expected store, with few reads, and that nothing remains."""
        out, err = job.communicate(timeout=900)
        assert job.returncode == 0, out + err
        assert contents(self.folder / "store") == expected
        assert not (self.folder / "store" / "parts").exists()
        reads = self.reads()
        assert len(reads) == PARTS
        assert max(reads.values()) <= 1 + deaths, reads
        self.assert_nothing_left()
        return out

    def assert_nothing_left(self) -> None:
        wait_for(lambda: not processes_with(self.environ[MARK]), what="the end of all processes", seconds=60)
        assert list(Path(self.environ["TMPDIR"]).iterdir()) == []
        assert [path.name for path in self.folder.rglob(".*")] == []


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return sources(tmp_path_factory.mktemp("text"), PARTS, documents=200)


@pytest.fixture(scope="module")
def expected(text: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of the store that this machine's processes make."""
    folder = tmp_path_factory.mktemp("expected")
    finished(command(text, folder))
    return contents(folder / "store")


@pytest.fixture
def scene(text: list[str], tmp_path: Path) -> Iterator[Scene]:
    for name in ("site", "scratch", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HOOK)
    environ = {
        MARK: f"{tmp_path.name}-{os.getpid()}",
        "TEST_TEXT": str(Path(text[0]).parent),
        "TEST_READS": str(tmp_path / "reads"),
        "TEST_SECONDS": str(SECONDS_OF_TASK),
        "TMPDIR": str(tmp_path / "scratch"),
        "PYTHONPATH": str(tmp_path / "site"),
    }
    yield Scene(text, tmp_path / "work", environ)
    for pid in processes_with(environ[MARK]):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_undisturbed_cluster_reads_each_source_once(scene: Scene, expected: dict[str, bytes]) -> None:
    scene.assert_completes(scene.start(), expected, deaths=0)


def test_workers_killed_again_and_again(scene: Scene, expected: dict[str, bytes]) -> None:
    job, deaths = scene.start(), 0
    while job.poll() is None and deaths < 6:
        if scene.reads() and (workers := scene.workers):
            with suppress(ProcessLookupError):
                os.kill(workers[deaths % len(workers)], signal.SIGKILL)
                deaths += 1
            time.sleep(4 * SECONDS_OF_TASK)  # a worker takes a few seconds to start again
        time.sleep(0.2)
    assert deaths >= 3
    scene.assert_completes(job, expected, deaths)


def test_killed_scheduler_is_started_again(scene: Scene, expected: dict[str, bytes]) -> None:
    job = scene.start()
    wait_for(lambda: len(scene.reads()) > WORKERS, what="the second round of tasks", seconds=200)
    (scheduler,) = scene.processes("dask_process scheduler")
    os.kill(scheduler, signal.SIGKILL)
    out = scene.assert_completes(job, expected, deaths=1)
    assert "the connection to the Dask scheduler is lost: connecting again" in out


@pytest.mark.parametrize("role", ["scheduler", "workers"])
def test_process_killed_before_first_task_is_started_again(scene: Scene, expected: dict[str, bytes], role: str) -> None:
    scene.environ["TEST_SECONDS"] = "0"
    job = scene.start()
    meeting = scene.folder / "store" / "parts" / "dask.json"
    wait_for(lambda: meeting.exists() and scene.processes("dask_process workers"), what="the cluster", seconds=200)
    (process,) = scene.processes(f"dask_process {role}")
    os.kill(process, signal.SIGKILL)
    assert not scene.reads()
    scene.assert_completes(job, expected, deaths=1)


def test_killed_client_ends_cluster_and_next_start_resumes(scene: Scene, expected: dict[str, bytes]) -> None:
    job = scene.start()
    records = scene.folder / "store" / "parts"
    wait_for(lambda: len(list(records.glob("documents-*.json"))) >= 2, what="two parts", seconds=200)
    job.kill()
    job.communicate()
    wait_for(lambda: not processes_with(scene.environ[MARK]), what="the end of all processes", seconds=60)
    assert list(Path(scene.environ["TMPDIR"]).iterdir()) == []
    out = scene.assert_completes(scene.start(), expected, deaths=1)
    assert "parts are done already" in out


def test_frozen_worker_is_replaced(scene: Scene, expected: dict[str, bytes]) -> None:
    scene.environ["DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"] = "5s"
    job = scene.start()
    wait_for(lambda: len(scene.reads()) > WORKERS, what="the second round of tasks", seconds=200)
    os.kill(scene.workers[0], signal.SIGSTOP)
    scene.assert_completes(job, expected, deaths=1)


def test_full_disk_of_one_worker_is_avoided(scene: Scene, expected: dict[str, bytes]) -> None:
    flag = scene.folder.parent / "full"
    scene.environ["TEST_FULL"] = str(flag)
    out = scene.assert_completes(scene.start(), expected, deaths=1)
    assert flag.exists()
    assert "the disk is full: on worker tls://127.0.0.1:" in out


def test_full_disk_of_every_worker_is_reported(text: list[str], tmp_path: Path) -> None:
    from tests.conftest import tmpfs

    with tmpfs(tmp_path / "disk", "300k") as disk:
        job = start(command(text, tmp_path, "data.executor=dask", "data.workers=2", f"store={disk / 'store'}"))
        out, err = job.communicate(timeout=400)
        assert job.returncode == 1, out + err
        assert err.startswith("error[storage]: cannot write the token store: the disk is full"), err
        assert "Traceback" not in err
