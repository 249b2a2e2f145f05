"""Ignore files, read as git reads them: `.amlignore` at the root of the code, else every `.gitignore`.

Azure's `.amlignore` is one file, at the root. Where there is none, `.gitignore` files count as in git: those of the
folders above the code up to the repository's root, the code's own and nested ones; the nearest has the last word.

pathspec knows what one line means. What several lines mean is git's procedure, done here an entry at a time: the last
line that names the entry decides, and what lies in an ignored folder is never asked about. (pathspec's own
`GitIgnoreSpec.match_file` judges a file by all folders of its path at once; it and git differ where one line takes back
what another ignores.)
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

AML_IGNORE, GIT_IGNORE = ".amlignore", ".gitignore"
_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}


@dataclass(frozen=True)
class _Line:
    ignores: bool  # False: `!pattern` takes back what a line above it ignores
    by_name: bool  # a pattern without a slash names entries of any folder
    regex: re.Pattern[str]

    def names(self, path: str) -> bool:
        """`path` ends with a slash where it is a folder's."""
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
    """The ignore files that count in one folder of the code."""

    outer: str
    """Path of the code below the outermost folder whose ignore file counts: "", or "experiments/"."""
    nested: bool
    """A `.gitignore` in a folder of the code counts too."""
    files: tuple[_IgnoreFile, ...] = ()
    """The nearest first."""

    @classmethod
    def of(cls, root: Path, repository: Path | None) -> IgnoreRules:
        """The rules at the root of the code, which may lie in a git repository."""
        if (root / AML_IGNORE).is_file():
            return cls(outer="", nested=False)._with(root / AML_IGNORE, AML_IGNORE, "")
        top = repository or root
        parts = root.relative_to(top).parts
        rules = cls(outer="".join(f"{part}/" for part in parts), nested=True)
        for depth in range(len(parts)):  # the root's own is read when the root is entered
            above = top.joinpath(*parts[:depth], GIT_IGNORE)
            if above.is_file():
                rules = rules._with(above, os.path.relpath(above, root), "".join(f"{part}/" for part in parts[:depth]))
        return rules

    def entering(self, folder: Path, path: str) -> IgnoreRules:
        """The rules inside a folder that has a `.gitignore`; `path` is the folder's in the code: "", or "sub/"."""
        return self._with(folder / GIT_IGNORE, path + GIT_IGNORE, self.outer + path)

    def ignored_by(self, path: str) -> str | None:
        """Name of the file that ignores an entry whose folder is not ignored; a folder's path ends with a slash."""
        for file in self.files:
            below = (self.outer + path)[len(file.base) :]
            for line in file.lines:
                if line.names(below):
                    return file.name if line.ignores else None
        return None

    def _with(self, path: Path, name: str, base: str) -> IgnoreRules:
        return replace(self, files=(_IgnoreFile(name, base, _read(path)), *self.files))


def _read(path: Path) -> tuple[_Line, ...]:
    text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    lines = [_parse(line) for line in text.split("\n")]
    return tuple(line for line in reversed(lines) if line)


def _parse(text: str) -> _Line | None:
    from pathspec import GitIgnoreSpec  # 30 ms; only code with an ignore file needs it

    text = text if text.endswith("\\ ") else text.rstrip()
    negation, body = ("!", text[1:]) if text.startswith("!") else ("", text)
    # The forms of `**` that pathspec reads as the folder itself or as any part of a path, in forms that name entries.
    body = re.sub(r"/\*\*(/?)$", r"/**/*\1", body)
    body = re.sub(r"^/?(?:\*\*/)+([^/]+/?)$", r"\1", body)
    body = re.sub(r"\[:(\w+):\]", lambda found: _CLASSES.get(found[1], found[0]), body)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # `[[]`, from re
            pattern = next(iter(GitIgnoreSpec.from_lines([negation + body]).patterns), None)
    except ValueError:
        return None  # a line that means nothing; git does not mind it either
    if pattern is None or pattern.include is None or pattern.regex is None:
        return None  # a comment, or blank
    return _Line(pattern.include, by_name="/" not in body[:-1], regex=pattern.regex)
