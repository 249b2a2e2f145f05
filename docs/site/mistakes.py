"""Write the table of mistakes in the data in docs/troubleshooting.md, from the messages of the plan.

    python docs/site/mistakes.py

A test runs the same command lines, and compares their names with the page.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
HEADING = "## Mistakes in the data"
HEAD = "| mistake | the plan reports | fix |"
sys.path.insert(0, str(ROOT))


def table() -> str:
    """Return the table, after running each command line in a folder of its own."""
    from tests.mistakes import MISTAKES

    return "\n".join([HEAD, "| --- | --- | --- |", *(_row(mistake) for mistake in MISTAKES)])


def _row(mistake) -> str:  # type: ignore[no-untyped-def]
    from tests.conftest import write_bert

    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        write_bert(here / "bert")
        for name, content in mistake.files.items():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        command = [sys.executable, "-m", "orchestrator.cli.main", *shlex.split(mistake.words), "-o", "json"]
        environ = {**os.environ, "ORCHESTRATOR_HOME": f"{folder}/home", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=here, env=environ, capture_output=True, text=True, check=False)
        document = json.loads(done.stdout)
        if mistake.warns:
            found = next(text for text in document["plan"]["warnings"] if _matches(mistake.message, text))
            message, fix = f"warning: {found}", ""
        else:
            error = document["error"]
            listed = error.get("problems") or [f"{error['message']}\nfix  {error['fix']}"]
            message, _, fix = next(text for text in listed if _matches(mistake.message, text)).partition("\nfix  ")
        cells = (mistake.name, message.replace(f"{folder}/", ""), fix.replace(f"{folder}/", ""))
        return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace('<', '&lt;') for cell in cells)} |"


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None


def updated(page: str) -> str:
    """Return the page with the table of today."""
    before, _, rest = page.partition(HEAD)
    _, _, after = rest.partition("\n\n")
    return f"{before}{table()}\n\n{after}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
