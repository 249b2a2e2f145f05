"""Declarations of commands as data, from which the parser is built.

A handler is referenced by name and imported when its command runs, so its module can import packages at its top.
`--help` imports only argparse.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from orchestrator.cli.ui import completers

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
STYLES = ("text", "json", "yaml")
ENDED = ("completed", "failed", "cancelled", "preempted")
STATES = ("queued", "starting", "running", *ENDED)


class HelpFormatter(argparse.HelpFormatter):
    """Wrap descriptions, and keep the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example") else super()._fill_text(text, width, indent)


class Argument(NamedTuple):
    """An argument of a verb."""

    flags: tuple[str, ...]
    """Its flags, the long one last; or the name of a positional."""
    settings: dict[str, Any]
    """Keyword arguments of `add_argument`."""
    completer: completers.Completer | None
    """Function that returns completions of its value."""
    key: str
    """Dotted key of a spec that it sets."""

    @property
    def dest(self) -> str:
        """Its name in the parsed namespace."""
        return str(self.settings.get("dest") or self.flags[-1].lstrip("-").replace("-", "_"))

    def add_to(self, parser: Any) -> None:
        """Add it to a parser, or to a group of arguments that exclude each other."""
        action = parser.add_argument(*self.flags, **self.settings)
        if self.completer is not None:
            action.completer = self.completer


def argument(*flags: str, completer: completers.Completer | None = None, key: str = "", **settings: Any) -> Argument:
    """Declare an argument; `settings` are those of `add_argument`."""
    return Argument(flags, settings, completer, key)


def switch(*flags: str, help_text: str) -> Argument:
    """Declare a flag without a value."""
    return argument(*flags, action="store_true", help=help_text)


def sentence(summary: str) -> str:
    """Return a summary with a capital first letter; `str.capitalize` would make `html` of HTML."""
    return summary[0].upper() + summary[1:]


class OneOf(NamedTuple):
    """Arguments that exclude each other."""

    arguments: tuple[Argument, ...]

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add them to a parser."""
        group = parser.add_mutually_exclusive_group()
        for each in self.arguments:
            each.add_to(group)


class Command(NamedTuple):
    """A verb, an action of a verb such as `data fetch`, or a verb that is a group of actions."""

    name: str
    """The verb or action as typed."""
    summary: str
    """Summary for the list of commands: verb and object."""
    description: str
    """Description at the top of its own help."""
    examples: Sequence[str]
    """Command lines without `orchestrator`."""
    handler: str = ""
    """MODULE.FUNCTION of `orchestrator.cli.verbs`: takes the parsed arguments, returns the exit code, or None for 0."""
    arguments: Sequence[Argument | OneOf] = ()
    """Arguments, in the order of its help."""
    actions: Sequence[Command] = ()
    """The actions of a group."""

    def add_to(self, commands: Any) -> None:
        """Add it to the commands of a parser."""
        parser = commands.add_parser(
            self.name,
            help=self.summary,
            description=self.description,
            epilog="\n".join(["example:", *(f"  orchestrator {line}" for line in self.examples)]),
            formatter_class=HelpFormatter,
            conflict_handler="resolve",  # a command may declare a --help of its own
        )
        parser.set_defaults(handler=self.handler)
        for each in self.arguments:
            each.add_to(parser)
        if self.actions:
            subcommands = parser.add_subparsers(
                title="actions", dest="action", metavar="ACTION", required=True, help="action to run"
            )
            for action in self.actions:
                action.add_to(subcommands)


OUTPUT = argument("-o", "--output", choices=STYLES, default="text", help="output format on stdout (default: text)")
BACKEND = argument(
    "-b", "--backend", completer=completers.backends, metavar="NAME", help="look for runs on this backend only"
)
YES = switch("-y", "--yes", help_text="skip the confirmation")


def run(*, count: int | str | None = None) -> tuple[Argument, Argument]:
    """Declare RUN, and -b for names that are not handles.

    Args:
        count: number of runs, as in `nargs`; None: exactly one.
    """
    text = "handle, name, unique prefix of a name, or @last"
    return argument("name", completer=completers.runs, metavar="RUN", nargs=count, help=text), BACKEND


def run_or_sweep(*, count: int | str | None = None) -> tuple[Argument, Argument]:
    """Declare RUN|SWEEP as `run` does RUN."""
    name, backend = run(count=count)
    settings = {**name.settings, "metavar": "RUN|SWEEP"}
    return name._replace(settings=settings, completer=completers.runs_and_sweeps), backend


def states(*flags: str, choices: Sequence[str] = STATES) -> Argument:
    """Declare --state STATE, which may be repeated."""
    text = f"only runs in this state, may be repeated: {', '.join(choices)}"
    return argument(*flags, dest="states", action="append", default=[], choices=choices, metavar="STATE", help=text)


def positive(text: str) -> int:
    """Parse a whole number above 0.

    Raises:
        argparse.ArgumentTypeError: it is not one.
    """
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"invalid number {text!r}: must be a whole number above 0")
    return int(text)


def percent(text: str) -> int:
    """Parse a whole number from 0 to 100.

    Raises:
        argparse.ArgumentTypeError: it is not one.
    """
    if not (text.isdecimal() and int(text) <= 100):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 100")
    return int(text)


def not_negative(text: str) -> int:
    """Parse a whole number of 0 or more.

    Raises:
        argparse.ArgumentTypeError: it is not one.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"invalid number {text!r}: must be a whole number")
    return int(text)


def above_zero(text: str) -> float:
    """Parse a finite number above 0.

    Raises:
        argparse.ArgumentTypeError: it is not one.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"invalid number {text!r}: must be above 0")
    return number


def idle_seconds(text: str) -> int:
    """Parse the seconds that an idle machine is kept; Azure's minimum is 60.

    Raises:
        argparse.ArgumentTypeError: it is not a whole number, or below 60.
    """
    if not_negative(text) < 60:
        raise argparse.ArgumentTypeError(f"invalid number {text!r}: must be at least 60 seconds")
    return int(text)


def seconds(text: str) -> float:
    """Parse a duration, `90`, `90s`, `10m`, `2h` or `1d`; return seconds.

    Raises:
        argparse.ArgumentTypeError: it has another form.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"invalid duration {text!r} (30, 90s, 10m, 2h, 1d)")
    return float(match[1]) * UNITS[match[2]]


def moment(text: str) -> float:
    """Parse a past time, `10m` ago or ISO 8601; return seconds since the epoch.

    Raises:
        argparse.ArgumentTypeError: it has another form, or is in the future.
    """
    from datetime import date, datetime

    if re.fullmatch(r"\d{8}", text):  # ISO 8601 without hyphens, or 116 days and more in seconds
        with suppress(ValueError):
            day = date.fromisoformat(text)
            raise argparse.ArgumentTypeError(
                f"invalid time {text!r}: a date is written {day.isoformat()}, seconds {text}s"
            )
    try:
        return time.time() - seconds(text)
    except argparse.ArgumentTypeError:
        pass
    try:
        then = datetime.fromisoformat(text).timestamp()  # local time, unless it has a time zone
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"invalid time {text!r} (90s, 10m, 2h, 1d, 2026-11-21, 2026-11-21T10:00)"
        ) from None
    if then > time.time():
        raise argparse.ArgumentTypeError(f"invalid time {text!r}: it is in the future")
    return then
