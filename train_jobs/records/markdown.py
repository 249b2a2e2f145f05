"""Markdown of model cards: tables, code, text that is shown as it is; and the sections that all cards have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from train_jobs.artifacts.lineage import LINEAGE_FILE, Lineage, RunFacts

CARD_FILE = "README.md"
UNKNOWN = "unknown"
NOT_STATED = "not stated"
DIGITS = 12  # of a hash


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 step`, `2 steps`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def code(value: str | None) -> str:
    """A hash or a name as code; unknown without one."""
    return f"`{re.sub(r'[^0-9A-Za-z._+-]', '', value)[:40]}`" if value else UNKNOWN


def command(words: Sequence[str]) -> str:
    """A command, each of its flags on a line of its own."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shlex.quote(plain(word)))
    return " \\\n    ".join(" ".join(line) for line in lines)


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = ("", "")) -> str:
    """Rows of cells as Markdown has them."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fenced(text: str, language: str) -> str:
    """A block of code, whatever backticks it holds."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def plain(text: str) -> str:
    """One line of what can be printed."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in a paragraph or in a cell of a table."""
    line = re.sub(r"([\\`*_{}\[\]<>|~&#$!])", r"\\\1", plain(text))
    return re.sub(r"^(\d*)([-+=.)])", r"\1\\\2", line)


def _hash(value: str) -> str:
    return f"`{value[:DIGITS]}`"


def lineage_section(lineage: Lineage) -> list[str]:
    """The chain of links, as the last section of a card."""
    rows = [
        (link.kind, escaped(link.name), _hash(link.hash), ", ".join(map(_hash, link.inputs))) for link in lineage.links
    ]
    return [
        "## Lineage",
        f"Every link is named by the SHA-256 of its content and of its parents; [{LINEAGE_FILE}]({LINEAGE_FILE}) holds"
        " all of it.",
        table(rows, header=("Kind", "Name", "Hash", "From")),
    ]


def reproduce_section(run: RunFacts) -> list[str]:
    """Code, packages and commands that do it again, as a section of a card."""
    state = {True: ", with changes that are not in it", False: "", None: ""}[run.dirty]
    packages = ", ".join(f"{name} {version}" for name, version in run.packages.items())
    return [
        "## Reproduce",
        f"Code: commit {code(run.commit)}{state}, snapshot {code(run.snapshot)}. Packages: {escaped(packages)}.\n"
        "Names of files and folders stand for wherever you keep them. Through the orchestrator, or plain torchrun:",
        *(fenced(command(words), "shell") for words in run.commands.values()),
    ]


def hardware_rows(run: RunFacts) -> Iterator[tuple[str, str]]:
    """Arithmetic, machines and time of a run."""
    last = run.attempts[-1]
    yield "Precision", last.precision
    processes = counted(last.processes, "process", "processes")
    nodes = f"{last.nodes} nodes with " if last.nodes > 1 else ""
    yield "Hardware", f"{processes} on {nodes}{escaped(last.hardware)}"
    yield "Time", _time(run)


def _time(run: RunFacts) -> str:
    first, last = run.attempts[0], run.attempts[-1]
    if run.ended is None:
        return f"from {first.started}"
    seconds = (datetime.fromisoformat(run.ended) - datetime.fromisoformat(first.started)).total_seconds()
    resumed = f", started {len(run.attempts)} times, the last at step {last.step:,}" if last is not first else ""
    return f"{seconds:,.0f} s from {first.started} to {run.ended}{resumed}"
