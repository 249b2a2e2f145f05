"""What mkdocs runs while it builds the site: pages made of code and notebooks, links out of docs/ as plain names."""

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
    """Adds the pages that are made."""
    for path, text in {**reference.pages(), **tutorials.pages()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Names what lies outside of docs/ instead of linking to it: the site is read on its own."""
    return OUTWARD.sub(_named, markdown)


def _named(found: re.Match[str]) -> str:
    text, target = found[1], found[2].removeprefix("../")
    return text if target in text else f"{text} (`{target}`)"
