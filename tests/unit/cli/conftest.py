"""The command line in this process, with an isolated home."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from tests.conftest import Finished

Command = Callable[..., Finished]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home folder, which does not exist yet; the current folder is next to it."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


@pytest.fixture
def orchestrator(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs `orchestrator WORD...`."""

    def run(*words: str) -> Finished:
        capsys.readouterr()
        code = main(words)
        return Finished(code, *capsys.readouterr())

    return run


@pytest.fixture
def on_terminal(home: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return the same function on a pseudo-terminal of 80 columns; `out` has stdout and stderr."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def run(*words: str, columns: int = 80) -> Finished:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        shown: list[bytes] = []
        reader = threading.Thread(target=lambda: shown.extend(_until_closed(ours)))
        reader.start()
        with monkeypatch.context() as patch, os.fdopen(theirs, "w", encoding="utf-8") as stream:
            patch.setattr("sys.stdout", stream)
            patch.setattr("sys.stderr", stream)
            code = main(words)
        reader.join()
        os.close(ours)
        return Finished(code, b"".join(shown).decode().replace("\r\n", "\n"), "")

    return run


def _until_closed(descriptor: int) -> Iterator[bytes]:
    with suppress(OSError):  # a pseudo-terminal raises it when its other end is closed
        while piece := os.read(descriptor, 65536):
            yield piece
