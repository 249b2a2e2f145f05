"""A walk over the user's own code: which files are shipped, which are left out and why, and which can be neither."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from orchestrator.snapshot.entries import LeftOut
from orchestrator.snapshot.ignore import AML_IGNORE, GIT_IGNORE, IgnoreRules

COUNTED = 10_000  # files below one left-out folder; past that counting takes longer than it tells

# Left out whatever the ignore files say. They are no code themselves, and a client that finds one in what it uploads
# (azure-ai-ml does) applies it once more, to train_jobs too.
_NEVER = {
    **dict.fromkeys((".git", ".hg", ".svn"), "version control"),
    **dict.fromkeys((".venv",), "virtual environment"),
    **dict.fromkeys(("__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache"), "cache"),
    **dict.fromkeys((".nox", ".tox", "node_modules"), "installed packages"),
    **dict.fromkeys(("mlflow.db", "mlruns", "token-stores"), "outputs of runs"),
    **dict.fromkeys((AML_IGNORE, GIT_IGNORE), "ignore file"),
}
_BYTECODE = (".pyc", ".pyo")
# Folders known by what is in them, whatever they are called.
_KNOWN_BY = (
    ({"pyvenv.cfg"}, "virtual environment"),
    ({"conda-meta"}, "virtual environment"),
    ({"COMMIT.json"}, "outputs of runs"),
    ({"metrics.jsonl", "checkpoints"}, "outputs of runs"),
)


class Found(NamedTuple):
    """A file that is shipped."""

    path: str
    """Posix path in the folder; symlinks on the way keep their names."""
    size: int
    """Bytes."""
    target: str
    """Posix path in the folder of what the last symlink leads to; that of the file itself, where it is none."""


class Obstacle(NamedTuple):
    """Something that stops a submission."""

    path: str
    """Posix path in the folder."""
    what: str
    """What is wrong with it."""
    kind: Literal["entry", "name", "secret", "size", "text", "total"] = "entry"
    """What mends it: an ignore line, another name, for a secret also the word that it is none, higher limits."""
    line: int | None = None
    """In the file, from 1."""


class Walk:
    """The files of a folder, judged.

    Args:
        root: the folder, absolute and without symlinks.
        repository: root of the git repository that it lies in.
        apart: absolute path -> kind of what is no code, whatever the ignore files say; folders around the root are
            not meant.
        taken: names at the top that are not free.

    Attributes:
        found: what is shipped, in the order of the walk.
        left_out: what is not.
        obstacles: what can neither be shipped nor be left out unasked.
        ignore_files: names of those that were read.
    """

    def __init__(
        self, root: Path, *, repository: Path | None, apart: Mapping[Path, str], taken: frozenset[str]
    ) -> None:
        self._root, self._taken = root, taken
        self._apart = {path: kind for path, kind in apart.items() if not root.is_relative_to(path)}
        self.found: list[Found] = []
        self.left_out: list[LeftOut] = []
        self.obstacles: list[Obstacle] = []
        rules = IgnoreRules.of(root, repository)
        self.ignore_files = [file.name for file in reversed(rules.files)]
        self._folder(root, "", rules, ())

    def _folder(self, folder: Path, path: str, rules: IgnoreRules, around: tuple[Path, ...]) -> None:
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except PermissionError:
            self.obstacles.append(Obstacle(path or "./", "a folder that cannot be read", "entry" if path else "name"))
            return
        names = {entry.name for entry in entries}
        if path and (kind := next((kind for signs, kind in _KNOWN_BY if signs <= names), None)):
            self._leave(folder, path, kind)
            return
        if rules.nested and GIT_IGNORE in names and (folder / GIT_IGNORE).is_file():
            rules = rules.entering(folder, path)
            self.ignore_files.append(path + GIT_IGNORE)
        for entry in entries:
            if entry.is_symlink():
                self._link(entry, path + entry.name, rules, (*around, folder))
            else:
                self._entry(entry, path + entry.name, rules, (*around, folder))

    def _entry(self, entry: os.DirEntry[str], path: str, rules: IgnoreRules, around: tuple[Path, ...]) -> None:
        source = Path(entry.path)
        path += "/" if entry.is_dir(follow_symlinks=False) else ""
        if why := _never(entry.name) or self._apart.get(source) or rules.ignored_by(path):
            self._leave(source, path, why)
        else:
            target = "/".join(source.relative_to(self._root).parts)
            self._take(path, entry.stat(follow_symlinks=False), rules, around, target=target)

    def _link(self, entry: os.DirEntry[str], path: str, rules: IgnoreRules, around: tuple[Path, ...]) -> None:
        """A symlink is shipped as what it leads to, which must be there, and in the folder."""
        target = Path(os.path.realpath(entry.path))
        inside = target.relative_to(self._root).parts if target.is_relative_to(self._root) else None
        kinds = [*map(_never, (entry.name, *(inside or ()))), *map(self._apart.get, (target, *target.parents))]
        if why := next(filter(None, kinds), None) or rules.ignored_by(path):
            self._leave(None, path, why)
            return
        try:
            state = entry.stat()
        except OSError as problem:
            what = "leads to itself" if problem.errno == errno.ELOOP else f"leads to nothing: {target}"
            self.obstacles.append(Obstacle(path, f"a symlink that {what}"))
            return
        if inside is None:
            self.obstacles.append(Obstacle(path, f"a symlink that leaves the folder, to {target}"))
        elif target in around:
            self.obstacles.append(Obstacle(path, "a symlink to a folder that it lies in"))
        else:
            end = "/" if stat.S_ISDIR(state.st_mode) else ""
            self._take(path + end, state, rules, around, target="/".join(inside))

    def _take(
        self, path: str, state: os.stat_result, rules: IgnoreRules, around: tuple[Path, ...], *, target: str
    ) -> None:
        if path.rstrip("/") in self._taken:
            self.obstacles.append(Obstacle(path, "takes the place of what the code is shipped beside"))
        elif "\n" in path or not _is_utf8(path):
            self.obstacles.append(Obstacle(path, "a name of two lines, or not UTF-8; rename it", "name"))
        elif stat.S_ISDIR(state.st_mode):
            self._folder(self._root / target, path, rules, around)
        elif stat.S_ISREG(state.st_mode):
            self.found.append(Found(path, state.st_size, target))
        else:
            self._leave(None, path, "no file: a pipe, a socket or a device")

    def _leave(self, folder: Path | None, path: str, why: str) -> None:
        files, counted = _count(folder) if folder and path.endswith("/") else (1, True)
        if files:
            self.left_out.append(LeftOut(path=shown(path), why=why, files=files, counted=counted))


def shown(path: str) -> str:
    """A path as messages have it, on one line whatever is in it."""
    return path if path.isprintable() else ascii(path)[1:-1]


def _is_utf8(name: str) -> bool:
    return name == name.encode(errors="ignore").decode()


def _never(name: str) -> str | None:
    return _NEVER.get(name) or ("cache" if name.endswith(_BYTECODE) else None)


def _count(folder: Path) -> tuple[int, bool]:
    """Files below a folder, and whether that is all of them."""
    files = seen = 0
    pending = [str(folder)]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as listing:  # what may not be read is not counted
            for entry in listing:
                seen += 1
                if seen > COUNTED:
                    return files, False
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    files += 1
    return files, True
