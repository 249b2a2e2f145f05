"""Arguments that several verbs share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.ui import completers

if TYPE_CHECKING:
    from orchestrator.client import Orchestrator
    from orchestrator.run import Run
import re

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

STYLES = ("text", "json", "yaml")
ENDED = ("completed", "failed", "cancelled", "preempted")
STATES = ("queued", "starting", "running", *ENDED)


class HelpFormatter(argparse.HelpFormatter):
    """Wraps descriptions, and leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example") else super()._fill_text(text, width, indent)


def add_verb(
    verbs: Any, name: str, run: Callable[[argparse.Namespace], int], *, summary: str, description: str, example: str
) -> argparse.ArgumentParser:
    """A verb: what it does in a word, in a sentence, and one command line of it without `orchestrator`."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"example:\n  orchestrator {example}",
        formatter_class=HelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_group(verbs: Any, name: str, *, summary: str, description: str, example: str) -> Any:
    """A verb that is a group of verbs, as `data fetch`; returns what `add_verb` adds those to."""
    group: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"example:\n  orchestrator {example}",
        formatter_class=HelpFormatter,
    )
    return group.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True, help="what to do")


def add_output(parser: argparse.ArgumentParser) -> None:
    """-o text|json|yaml."""
    parser.add_argument("-o", "--output", choices=STYLES, default="text", help="form of the result on stdout")


def add_backend(parser: argparse.ArgumentParser) -> None:
    """-b NAME."""
    argument = parser.add_argument("-b", "--backend", metavar="NAME", help="look for runs on this backend only")
    completers.attach(argument, completers.backends)


def add_run(parser: argparse.ArgumentParser, *, count: int | str | None = None, sweep: bool = False) -> None:
    """RUN, or as many of them as argparse's `nargs` says; and -b, for those that are not handles.

    Args:
        parser: of the verb.
        count: `nargs`.
        sweep: it may be a sweep too.
    """
    metavar = "RUN|SWEEP" if sweep else "RUN"
    argument = parser.add_argument("name", metavar=metavar, nargs=count, help="handle, name, its beginning, or @last")
    completers.attach(argument, completers.runs_and_sweeps if sweep else completers.runs)
    add_backend(parser)


def add_states(parser: argparse.ArgumentParser, *flags: str, choices: Sequence[str] = STATES) -> None:
    """--state STATE, repeated."""
    words = f"only runs in this state; may be repeated: {', '.join(choices)}"
    parser.add_argument(
        *flags, dest="states", action="append", default=[], choices=choices, metavar="STATE", help=words
    )


def positive(text: str) -> int:
    """A whole number above 0."""
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"not a whole number above 0: {text}")
    return int(text)


def above_zero(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"not a number above 0: {text}")
    return number


def orchestrator_of(arguments: argparse.Namespace) -> Orchestrator:
    """The client that looks where -b says."""
    from orchestrator.client import Orchestrator

    return Orchestrator(arguments.backend)


def attached(arguments: argparse.Namespace) -> Run:
    """The run that the command line names."""
    return orchestrator_of(arguments).attach(arguments.name)


def pairs(words: list[str], flag: str, *, environ: dict[str, str] | None = None) -> dict[str, Any]:
    """`K=V` words as a dict; with `environ`, a bare `K` takes its value from there.

    Raises:
        UsageError: a word of another form.
    """
    from orchestrator.support.errors import UsageError

    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or (not equals and (environ is None or key not in environ)):
            raise UsageError(f"{flag} {word}: not of the form KEY=VALUE", fix=f"{flag} KEY=VALUE")
        found[key] = value if equals else (environ or {})[key]
    return found


def seconds(text: str) -> float:
    """`90`, `90s`, `10m`, `2h`, `1d` in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"not a time: {text} (30, 90s, 10m, 2h, 1d)")
    return float(match[1]) * UNITS[match[2]]
