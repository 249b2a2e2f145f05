"""Arguments that several verbs share."""

from __future__ import annotations

import argparse
from typing import Any

STYLES = ("text", "json", "yaml")


def add_output(parser: argparse.ArgumentParser) -> None:
    """-o text|json|yaml."""
    parser.add_argument("-o", "--output", choices=STYLES, default="text", help="form of the result on stdout")


def add_run(parser: argparse.ArgumentParser, *, many: bool = False) -> None:
    """RUN."""
    parser.add_argument(
        "name", metavar="RUN", nargs="+" if many else None, help="handle, name, its beginning, or @last"
    )


def pairs(words: list[str], flag: str, *, environ: dict[str, str] | None = None) -> dict[str, Any]:
    """`K=V` words as a dict; with `environ`, a bare `K` takes its value from there.

    Raises:
        UsageError: a word of another form.
    """
    from orchestrator.errors import UsageError

    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or (not equals and (environ is None or key not in environ)):
            raise UsageError(f"{flag} {word}: not of the form KEY=VALUE", fix=f"{flag} KEY=VALUE")
        found[key] = value if equals else (environ or {})[key]
    return found
