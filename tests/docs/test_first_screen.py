"""The first screen of the README: badges, the recording of a terminal, the order of its sections."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from documents import ROOT

from orchestrator.cli.main import build_parser

sys.path.insert(0, str(ROOT / "docs" / "site"))
import badges
import recording

SVG = "{http://www.w3.org/2000/svg}"
LARGEST = 200_000  # bytes


@pytest.fixture(scope="module")
def picture() -> ElementTree.Element:
    return ElementTree.fromstring(recording.PICTURE.read_text(encoding="utf-8"))


def lines_of(picture: ElementTree.Element) -> list[ElementTree.Element]:
    """Return the lines of the terminal in a drawing."""
    return picture.findall(f".//{SVG}g[@class='t']/{SVG}text")


def visible_at_the_end(picture: ElementTree.Element) -> list[str]:
    return ["".join(line.itertext()) for line in lines_of(picture) if line.get("class") != "o"]


def test_recording_shows_the_commands_of_the_readme(picture: ElementTree.Element) -> None:
    shown = [text.removeprefix("$ ") for text in visible_at_the_end(picture) if text.startswith("$ ")]
    assert shown == recording.documented_commands()
    assert len(shown) == 4
    for command in shown:
        arguments, unknown = build_parser().parse_known_args(shlex.split(command)[1:])
        assert (arguments.verb, unknown) == (shlex.split(command)[1], [])


def test_recording_is_small_and_without_paths_of_a_machine(picture: ElementTree.Element) -> None:
    text = recording.PICTURE.read_text(encoding="utf-8")
    assert len(text) < LARGEST
    words = " ".join("".join(line.itertext()) for line in lines_of(picture))
    assert re.findall(r"(?<![\w./])/(?:tmp|root|work|mnt|home/(?!you/))[\w./-]*", words) == []
    assert re.findall(r"https?://(?!127\.0\.0\.1)\S+", words) == []


def test_picture_is_drawn_from_the_recording() -> None:
    drawn = recording.drawing(recording.read_cast())
    assert drawn == recording.PICTURE.read_text(encoding="utf-8"), "run python docs/site/recording.py --draw"


def test_viewer_without_animations_sees_the_end(picture: ElementTree.Element) -> None:
    """The offset of the lines, without its animation, is that of the last screen."""
    (scrolled,) = picture.findall(f".//{SVG}g[@class='t']")
    offset = float(re.findall(r"translate\(0 (-?\d+)\)", scrolled.get("transform", ""))[0])
    last = [line for line in lines_of(picture) if line.get("class") != "o"][-1]
    place = float(last.get("y", "")) + offset
    assert recording.LINE * (recording.ROWS - 2) < place <= recording.LINE * recording.ROWS
    assert "http://127.0.0.1" in visible_at_the_end(picture)[-1], "the address of the endpoint"


def test_recorder_keeps_output_colours_and_rewritten_lines(tmp_path: Path) -> None:
    program = (
        "import sys, os\n"
        "assert os.get_terminal_size().columns == 112 and sys.stdout.isatty()\n"
        "print('\\033[33mwarning:\\033[0m  two  spaces & <more>')\n"
        "print('\\r\\033[Kstep 1', end='', flush=True)\n"
        "print('\\r\\033[Kstep 2')\n"
        "print('x' * 150)\n"
    )
    (tmp_path / "program.py").write_text(program)
    command = f"{sys.executable} program.py"
    events = recording.record([command], tmp_path, dict(os.environ))
    picture = ElementTree.fromstring(recording.drawing(events))
    shown = visible_at_the_end(picture)
    assert shown == [f"$ {command}", "warning:  two  spaces & <more>", "step 2", "x" * 112, "x" * 38]
    assert "fill:" in str(picture.find(f".//{SVG}tspan").get("style")), "the warning is coloured"  # type: ignore[union-attr]


def test_recorder_stops_at_a_command_that_fails(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="failed"):
        recording.record([f"{sys.executable} -c 'raise SystemExit(3)'"], tmp_path, dict(os.environ))


def test_badges_show_the_facts_of_the_project() -> None:
    stored = {path.name: path.read_text(encoding="utf-8") for path in badges.FOLDER.iterdir()}
    assert stored == badges.badges(), "run python docs/site/badges.py"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, svg in stored.items():
        fact = svg.split("<title>")[1].split("</title>")[0].replace(": ", " ").lower()
        (words,) = re.findall(rf"!\[([^\]]+)\]\(docs/badges/{name}\)", readme)
        assert words.replace(": ", " ").lower() == fact


def test_readme_sections_are_in_the_order_of_a_newcomer() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headings[:4] == ["Install", recording.TITLE, "Comparison", "Documentation"]
