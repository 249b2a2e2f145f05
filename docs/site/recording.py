"""Record the four commands of the README in a pseudo-terminal, and draw the recording as docs/first-contact.svg.

    python docs/site/recording.py           # runs the commands on generated notes: some minutes
    python docs/site/recording.py --draw    # only draws the stored recording again

The recording, docs/site/first-contact.cast, has the format of asciinema (asciicast v2). Each byte in it is output of
the commands; only the folder of the session gets another name of the same length. The drawing shortens waits. It is
animated by CSS and plays once; a viewer without animations shows the end.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import secrets
import shlex
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
CAST = ROOT / "docs" / "site" / "first-contact.cast"
PICTURE = ROOT / "docs" / "first-contact.svg"
TITLE = "From notes to a classifier in four commands"
COLUMNS, ROWS = 112, 28
SHOWN_HOME = "/home/you"
LONGEST_WAIT, PER_LINE, PER_LETTER, AFTER_COMMAND = 0.15, 0.03, 0.012, 1.5  # seconds of the drawing
CELL, LINE, SIZE, MARGIN, BAR = 7.83, 18, 13, 14, 34  # pixels; a cell is 0.602 of the font's size
BACKGROUND, BORDER, PLAIN, PROMPT = "#16181d", "#4b5263", "#d7dae0", "#7ee787"
CONSOLE = Console()
FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,Liberation Mono,monospace"

Event = tuple[float, str]
"""Seconds since the start, and output."""


class Shown(NamedTuple):
    """One state of a line of the terminal."""

    row: int
    text: Text
    begin: float
    """Seconds of the drawing."""
    end: float | None
    """None: visible to the end."""


def documented_commands() -> list[str]:
    """Return the commands of the README that the recording shows."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split(f"\n## {TITLE}\n")[1]
    block = section.split("```console\n")[1].split("```")[0]
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def record(commands: Sequence[str], folder: Path, environ: dict[str, str]) -> list[Event]:
    """Run commands in a terminal of `COLUMNS` x `ROWS`; return their output, each after its prompt.

    Raises:
        SystemExit: a command failed.
    """
    begin, events = time.monotonic(), []
    for command in commands:
        events.append((time.monotonic() - begin, f"$ {command}\r\n"))
        events.extend((time.monotonic() - begin, text) for text in _output(command, folder, environ))
    return events


def _output(command: str, folder: Path, environ: dict[str, str]) -> Iterator[str]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        shlex.split(command), cwd=folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    seen = ""
    with os.fdopen(ours, "rb", buffering=0) as stream:
        pending = b""
        while True:
            try:
                data = stream.read(65536)
            except OSError:  # Linux: the last process has closed its side
                data = b""
            if not data:
                break
            pending += data
            cut = pending.rfind(b"\n" if b"\n" in pending else b"\r") + 1 or len(pending)
            text, pending = pending[:cut].decode(), pending[cut:]
            seen += text
            yield text
        if pending:
            yield pending.decode()
    if process.wait():
        raise SystemExit(f"{command} failed:\n{seen}")


def states(events: Sequence[Event]) -> Iterator[Shown]:
    """Return each state of each line, in the time of the drawing: short waits, and lines one after the other."""
    decoder, clock, before, row, line = AnsiDecoder(), 0.5, 0.0, 0, ""
    last: list[Shown] = []
    for at, text in events:
        clock += min(at - before, LONGEST_WAIT)
        before = at
        if text.startswith("$ "):
            clock += AFTER_COMMAND if row else 0.0
            yield Shown(row, Text(text.strip()), clock, None)
            clock, row = clock + 0.5 + PER_LETTER * len(text), row + 1
            continue
        for piece in re.split(r"(?<=[\n])", text):
            line = (line + piece).rpartition("\r\x1b[K")[2] if "\r\x1b[K" in piece else line + piece
            ended = line.endswith("\n")
            parts = _rows(decoder.decode_line(line.rstrip("\r\n")))
            for shown in last:
                yield shown._replace(end=clock)
            last = [Shown(row + number, part, clock, None) for number, part in enumerate(parts)]
            if ended:
                yield from last
                row, line, last, clock = row + len(parts), "", [], clock + PER_LINE
    yield from last


def _rows(text: Text) -> list[Text]:
    return list(text.divide(range(COLUMNS, len(text), COLUMNS))) or [text]


def drawing(events: Sequence[Event]) -> str:
    """Return an SVG of the session."""
    found = [shown for shown in states(events) if shown.text.plain.strip() and shown.begin != shown.end]
    arrivals: dict[int, float] = {}
    for shown in found:
        arrivals[shown.row] = min(shown.begin, arrivals.get(shown.row, shown.begin))
    total = max(arrivals.values()) + AFTER_COMMAND
    width, height = COLUMNS * CELL + 2 * MARGIN, ROWS * LINE + BAR + MARGIN
    offsets = {at: -LINE * max(row + 1 - ROWS, 0) for row, at in sorted(arrivals.items())}
    frames = "".join(f"{100 * at / total:.2f}%{{transform:translateY({y}px)}}" for at, y in offsets.items() if y)
    last = min(offsets.values())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" role="img" '
        'xml:space="preserve">\n'
        f"<title>{TITLE}</title>\n<style>\n"
        f"text{{font:{SIZE}px {FONTS};fill:{PLAIN};white-space:pre}}.c{{fill:{PROMPT};font-weight:bold}}"
        f".b{{font-weight:bold}}.o{{opacity:0}}\n"
        "@keyframes h{from,to{opacity:0}}@keyframes v{from,to{opacity:1}}"
        f"@keyframes s{{0%{{transform:none}}{frames}}}\n"
        f".t>*{{animation:h 1ms step-end backwards}}.t>.o{{animation-name:v;animation-fill-mode:none}}"
        f".t{{animation:s {total:.2f}s step-end}}\n"
        "@media(prefers-reduced-motion:reduce){.t,.t>*{animation:none!important}}\n</style>\n"
        f'<rect x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1}" rx="8" fill="{BACKGROUND}" '
        f'stroke="{BORDER}"/>\n'
        + "".join(f'<circle cx="{18 + 18 * n}" cy="17" r="5.5" fill="{BORDER}"/>' for n in range(3))
        + f'\n<text x="{width / 2:.0f}" y="22" text-anchor="middle">{TITLE}</text>\n'
        f'<svg x="{MARGIN}" y="{BAR}" width="{COLUMNS * CELL:.0f}" height="{ROWS * LINE}">\n'
        f'<g class="t" transform="translate(0 {last})">\n{"".join(map(_line, found))}</g>\n</svg>\n</svg>\n'
    )


def _line(shown: Shown) -> str:
    text = shown.text
    indent = len(text.plain) - len(text.plain.lstrip())
    text = text[indent:]
    text.rstrip()
    timing = f"animation-delay:{shown.begin:.2f}s"
    classes = "c" if text.plain.startswith("$ ") else ""
    if shown.end is not None:
        timing += f";animation-duration:{shown.end - shown.begin:.2f}s"
        classes = "o"
    chosen = f' class="{classes}"' if classes else ""
    place = f'x="{indent * CELL:.4g}" y="{shown.row * LINE + SIZE}" textLength="{len(text) * CELL:.4g}"'
    return f'<text{chosen} {place} style="{timing}">{"".join(map(_span, text.render(CONSOLE)))}</text>\n'


def _span(segment: Segment) -> str:
    style = segment.style or Style.null()
    attributes = ' class="b"' if style.bold else ""
    if style.color and not style.color.is_default:
        attributes += f' style="fill:{style.color.get_truecolor(SVG_EXPORT_THEME).hex}"'
    words = escape(segment.text)
    return f"<tspan{attributes}>{words}</tspan>" if attributes else words


def read_cast(path: Path = CAST) -> list[Event]:
    """Return the events of a recording."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(at, text) for at, _, text in map(json.loads, lines[1:])]


def _write_cast(events: Sequence[Event], home: Path) -> None:
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": TITLE}
    lines = [[round(at, 2), "o", text.replace(str(home), SHOWN_HOME)] for at, text in events]
    CAST.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]), encoding="utf-8")


def record_walk() -> None:
    """Run the commands of the README on generated notes, in a home of their own, and store the recording."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.first_contact import write_data

    home = Path("/tmp") / secrets.token_hex(2)
    assert len(str(home)) == len(SHOWN_HOME), "another length would break columns"
    home.mkdir(mode=0o700)
    programs = Path(sys.executable).parent
    path = f"{programs}:{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ORCHESTRATOR_", "NO_COLOR"))}
    environ = {**kept, "HOME": str(home), "PATH": path, "TERM": "xterm-256color", "VIRTUAL_ENV": str(programs.parent)}
    try:
        write_data(home)
        try:
            _write_cast(record(documented_commands(), home, environ), home)
        finally:
            delete = ["orchestrator", "model", "delete", "wards", "-y"]
            subprocess.run(delete, env=environ, cwd=home, check=False, capture_output=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Record the four commands of the README as docs/first-contact.svg.")
    parser.add_argument("--draw", action="store_true", help="draw the stored recording, without running the commands")
    if not parser.parse_args().draw:
        record_walk()
    PICTURE.write_text(drawing(read_cast()), encoding="utf-8")
