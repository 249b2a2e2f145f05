"""Commands in a locale whose encoding has few characters, as de_DE (ISO 8859-1) on old clusters."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Console

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
ROWS = "".join(f"{number},Müdigkeit € Maß{number} Höhe{number},Ärzte\n" for number in range(60))


@pytest.fixture(params=["ASCII", "ISO 8859-1"])
def encoding(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield the variables of a locale."""
    if request.param == "ASCII":
        yield ASCII
        return
    place = tmp_path / "locales"
    place.mkdir()
    try:
        made = subprocess.run(["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(place / "de_DE")], check=False)
    except FileNotFoundError:
        pytest.skip("localedef is not installed")
    variables = {"LC_ALL": "de_DE", "LOCPATH": str(place)}
    command = [sys.executable, "-c", "import sys; print(sys.stdout.encoding)"]
    used = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    if made.returncode > 1 or used.stdout.strip() != "iso8859-1":
        pytest.skip("the locale de_DE cannot be made here")
    yield variables


def test_any_text_is_read_and_shown(console: Console, encoding: dict[str, str]) -> None:
    console.variables.update(encoding)
    folder = console.cwd / "Müller"
    folder.mkdir()
    (folder / "notizen.csv").write_text(f"nr,Notiz,Abteilung\n{ROWS}", encoding="utf-8")
    words = ("--data", "Müller/notizen.csv", "--column", "Notiz", "--set", "data.vocab_size=256")
    planned = console("plan", "pretrain", *words, "-o", "json")
    assert planned.code == 0, planned.err
    assert "Müller/notizen.csv" in str(planned.json)
    shown = subprocess.run(
        [*console.program, "-m", "orchestrator.cli.main", "plan", "pretrain", *words],
        env=console.environ(),
        cwd=console.cwd,
        capture_output=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert (rb"M\xfcller" if encoding == ASCII else b"M\xfcller") in b"".join(shown.stdout.split())  # wrapped


@pytest.mark.long
def test_output_of_job_is_kept_as_it_is(console: Console, encoding: dict[str, str]) -> None:
    console.variables.update(encoding)
    (console.cwd / "job.py").write_text("print('Ärzte€A')\n", encoding="utf-8")
    done = console("submit", "command", "-o", "json", "--", sys.executable, "job.py")
    assert done.code == 0, done.err
    name = done.json["name"]
    logs = [path.read_text(encoding="utf-8") for path in (console.folder(name) / "logs").rglob("*") if path.is_file()]
    assert any("Ärzte€A" in text for text in logs)
