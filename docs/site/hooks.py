"""Hooks of mkdocs: generate pages from code and notebooks, replace links out of docs/ by plain names."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))
import reference
import tutorials

OUTWARD = re.compile(r"\[([^\]]*)\]\((\.\./[^)]*|examples/[^)]*|example-backend[^)]*)\)")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the generated pages."""
    for path, text in {**reference.pages(), **tutorials.pages()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace links out of docs/ by plain names, since the site is read on its own."""
    return OUTWARD.sub(_named, markdown)


def _named(found: re.Match[str]) -> str:
    text, target = found[1], found[2].removeprefix("../")
    return text if target in text else f"{text} (`{target}`)"
