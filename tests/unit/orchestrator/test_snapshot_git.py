"""Git facts of the code, from real repositories of every kind, and where git fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator.snapshot import GitFacts, take_snapshot
from orchestrator.snapshot.git import git_facts
from orchestrator.specs.job import CodeSpec

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *words: str) -> str:
    """Run git as a user without any settings."""
    who = {
        f"GIT_{role}_{what}": "someone@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    environ = {**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-c", "init.defaultBranch=main", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Create a repository with a commit of two files, one of them in `code`."""
    root = tmp_path / "repository"
    (root / "code").mkdir(parents=True)
    (root / "README.md").write_text("read me\n")
    (root / "code" / "train.py").write_text("one\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "first")
    return root


def test_clean_folder_has_its_commit(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    facts = git_facts(repository / "code", ["train.py"])
    assert facts == GitFacts(commit=commit, branch="main", uncommitted=0)
    assert (facts.dirty, facts.label) == (False, commit)


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ("echo two > code/train.py", 1),
        ("echo two > code/train.py; git add code", 1),
        ("rm code/train.py", 1),
        ("git rm --quiet --cached code/train.py", 1),
        ("git rm --quiet code/train.py; mkdir code", 1),
        ("echo x > code/new.py", 1),
        ("echo x > code/new.py; git add code/new.py", 1),
        ("mkdir code/sub; echo x > code/sub/new.py; rm code/train.py", 2),
        ("git mv code/train.py code/new.py", 2),
        ("echo x > README.md; echo x > NEWS.md", 0),
        ("echo x > code/ignored.log", 0),
        ("git update-index --chmod=+x code/train.py", 1),
    ],
)
def test_uncommitted_changes_make_the_tree_dirty(repository: Path, change: str, count: int) -> None:
    subprocess.run(["/bin/sh", "-c", change], cwd=repository, check=True)
    code = repository / "code"
    shipped = [str(path.relative_to(code)) for path in code.rglob("*.py")]
    facts = git_facts(code, shipped)
    assert facts is not None
    assert (facts.uncommitted, facts.dirty) == (count, count > 0)
    assert facts.label == git(repository, "rev-parse", "HEAD") + ("+dirty" if count else "")


def test_shipped_files_ignored_by_git_are_dirty(repository: Path) -> None:
    (repository / ".gitignore").write_text("*.cfg\n")
    (repository / "code" / ".amlignore").write_text("# nothing\n")
    (repository / "code" / "a.cfg").write_text("x\n")
    snapshot = take_snapshot(code=CodeSpec(folder=repository / "code"))
    assert snapshot.git is not None
    assert snapshot.git.uncommitted == 1


def test_git_follows_links_and_submodules(repository: Path, tmp_path: Path) -> None:
    code = repository / "code"
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.py").write_text("x\n")
    git(other, "init", "--quiet")
    git(other, "add", ".")
    git(other, "commit", "--quiet", "-m", "other")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "code/vendor")
    (code / "sub").mkdir()
    (code / "sub" / "y.py").write_text("y\n")
    (code / "link").symlink_to("sub")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "second")
    facts = git_facts(code, ["train.py", "vendor/x.py", "sub/y.py", "link/y.py"])
    assert facts is not None
    assert facts.uncommitted == 0


def test_detached_head_has_no_branch(repository: Path) -> None:
    git(repository, "checkout", "--quiet", "--detach")
    facts = git_facts(repository, [])
    assert facts is not None
    assert (facts.branch, facts.commit) == (None, git(repository, "rev-parse", "HEAD"))


def test_fresh_repository_has_no_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "train.py").write_text("one\n")
    facts = git_facts(tmp_path, ["train.py"])
    assert facts == GitFacts(commit=None, branch="main", uncommitted=1)
    assert (facts.dirty, facts.label) == (True, None)


def test_worktree_has_its_own_branch(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "--quiet", "-b", "side", str(tmp_path / "side"))
    facts = git_facts(tmp_path / "side" / "code", ["train.py"])
    assert facts is not None
    assert (facts.branch, facts.uncommitted) == ("side", 0)


def test_folder_outside_of_repositories_has_no_facts(tmp_path: Path) -> None:
    assert git_facts(tmp_path, ["train.py"]) is None


def test_package_in_project_not_part_of_repository(repository: Path) -> None:
    package = repository / ".venv" / "lib" / "train_jobs"
    package.mkdir(parents=True)
    (package / "pretrain.py").write_text("x\n")
    assert take_snapshot(package).git is None
    git(repository, "add", "--force", ".venv")
    facts = take_snapshot(package).git
    assert facts is not None
    assert facts.uncommitted == 1


def test_user_folder_decides_and_package_shown_too(repository: Path, tmp_path: Path) -> None:
    package = repository / "code"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_text("x\n")
    snapshot = take_snapshot(package, code=CodeSpec(folder=tmp_path / "mine"))
    assert snapshot.git is None
    assert snapshot.package_git == take_snapshot(package).git
    document = snapshot.summary()
    assert document["git"] is None
    assert document["package_git"]["commit"] == git(repository, "rev-parse", "HEAD")
    assert document["package_git"]["dirty"] is False


def test_repository_of_hook_not_taken_for_folder(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "--quiet", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other" / ".git" / "index"))
    facts = git_facts(repository, ["README.md", "code/train.py"])
    monkeypatch.undo()
    assert facts == GitFacts(commit=git(repository, "rev-parse", "HEAD"), branch="main", uncommitted=0)


def test_reading_facts_does_not_change_the_repository(repository: Path) -> None:
    os.utime(repository / "code" / "train.py", (1, 1))  # a plain `git status` would write this to the index
    before = (repository / ".git" / "index").read_bytes()
    assert git_facts(repository, []) is not None
    assert (repository / ".git" / "index").read_bytes() == before


def test_missing_git_is_reported_in_the_facts(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = git_facts(repository, [])
    assert facts == GitFacts(problem="git is not installed")
    assert (facts.dirty, facts.label) == (None, None)
    assert facts.summary()["dirty"] is None


def test_damaged_repository_is_reported_with_gits_message(repository: Path) -> None:
    (repository / ".git" / "HEAD").write_text("nonsense\n")
    facts = git_facts(repository, [])
    assert facts is not None
    assert facts.problem is not None
    assert facts.problem.startswith("not a git repository")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a repository")
def test_repository_of_another_owner_is_reported(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    for path in (repository, repository / ".git"):
        os.chown(path, 12345, 12345)
    facts = git_facts(repository / "code", [])
    assert facts is not None
    assert facts.problem is not None
    assert "dubious ownership" in facts.problem


def test_hanging_git_is_killed_with_its_children(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    (tmp_path / "git").write_text(f"#!/bin/sh\nsleep 1000 & echo $! >> {pids}; wait\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    facts = git_facts(repository, [], seconds=0.5)
    assert facts == GitFacts(problem="git did not answer within 0.5 s")
    for pid in map(int, pids.read_text().split()):
        assert has_ended(pid)


def has_ended(pid: int, seconds: float = 30) -> bool:
    """Return whether a process ends in time: on a busy machine, a killed one stays for a moment."""
    status, until = Path(f"/proc/{pid}/stat"), time.monotonic() + seconds
    while status.exists() and status.read_text().split()[2] != "Z":
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_merge_conflicts_count_each_file_once(repository: Path) -> None:
    for branch in ("side", "main"):
        git(repository, "checkout", "--quiet", *(["-b"] if branch == "side" else []), branch)
        (repository / "code" / "train.py").write_text(f"{branch}\n")
        git(repository, "commit", "--quiet", "-a", "-m", branch)
    with pytest.raises(subprocess.CalledProcessError):
        git(repository, "merge", "--quiet", "side")
    facts = git_facts(repository / "code", ["train.py"])
    assert facts is not None
    assert facts.uncommitted == 1


def test_remote_has_no_password(repository: Path) -> None:
    git(repository, "remote", "add", "origin", "https://me:token@example.org/bert.git")
    facts = git_facts(repository / "code", ["train.py"])
    assert facts is not None
    assert facts.remote == "https://example.org/bert.git"
    git(repository, "remote", "add", "fork", "git@example.org:fork.git")
    git(repository, "config", "branch.main.remote", "fork")
    other = git_facts(repository / "code", ["train.py"])
    assert other is not None
    assert other.remote == "git@example.org:fork.git"
