"""State of a folder in git: the commit, the branch, and whether the shipped files are the committed ones.

Three git processes run side by side for a few milliseconds, if git is installed, and change nothing in the repository.
The result is not part of any digest.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from train_jobs.config.fields import Config

if TYPE_CHECKING:
    from subprocess import Popen

# git sets these for a hook: they name the hook's repository, whatever folder a command is for.
_HOOK_VARIABLES = ("GIT_COMMON_DIR", "GIT_DIR", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_WORK_TREE")


class GitFacts(Config):
    """The state of a folder in its repository."""

    commit: str | None = None
    """Full hash; None: nothing is committed yet, or git failed."""
    branch: str | None = None
    """None: a detached HEAD, or git failed."""
    uncommitted: int | None = None
    """Files of the folder that differ from the commit, and shipped ones that git does not track."""
    remote: str | None = None
    """Address of the remote repository, without a password; None: it has none."""
    problem: str | None = None
    """Error of git."""

    @property
    def dirty(self) -> bool | None:
        """Whether the code differs from the commit; None: git failed."""
        return None if self.uncommitted is None else self.uncommitted > 0

    @property
    def label(self) -> str | None:
        """The commit, with `+dirty` if the code differs from it; None without a commit."""
        return f"{self.commit}+dirty" if self.commit and self.dirty else self.commit

    def summary(self) -> dict[str, Any]:
        """Return the facts with `dirty`, for JSON."""
        return {**self.model_dump(), "dirty": self.dirty}


class _GitError(Exception):
    """git failed; the message is for the user."""


def repository_of(folder: Path) -> Path | None:
    """Return the root of the git repository that contains a folder."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)


def git_facts(folder: Path, shipped: Iterable[str], *, guest: bool = False, seconds: float = 10.0) -> GitFacts | None:
    """Return the state of a folder in git, None outside of any repository.

    Args:
        folder: absolute, without symlinks.
        shipped: posix paths of its files that are shipped.
        guest: the folder may be inside another project's repository, as an installed package in its `.venv` is: it
            counts as outside if git tracks none of its files.
        seconds: time limit of git; a million files on a slow disk need less.
    """
    repository = repository_of(folder)
    if repository is None:
        return None
    # Without optional locks, `status` does not rewrite the index, which would make a `git commit` of the user fail at
    # this moment. Without fsmonitor, git starts no daemon that outlives this command.
    git = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder)]
    status = [*git, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=no", "--no-renames", "--", "."]
    try:
        lines, tracked, config = _run([status, [*git, "ls-files", "-z"], [*git, "config", "-z", "--list"]], seconds)
    except _GitError as problem:
        return GitFacts(problem=str(problem))
    if guest and not tracked:
        return None
    heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# "))
    commit, branch = heads["branch.oid"], heads["branch.head"]
    # porcelain v2: eight fields, then the path; an unmerged file has two more hashes, and is tracked in any case
    changed = {line.split(" ", 8)[-1] for line in lines if line[0] in "1u"}
    known, prefix = set(tracked), folder.relative_to(repository)
    # of symlinks and submodules git lists only the folder
    lineages = {path: {path, *map(str, PurePosixPath(path).parents)} for path in shipped}
    untracked = {str(prefix / path) for path, lineage in lineages.items() if not lineage & known}
    return GitFacts(
        commit=None if commit == "(initial)" else commit,
        branch=None if branch == "(detached)" else branch,
        uncommitted=len(changed | untracked),
        remote=_remote(config, branch),
    )


def _remote(config: list[str], branch: str) -> str | None:
    """Return the address of a branch's remote, or of `origin`, without user name and password.

    Args:
        config: entries of `git config -z --list`: the name, a line end, the value.
        branch: name of the branch.
    """
    known = dict(entry.split("\n", 1) for entry in config if "\n" in entry)
    name = known.get(f"branch.{branch}.remote", "origin")
    address = known.get(f"remote.{name}.url", known.get("remote.origin.url"))
    return None if address is None else re.sub(r"(?<=://)[^/@]*@", "", address)


def _run(commands: list[list[str]], seconds: float) -> list[list[str]]:
    """Return the output of each command, split at its NULs; they run side by side.

    Raises:
        _GitError: one cannot be started, fails, or takes too long.
    """
    import subprocess  # a plan outside of repositories does not need it

    environ = {key: value for key, value in os.environ.items() if key not in _HOOK_VARIABLES}
    started: list[Popen[bytes]] = []
    try:
        started.extend(
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**environ, "LC_ALL": "C"},  # the error becomes part of a message, which is in English
                start_new_session=True,  # filters and pagers that git starts end with it
            )
            for command in commands
        )
        answers = [process.communicate(timeout=seconds) for process in started]
    except FileNotFoundError:
        raise _GitError("git is not installed") from None
    except OSError as problem:
        raise _GitError(f"git cannot be started: {problem.strerror}") from None
    except subprocess.TimeoutExpired:
        raise _GitError(f"git did not answer within {seconds:g} s") from None
    finally:
        for process in started:
            with process:  # closes its pipes and waits for it
                if process.poll() is None:  # after a timeout; the group includes filters that hold the pipes open
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
    for process, (_, error) in zip(started, answers, strict=True):
        if process.returncode:
            raise _GitError(os.fsdecode(error).partition("\n")[0].removeprefix("fatal: "))
    return [os.fsdecode(output).split("\0")[:-1] for output, _ in answers]
