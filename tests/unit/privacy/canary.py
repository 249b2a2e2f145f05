"""A sentence that occurs nowhere else, and the search for its words in output and files."""

from __future__ import annotations

import re
from pathlib import Path

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
        if path.is_file() and not path.is_symlink() and (found_in(path.read_bytes()) or found_in(name)):
            found.add(name)
    return found
