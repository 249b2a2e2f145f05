"""Everything that --help prints; after an intended change, `python -m tests.unit.cli.frozen_help` rewrites help.txt."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from orchestrator.cli.main import build_parser

FILE = Path(__file__).with_name("help.txt")


def parsers(
    parser: argparse.ArgumentParser | None = None, name: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every verb and every action of a verb: `report`, `sweep`, `sweep show`."""
    parser = build_parser() if parser is None else parser
    if name:
        yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, below in action.choices.items():
                yield from parsers(below, f"{name} {verb}".strip())


def examples(parser: argparse.ArgumentParser) -> list[list[str]]:
    """Return the examples in a verb's help, without `orchestrator` and without their comments."""
    lines = str(parser.epilog).splitlines()
    shown = [line.strip().removeprefix("orchestrator ") for line in lines if line.startswith("  orchestrator ")]
    return [line.split("   ")[0].replace("'", "").split() for line in shown]


def text() -> str:
    """Return all options and texts, one per line, independent of the layout of a Python version."""
    return "\n".join(line for name, parser in sorted(parsers()) for line in _lines(name, parser)) + "\n"


def _lines(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"\n{name}: {' '.join(str(parser.description).split())}"
    for action in parser._actions:
        flags = " ".join(action.option_strings) or str(action.metavar or action.dest)
        choices = f" {{{','.join(map(str, action.choices))}}}" if action.choices and action.option_strings else ""
        yield f"  {flags}{choices}: {action.help}"
    yield from (f"  example: {' '.join(words)}" for words in examples(parser))


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
