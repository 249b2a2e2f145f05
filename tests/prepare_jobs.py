"""Jobs that prepare text, started as a user's launcher starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def command(text: Sequence[str], folder: Path, *sets: str) -> list[str]:
    """Return the command that prepares these sources in `folder`."""
    texts = [{"path": path, "name": f"source {number}"} for number, path in enumerate(text)]
    values = [f"data.text={json.dumps(texts)}", "data.vocab_size=200", f"store={folder / 'store'}", *sets]
    assignments = [word for value in values for word in ("--set", value)]
    return [
        *(sys.executable, "-m", "train_jobs.prepare", "--config", "uncased", *assignments),
        *("--output", str(folder / "out"), "--cache", str(folder / "cache")),
    ]


def start(words: Sequence[str], **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environ}
    )


def finished(words: Sequence[str], **environ: str) -> str:
    """Run a job to completion and return its output."""
    process = start(words, **environ)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    return out


def processes_with(word: str) -> list[int]:
    """Return the processes whose command line or environment contains a word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if word.encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
