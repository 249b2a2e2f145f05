"""Pages generated from the notebooks: text and cells without outputs."""

from __future__ import annotations

import json
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NOTE = "> This page is `notebooks/{name}`, without what its cells show: open it and choose Run All."


def pages() -> dict[str, str]:
    """Path of each page -> its Markdown."""
    return {f"tutorials/{path.stem}.md": page(path) for path in sorted(NOTEBOOKS.glob("*.ipynb"))}


def page(path: Path) -> str:
    """Return a notebook as Markdown, with a note below its title."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join([title, NOTE.format(name=path.name), rest.strip(), *parts[1:]]) + "\n"
