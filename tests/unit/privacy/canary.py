"""A sentence that occurs nowhere else, and the search for its words in output and files."""

from __future__ import annotations

import gzip
import re
import zipfile
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "privacy.md"
WORDS = ("quillfeather", "zoroblatt", "xanthomegaly")
SENTENCE = "Quillfeather Zoroblatt has xanthomegaly."
_FORMS = [form for word in WORDS for form in (word.encode(), word.encode("utf-16-le"), word.encode().hex().encode())]
_PATTERN = re.compile(b"|".join(map(re.escape, _FORMS)))


def found_in(content: str | bytes) -> list[str]:
    """Return the words of the canary in some content, whatever their case."""
    raw = content.encode() if isinstance(content, str) else content
    return sorted({match.decode(errors="replace") for match in _PATTERN.findall(raw.lower())})


def files_with_canary(folder: Path) -> set[str]:
    """Return the files below a folder, by their paths in it, whose content or name has a word of the canary."""
    found = set()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.is_symlink() and (found_in(_content(path)) or found_in(name)):
            found.add(name)
    return found


def _content(path: Path) -> bytes:
    """Return the bytes of a file, of an archive those of its members too."""
    content = path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return b"\n".join([content, *(archive.read(name) for name in archive.namelist())])
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content


def places(names: set[str]) -> set[str]:
    """Return the patterns of docs/privacy.md that list these files; a file that is not listed as itself.

    Args:
        names: paths below the home folder.
    """
    section = PAGE.read_text().split("## Files that hold text", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE)
    patterns = [pattern for row in rows for pattern in re.findall(r"`(.+?)`", row)]
    return {next((one for one in patterns if _fits(name, one)), name) for name in names}


def _fits(name: str, pattern: str) -> bool:
    """Return whether a path fits a pattern, in which `*` is one name and `**` any number of folders."""
    parts = {"**/": "(.*/)?", "**": ".*", "*": "[^/]*"}
    expression = re.sub(r"\*\*/|\*\*|\*|[^*]+", lambda one: parts.get(one[0]) or re.escape(one[0]), pattern)
    return re.fullmatch(expression, name) is not None
