"""Pages generated from the notebooks: text, cells, and what the cells displayed in a recorded execution.

    python docs/site/tutorials.py 06-classify-your-own-csv    # executes a notebook and records its outputs: minutes

Notebooks are stored without outputs. Recorded ones are in docs/site/outputs; a test compares their cells with the
notebook. A notebook that was not recorded has a page without outputs.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
OUTPUTS = Path(__file__).parent / "outputs"
NOTES = {
    True: "> This page is `notebooks/{name}`, with what its cells displayed on a machine with two CPU cores.",
    False: "> This page is `notebooks/{name}`, without what its cells show: open it and choose Run All.",
}
SECONDS = 1800  # limit of a cell, on a machine that is also busy with other work


def pages() -> dict[str, str]:
    """Path of each page -> its Markdown."""
    return {f"tutorials/{path.stem}.md": page(path) for path in sorted(NOTEBOOKS.glob("*.ipynb"))}


def page(path: Path) -> str:
    """Return a notebook as Markdown, with a note below its title and the recorded outputs below each cell."""
    parts, shown = [], recorded(path.stem)
    for cell in cells(path):
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += map(_as_markdown, shown.get(cell["id"], {}).get("outputs", []))
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join([title, NOTES[bool(shown)].format(name=path.name), rest.strip(), *parts[1:]]) + "\n"


def cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def recorded(name: str) -> dict[str, dict[str, Any]]:
    """Return the recorded cells of a notebook: id -> source, and outputs as (kind, text) pairs; none: empty."""
    path = OUTPUTS / f"{name}.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def _as_markdown(output: list[str]) -> str:
    kind, text = output
    if kind == "text":
        return f"```text\n{text.rstrip()}\n```"
    if kind == "png":
        return f'<div><img alt="output of the cell" src="data:image/png;base64,{text.strip()}"></div>'
    return re.sub(r"\n\s*\n", "\n", text)  # Markdown ends a block of HTML at a blank line


def record(name: str) -> None:
    """Execute a notebook in a folder and home of its own, without a GPU, and store what its cells display."""
    import nbformat
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:  # a supervisor may still copy to MLflow
        os.environ |= {"ORCHESTRATOR_HOME": f"{place}/.orchestrator", "CUDA_VISIBLE_DEVICES": ""}
        notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
        NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": place}}).execute()
        found = {
            cell.id: {
                "source": cell.source,
                "outputs": [[kind, text.replace(place, "/home/you")] for kind, text in _outputs(cell.outputs)],
            }
            for cell in notebook.cells
            if cell.cell_type == "code"
        }
    OUTPUTS.mkdir(exist_ok=True)
    (OUTPUTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _outputs(outputs: list[Any]) -> Iterator[tuple[str, str]]:
    printed = ""
    for output in outputs:
        if output.output_type == "stream":
            printed += output.text if output.name == "stdout" else ""
            continue
        if printed:
            yield "text", printed
            printed = ""
        kinds = {"html": "text/html", "png": "image/png", "text": "text/plain"}
        yield next((kind, output.data[mime]) for kind, mime in kinds.items() if mime in output.data)
    if printed:
        yield "text", printed


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        record(argument)
