"""Contestants of a benchmark: separate processes that work in turn."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Contestant:
    """Process that makes steps on request: it reads `{"steps": N}` and answers with `{"seconds": [...]}`.

    Args:
        name: for the table.
        command: starts it; once it is warm it prints its facts as one JSON object in a line.
        errors: file that takes its stderr.
        folder: current folder of the process; None: that of this one.
    """

    def __init__(self, name: str, command: Sequence[str], errors: Path, folder: Path | None = None) -> None:
        self.name = name
        self.seconds: list[float] = []
        self._errors = errors.open("w")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, cwd=folder
        )
        self.ready = self._answer()

    def steps(self, count: int) -> None:
        """Make `count` timed steps."""
        self._send({"steps": count})
        self.seconds += self._answer()["seconds"]

    def finish(self) -> dict[str, Any]:
        """End the process and return its memory and losses."""
        self._send({"steps": 0})
        found = self._answer()
        self._process.wait()
        self._errors.close()
        return found

    def _send(self, what: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise SystemExit(f"{self.name} died:\n" + Path(self._errors.name).read_text()[-3000:])
