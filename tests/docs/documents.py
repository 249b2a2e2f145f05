"""Fenced blocks and command lines of README and docs/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAMS = (
    "chmod",
    "mv",
    "openssl",
    "orchestrator",
    "python",
    "torchrun",
    "make",
    "az",
    "export",
    "pip",
    ".venv/bin/pip",
    "python3",
    "source",
    "mlflow",
    "curl",
    "dask",
)


class Block(NamedTuple):
    """A fenced block."""

    document: str
    line: int
    """Of its first line, counted from 1."""
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(*languages: str) -> Iterator[Block]:
    """Return all blocks in these languages."""
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for found in FENCE.finditer(text):
            if found[1] in languages:
                line = text.count("\n", 0, found.start(2)) + 1
                yield Block(str(path.relative_to(ROOT)), line, found[1], found[2])


def command_lines() -> Iterator[tuple[str, str]]:
    """Return place and text of each command: in console blocks after `$ `, elsewhere every line. Comments are kept."""
    for block in blocks("console", "bash", "sh"):
        lines = block.text.replace("\\\n", " ").splitlines()
        for line in lines:
            if block.language == "console" and not line.startswith("$ "):
                continue
            if words := line.removeprefix("$ ").strip():
                yield block.place, words
