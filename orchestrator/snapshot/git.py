"""What git knows of a folder: the commit, the branch, and whether what is shipped is what is committed.

git itself is asked where it is installed: two processes at once, for a few milliseconds, and nothing of the repository
is changed. What it says is no part of a digest.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from train_jobs.config.base import Config

if TYPE_CHECKING:
    from subprocess import Popen

GIT_SECONDS = 10.0  # enough for a million files on a slow disk; most repositories answer in a hundredth of one
# What git sets for a hook is about the hook's repository, whatever folder is asked about.
_OF_HOOKS = ("GIT_COMMON_DIR", "GIT_DIR", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_WORK_TREE")


class GitFacts(Config):
    """The state of a folder in its repository."""

    commit: str | None = None
    """Full hash; None: nothing is committed yet, or git could not tell."""
    branch: str | None = None
    """None: a detached HEAD, or git could not tell."""
    uncommitted: int | None = None
    """Files of the folder that are not as in the commit, and shipped ones that git does not track."""
    problem: str | None = None
    """Why git could not tell."""

    @property
    def dirty(self) -> bool | None:
        """Whether the commit alone would give other code; None: git could not tell."""
        return None if self.uncommitted is None else self.uncommitted > 0

    @property
    def label(self) -> str | None:
        """The commit, with `+dirty` where it is not all; None without a commit."""
        return f"{self.commit}+dirty" if self.commit and self.dirty else self.commit

    def summary(self) -> dict[str, Any]:
        """The facts, and whether they mean that the tree is dirty, as JSON has them."""
        return {**self.model_dump(), "dirty": self.dirty}


class _GitError(Exception):
    """git could not tell; the words are for the user."""


def repository_of(folder: Path) -> Path | None:
    """Root of the git repository that a folder lies in."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)


def git_facts(folder: Path, shipped: Iterable[str], *, guest: bool = False) -> GitFacts | None:
    """Asks git about a folder.

    Args:
        folder: absolute, without symlinks.
        shipped: posix paths of those of its files that are shipped.
        guest: the folder may lie in somebody else's repository, as an installed package does in a project's `.venv`;
            one of which git tracks nothing is then in none.

    Returns:
        None outside of any repository.
    """
    repository = repository_of(folder)
    if repository is None:
        return None
    git = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder)]
    status = [*git, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=no", "--no-renames", "--", "."]
    try:
        lines, tracked = _answers(status, [*git, "ls-files", "-z"])
    except _GitError as problem:
        return GitFacts(problem=str(problem))
    if guest and not tracked:
        return None
    heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# "))
    commit, branch = heads["branch.oid"], heads["branch.head"]
    # porcelain v2: eight words, then the path; of an unmerged file two hashes more, and it is tracked in any case
    changed = {line.split(" ", 8)[-1] for line in lines if line[0] in "1u"}
    known, prefix = set(tracked), folder.relative_to(repository)
    untracked = {str(prefix / path) for path in shipped if not _tracked(path, known)}
    return GitFacts(
        commit=None if commit == "(initial)" else commit,
        branch=None if branch == "(detached)" else branch,
        uncommitted=len(changed | untracked),
    )


def _tracked(path: str, known: set[str]) -> bool:
    """Whether git tracks a file, or what it lies in: of a symlink and of a submodule git knows the folder alone."""
    return path in known or any(str(parent) in known for parent in PurePosixPath(path).parents)


def _answers(*commands: list[str]) -> list[list[str]]:
    """What each command prints, split at its NULs; they run side by side.

    Raises:
        _GitError: one cannot be started, fails, or takes too long.
    """
    import subprocess  # a plan outside of repositories needs none

    asked: list[Popen[bytes]] = []
    try:
        asked.extend(map(_start, commands))
        answers = [process.communicate(timeout=GIT_SECONDS) for process in asked]
    except FileNotFoundError:
        raise _GitError("git is not installed") from None
    except OSError as problem:
        raise _GitError(f"git cannot be started: {problem.strerror}") from None
    except subprocess.TimeoutExpired:
        raise _GitError(f"git did not answer within {GIT_SECONDS:g} s") from None
    finally:
        for process in asked:
            _end(process)
    for process, (_, words) in zip(asked, answers, strict=True):
        if process.returncode:
            raise _GitError(os.fsdecode(words).partition("\n")[0].removeprefix("fatal: "))
    return [os.fsdecode(output).split("\0")[:-1] for output, _ in answers]


def _start(command: list[str]) -> Popen[bytes]:
    import subprocess

    environ = {key: value for key, value in os.environ.items() if key not in _OF_HOOKS}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environ, "LC_ALL": "C"},
        start_new_session=True,  # so that what git itself starts, a filter or a pager, ends with it
    )


def _end(process: Popen[bytes]) -> None:
    with process:  # closes its pipes and waits for it
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
