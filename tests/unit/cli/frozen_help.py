"""All that --help says; after a change on purpose `python -m tests.unit.cli.frozen_help` writes help.txt anew."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from orchestrator.cli.main import build_parser

FILE = Path(__file__).with_name("help.txt")


def parsers(
    parser: argparse.ArgumentParser | None = None, name: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every verb and every action of a verb: `report`, `sweep`, `sweep show`."""
    parser = build_parser() if parser is None else parser
    if name:
        yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, below in action.choices.items():
                yield from parsers(below, f"{name} {verb}".strip())


def examples(parser: argparse.ArgumentParser) -> list[list[str]]:
    """Command lines in a verb's help, without `orchestrator`; a comment behind one stands apart by several blanks."""
    lines = str(parser.epilog).splitlines()
    shown = [line.strip().removeprefix("orchestrator ") for line in lines if line.startswith("  orchestrator ")]
    return [line.split("   ")[0].replace("'", "").split() for line in shown]


def text() -> str:
    """What a user can say and read, one line a thing, in no Python version's own layout."""
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
