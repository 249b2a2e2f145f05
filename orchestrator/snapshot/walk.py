"""A walk over the user's code: which files are shipped, which are left out and why, and which are obstacles.

Ignore files are read as git reads them: `.amlignore` at the root of the code, else every `.gitignore`. Azure's
`.amlignore` is one file, at the root. Without it, `.gitignore` files apply as in git: those of the folders
above the code up to the repository's root, the code's own and nested ones; the nearest decides.

pathspec interprets one line. Several lines are combined here as git does, one entry at a time: the last line that names
the entry decides, and entries of an ignored folder are never looked at. (pathspec's own `GitIgnoreSpec.match_file`
judges a file by all folders of its path together; it and git differ where one line re-includes what another ignores.)
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from orchestrator.support.errors import SpecError
from train_jobs.config.errors import in_shell
from train_jobs.config.fields import Config

AML_IGNORE, GIT_IGNORE = ".amlignore", ".gitignore"
# Left out whatever the ignore files contain. Ignore files too: azure-ai-ml would apply one among the uploaded files
# again, to train_jobs as well.
_NEVER = {
    **dict.fromkeys((".git", ".hg", ".svn"), "version control"),
    ".venv": "virtual environment",
    **dict.fromkeys(("__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache"), "cache"),
    **dict.fromkeys((".nox", ".tox", "node_modules"), "installed packages"),
    **dict.fromkeys(("mlflow.db", "mlruns", "token-stores"), "outputs of runs"),
    **dict.fromkeys((AML_IGNORE, GIT_IGNORE), "ignore file"),
}
_BYTECODE = (".pyc", ".pyo")  # also outside of __pycache__
# Folders recognised by their content, whatever their name.
_KNOWN_BY = (
    ({"pyvenv.cfg"}, "virtual environment"),
    ({"conda-meta"}, "virtual environment"),
    ({"COMMIT.json"}, "outputs of runs"),
    ({"metrics.jsonl", "checkpoints"}, "outputs of runs"),
)
_MOST_LINES, _MOST_CHARACTERS = 5_000, 1 << 20  # of an ignore file: 2 s
_CLASSES = {  # POSIX classes, which git accepts in brackets and Python's `re` does not
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}


class SnapshotFile(Config):
    """One file of a snapshot."""

    path: str
    """Posix path in the folder that the run is started in."""
    size: int
    """Bytes."""
    sha256: str
    """Hash of its content, in hex."""

    @classmethod
    def from_content(cls, path: str, content: bytes) -> SnapshotFile:
        """Return the entry of a file with this content."""
        return cls(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest())


class LeftOut(Config):
    """A file or folder of the user's code that is not shipped."""

    path: str
    """Posix path in the user's folder; that of a folder ends with a slash."""
    why: str
    """The ignore file that names it, or its kind."""
    files: int
    """Number of files: 1, or those below a folder."""
    counted: bool = True
    """False: counting stopped at `files`; there are more."""


@dataclass(frozen=True)
class _Line:
    ignores: bool  # False: `!pattern` re-includes what a line above it ignores
    by_name: bool  # a pattern without a slash names entries in any folder
    regex: re.Pattern[str]

    def matches(self, path: str) -> bool:
        """Return whether the line names a path; that of a folder ends with a slash."""
        if self.by_name:
            return self.regex.search(path[path.rfind("/", 0, -1) + 1 :]) is not None
        return self.regex.fullmatch(path) is not None


@dataclass(frozen=True)
class _IgnoreFile:
    name: str  # as the plan shows it
    base: str  # path of its folder below the outermost one: "", or "sub/"
    lines: tuple[_Line, ...]  # the last one first


@dataclass(frozen=True)
class IgnoreRules:
    """The ignore files that apply in one folder of the code."""

    outer: str
    """Path of the code below the outermost folder whose ignore file applies: "", or "experiments/"."""
    nested: bool
    """Whether a `.gitignore` in a folder of the code applies too."""
    files: tuple[_IgnoreFile, ...] = ()
    """The nearest first."""

    @classmethod
    def load(cls, root: Path, repository: Path | None) -> IgnoreRules:
        """Return the rules at the root of the code, which may be in a git repository."""
        if (root / AML_IGNORE).is_file():
            # alone, as for Azure ML's own tools: it may re-include data that .gitignore excludes
            return cls(outer="", nested=False)._with(root / AML_IGNORE, AML_IGNORE, "")
        top = repository or root
        parts = root.relative_to(top).parts
        rules = cls(outer="".join(f"{part}/" for part in parts), nested=True)
        for depth in range(len(parts)):  # the root's own is read when the walk enters the root
            above = top.joinpath(*parts[:depth], GIT_IGNORE)
            if above.is_file():
                rules = rules._with(above, os.path.relpath(above, root), "".join(f"{part}/" for part in parts[:depth]))
        return rules

    def entering(self, folder: Path, path: str) -> IgnoreRules:
        """Return the rules inside a folder that has a `.gitignore`; its path in the code ends with a slash."""
        return self._with(folder / GIT_IGNORE, path + GIT_IGNORE, self.outer + path)

    def ignored_by(self, path: str) -> str | None:
        """Return the name of the file that ignores an entry, None if none does; a folder's path ends with a slash."""
        for file in self.files:
            below = (self.outer + path)[len(file.base) :]
            for line in file.lines:
                if line.matches(below):
                    return file.name if line.ignores else None
        return None

    def _with(self, path: Path, name: str, base: str) -> IgnoreRules:
        # editors on Windows begin the file with a byte order mark; names on Linux may be any bytes
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            written = stream.read(_MOST_CHARACTERS + 1).replace("\r\n", "\n").split("\n")
        if len(written) > _MOST_LINES or sum(map(len, written)) + len(written) > _MOST_CHARACTERS:
            raise SpecError(
                f"cannot read {path}: more than {_MOST_LINES:,} lines",
                fix=f"name folders instead of files in {in_shell(path)}",
            )
        lines = tuple(filter(None, map(_parse, reversed(written))))
        return replace(self, files=(_IgnoreFile(name, base, lines), *self.files))


def _parse(text: str) -> _Line | None:
    from pathspec import GitIgnoreSpec  # takes 30 ms; only code with an ignore file needs it

    text = text if text.endswith("\\ ") else text.rstrip()  # git drops trailing spaces unless one is escaped
    negation, body = ("!", text[1:]) if text.startswith("!") else ("", text)
    # pathspec reads some forms of `**` as the folder itself or as any part of a path: rewrite them to name entries.
    body = re.sub(r"/\*\*(/?)$", r"/**/*\1", body)
    body = re.sub(r"^/?(?:\*\*/)+([^/]+/?)$", r"\1", body)
    body = re.sub(r"\[:(\w+):\]", lambda found: _CLASSES.get(found[1], found[0]), body)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # `[[]`, from re
            pattern = next(iter(GitIgnoreSpec.from_lines([negation + body]).patterns), None)
    except (ValueError, re.error):  # re.error: `[z-a]`
        return None  # an invalid line; git skips it too
    if pattern is None or pattern.include is None or pattern.regex is None:
        return None  # a comment, or blank
    return _Line(pattern.include, by_name="/" not in body[:-1], regex=_without_backtracking(pattern.regex.pattern))


_STARS = re.compile(r"(?:\[\^/\]\*)+")  # `*` in pathspec's regular expressions
_CHUNK = r"(?:\(\?!/\)|\\.|\[(?:\\.|[^\]\\])+\](?!\*)|[^]\\()\[|^$/*])+"  # part of a name without `*`
_NEGATED = re.compile(r"\[\^(?!/\])")  # pathspec lets it match a slash, git does not
_STAR_BEFORE_STAR = re.compile(rf"\[\^/\]\*({_CHUNK})(?=\[\^/\]\*)")
_FOLDERS_BEFORE_FOLDERS = re.compile(r"\(\?:/\.\+\)\?((?:(?!\(\?[:P]).)+)(?=\(\?:/\.\+\)\?)")


def _without_backtracking(regex: str) -> re.Pattern[str]:
    """Compile a regular expression of pathspec so that a name takes time linear in each wildcard.

    Where another wildcard follows, the first match of what is between them is as good as any later one, so an atomic
    group may forget the others. With all of them, `*a*a*a*a*b` takes hours for a name of 255 letters a.
    """
    regex = _NEGATED.sub("(?!/)[^", _STARS.sub("[^/]*", regex))
    regex = _STAR_BEFORE_STAR.sub(r"(?>[^/]*?\1)", regex)
    return re.compile(_FOLDERS_BEFORE_FOLDERS.sub(r"(?>(?:/.+?)??\1(?=/))", regex))


class ShippedFile(NamedTuple):
    """A file that is shipped."""

    path: str
    """Posix path in the folder; symlinks in it are not resolved."""
    size: int
    """Bytes."""
    target: str
    """Posix path in the folder with all symlinks resolved."""


class Obstacle(NamedTuple):
    """Something that stops a submission."""

    path: str
    """Posix path in the folder."""
    what: str
    """Problem, in words."""
    kind: Literal["entry", "name", "secret", "size", "text", "total"] = "entry"
    """What fixes it: an ignore line, another name, for a secret also permission to ship it, or higher limits."""
    line: int | None = None
    """Line in the file, from 1."""


class Walk:
    """Walk over a folder that sorts its files into shipped ones, left-out ones and obstacles.

    Args:
        root: the folder, absolute and without symlinks.
        repository: root of the git repository that contains it.
        excluded: absolute path -> kind of an entry that is never code, whatever the ignore files contain, such as the
            home folder. Folders that contain the root have no effect.
        reserved: names that are not available at the top.

    Attributes:
        found: files to ship, in the order of the walk.
        left_out: entries that are not shipped.
        obstacles: entries that can neither be shipped nor silently be left out.
        ignore_files: names of the ignore files that were read.
    """

    most_counted: ClassVar[int] = 10_000
    """Files below one left-out folder that are counted; counting more takes longer than it is worth."""

    def __init__(
        self, root: Path, *, repository: Path | None, excluded: Mapping[Path, str], reserved: frozenset[str]
    ) -> None:
        self._root, self._reserved = root, reserved
        self._excluded = {path: kind for path, kind in excluded.items() if not root.is_relative_to(path)}
        self.found: list[ShippedFile] = []
        self.left_out: list[LeftOut] = []
        self.obstacles: list[Obstacle] = []
        rules = IgnoreRules.load(root, repository)
        self.ignore_files = [file.name for file in reversed(rules.files)]
        self._rules = {root: self._inside(root, "", rules)}
        self._folder(root, "", rules, ())

    def _folder(self, folder: Path, path: str, rules: IgnoreRules, ancestors: tuple[Path, ...]) -> None:
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)  # the order of scandir differs between machines
        except PermissionError:
            self.obstacles.append(Obstacle(path or "./", "a folder that cannot be read", "entry" if path else "name"))
            return
        names = {entry.name for entry in entries}
        # not the root itself: the user named that folder explicitly
        if path and (kind := next((kind for signs, kind in _KNOWN_BY if signs <= names), None)):
            self._leave_out(folder, path, kind)
            return
        if (inside := self._inside(folder, path, rules)) is not rules:
            self.ignore_files.append(path + GIT_IGNORE)
        for entry in entries:
            if entry.is_symlink():
                self._link(entry, path + entry.name, inside, (*ancestors, folder))
            else:
                self._entry(entry, path + entry.name, inside, (*ancestors, folder))

    @staticmethod
    def _inside(folder: Path, path: str, rules: IgnoreRules) -> IgnoreRules:
        """Return the rules inside a folder, given those around it."""
        return rules.entering(folder, path) if rules.nested and (folder / GIT_IGNORE).is_file() else rules

    def _rules_in(self, folder: Path) -> IgnoreRules:
        """Return the rules inside a folder of the code by its real path, whatever link led to it."""
        if (known := self._rules.get(folder)) is None:
            path = "".join(f"{part}/" for part in folder.relative_to(self._root).parts)
            known = self._rules[folder] = self._inside(folder, path, self._rules_in(folder.parent))
        return known

    def _target_ignored_by(self, target: Path) -> str | None:
        """Return the name of the file that ignores what a link led to, or a folder above it; None if none does."""
        path = ""
        for folder in reversed([target, *target.parents]):
            if folder.is_relative_to(self._root) and folder != self._root:
                path += folder.name + ("/" if folder.is_dir() else "")
                if why := self._rules_in(folder.parent).ignored_by(path):
                    return why
        return None

    def _entry(self, entry: os.DirEntry[str], path: str, rules: IgnoreRules, ancestors: tuple[Path, ...]) -> None:
        source = Path(entry.path)
        path += "/" if entry.is_dir(follow_symlinks=False) else ""
        target = "/".join(source.relative_to(self._root).parts)
        why = _never(entry.name) or self._excluded.get(source) or rules.ignored_by(path)
        if why is None and path.rstrip("/") != target:  # in a folder that a link led to
            why = self._target_ignored_by(source)
        if why:
            self._leave_out(source, path, why)
        else:
            self._add(path, entry.stat(follow_symlinks=False), rules, ancestors, target=target)

    def _link(self, entry: os.DirEntry[str], path: str, rules: IgnoreRules, ancestors: tuple[Path, ...]) -> None:
        """Ship a symlink as its target, which must exist inside the folder.

        The snapshot has copies, not links: blobs of a datastore cannot be symlinks. A target outside could be anything,
        such as a home folder, and a link to a parent has no end.
        """
        target = Path(os.path.realpath(entry.path))
        inside = target.relative_to(self._root).parts if target.is_relative_to(self._root) else None
        # what is never code, or ignored, stays out by any name: of the link, the target, or a folder above the target
        kinds = [*map(_never, (entry.name, *(inside or ()))), *map(self._excluded.get, (target, *target.parents))]
        if why := next(filter(None, kinds), None) or rules.ignored_by(path) or self._target_ignored_by(target):
            self._leave_out(None, path, why)
            return
        try:
            state = entry.stat()
        except OSError as problem:
            what = "leads to itself" if problem.errno == errno.ELOOP else f"leads to nothing: {target}"
            self.obstacles.append(Obstacle(path, f"a symlink that {what}"))
            return
        if inside is None:
            self.obstacles.append(Obstacle(path, f"a symlink that leaves the folder, to {target}"))
        elif target in ancestors:  # compared by real paths: chains of links that lead back are found too
            self.obstacles.append(Obstacle(path, "a symlink to a folder that contains it"))
        else:
            end = "/" if stat.S_ISDIR(state.st_mode) else ""
            self._add(path + end, state, rules, ancestors, target="/".join(inside))

    def _add(
        self, path: str, state: os.stat_result, rules: IgnoreRules, ancestors: tuple[Path, ...], *, target: str
    ) -> None:
        if path.rstrip("/") in self._reserved:
            self.obstacles.append(Obstacle(path, "has the name of the package that is shipped with the code"))
        elif "\n" in path or path != path.encode(errors="ignore").decode():
            self.obstacles.append(Obstacle(path, "a name with a line break, or not UTF-8; rename it", "name"))
        elif stat.S_ISDIR(state.st_mode):
            self._folder(self._root / target, path, rules, ancestors)
        elif stat.S_ISREG(state.st_mode):
            self.found.append(ShippedFile(path, state.st_size, target))
        else:
            self._leave_out(None, path, "a pipe, a socket or a device")

    def _leave_out(self, folder: Path | None, path: str, why: str) -> None:
        files, counted = self._count(folder) if folder and path.endswith("/") else (1, True)
        if files:
            self.left_out.append(LeftOut(path=printable(path), why=why, files=files, counted=counted))

    def _count(self, folder: Path) -> tuple[int, bool]:
        """Return the number of files below a folder, and whether all were counted."""
        # without recursion: a folder that is left out, such as `node_modules`, may nest deeply
        files = seen = 0
        pending = [str(folder)]
        while pending:
            with suppress(OSError), os.scandir(pending.pop()) as listing:  # unreadable folders are not counted
                for entry in listing:
                    seen += 1
                    if seen > self.most_counted:
                        return files, False
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        files += 1
        return files, True


def printable(path: str) -> str:
    """Return a path as one line of printable text, for messages."""
    return path if path.isprintable() else ascii(path)[1:-1]


def _never(name: str) -> str | None:
    return _NEVER.get(name) or ("cache" if name.endswith(_BYTECODE) else None)
