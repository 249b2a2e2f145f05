"""Write the table of mistakes in the data in docs/troubleshooting.md, from the messages of the plan.

    python docs/site/mistakes.py

A test runs the same command lines, and compares their names with the page.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
HEAD = "| mistake | the plan reports | fix |"
sys.path.insert(0, str(ROOT))

from tests.mistakes import MISTAKES, Mistake  # noqa: E402  # found by the line above


def table() -> str:
    """Return the table, after running each command line in a folder of its own."""
    return "\n".join([HEAD, "| --- | --- | --- |", *(_row(mistake) for mistake in MISTAKES)])


def _row(mistake: Mistake) -> str:
    with tempfile.TemporaryDirectory() as folder:
        mistake.write(Path(folder))
        command = [sys.executable, "-m", "orchestrator.cli.main", *shlex.split(mistake.words), "-o", "json"]
        environ = {**os.environ, "ORCHESTRATOR_HOME": f"{folder}/home", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        found = mistake.reported(json.loads(done.stdout))
        assert found is not None, f"the plan does not find: {mistake.name}"
        message, fix = (text.replace(f"{folder}/", "") for text in found)
        cells = (mistake.name, f"warning: {message}" if mistake.warns else message, fix)
        return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace('<', '&lt;') for cell in cells)} |"


def updated(page: str) -> str:
    """Return the page with the table of today."""
    before, _, rest = page.partition(HEAD)
    _, _, after = rest.partition("\n\n")
    return f"{before}{table()}\n\n{after}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
