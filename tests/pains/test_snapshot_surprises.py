"""`.git` or data uploaded, files silently skipped, uncommitted code not shipped: reports of users of other tools.

skypilot#1485 #1600 #6513 #1599 #3948 #541 #4038; azure-docs#26076 #78359 #41134; NeMo-Run#40 #47 #211
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator import Orchestrator, Plan
from orchestrator.support.errors import SpecError
from tests.conftest import Console, write_corpus

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a realistic project: a repository, an environment, data, caches and uncommitted work."""
    root = tmp_path / "project"
    for name in (
        "my_pretrain.py",
        "old.py",
        "src/tool.py",
        ".venv/pyvenv.cfg",
        ".venv/lib/x.py",
        "src/__pycache__/x.pyc",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name}\n")
    (root / "corpus").mkdir()
    write_corpus(root / "corpus" / "a.txt")
    (root / "raw").mkdir()
    (root / "raw" / "large.bin").write_bytes(b"\0" * 20_000_000)
    (root / ".gitignore").write_text("/raw/\n.venv/\n")
    for words in (
        ["init"],
        ["add", "my_pretrain.py", "old.py"],
        ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-mx"],
    ):
        subprocess.run(["git", *words], cwd=root, capture_output=True, check=True)
    (root / "my_pretrain.py").write_text("# changed since\n")
    (root / "old.py").unlink()
    return root


def plan(project: Path) -> Plan:
    given = {"code.folder": str(project), "code.entry": "my_pretrain", "data.text": [str(project / "corpus")]}
    return Orchestrator(home=project.parent / "home", environ={}).plan(overrides=given)


def test_snapshot_excludes_git_data_and_environments(project: Path, tmp_path: Path) -> None:
    plan(project).snapshot.write(tmp_path / "run")
    arrived = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {path for path in arrived if not path.startswith("train_jobs/")} == {"my_pretrain.py", "src/tool.py"}


def test_uncommitted_code_is_shipped_and_reported(project: Path, tmp_path: Path) -> None:
    made = plan(project)
    made.snapshot.write(tmp_path / "run")
    assert (tmp_path / "run" / "my_pretrain.py").read_text() == "# changed since\n"
    assert made.snapshot.git is not None
    assert made.snapshot.git.uncommitted == 3  # changed, deleted, and src/tool.py, which git does not track
    assert ", dirty: 3 files not committed" in " ".join(made.summary().split())


def test_excluded_files_are_reported(project: Path) -> None:
    console = Console(home=project.parent / "home", cwd=project.parent)
    words = ["plan", "pretrain", "--code", "project", "--set", "code.entry=my_pretrain", "--data", "project/corpus"]
    done = console(*words)
    assert done.code == 0, done.err
    text = " ".join(done.out.split())
    for expected in (
        "ignoring .gitignore",
        ".venv/ 2 (virtual environment)",
        "corpus/ 1 (data)",
        "raw/ 1 (.gitignore)",
    ):
        assert expected in text
    document = console(*words, "-o", "json").json["plan"]["snapshot"]
    left_out = plan(project).snapshot.left_out
    assert document["left_out"]["files"] == sum(entry.files for entry in left_out)
    assert {".git/", ".venv/", "raw/", "corpus/"} <= {entry.path for entry in left_out}


def test_large_file_is_refused_by_name(project: Path) -> None:
    (project / ".gitignore").write_text(".venv/\n")
    with pytest.raises(SpecError) as caught:
        plan(project)
    assert caught.value.problems == ["raw/large.bin: 20 MB, over code.largest_file_mb (10)"]
    subprocess.run(["/bin/sh", "-c", caught.value.fix or ""], check=True)
    assert plan(project).name.startswith("pretrain-tiny-")
