"""logs: what the processes of a run printed."""

from __future__ import annotations

import argparse
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from orchestrator.cli.ui.arguments import add_output, add_run, attached, seconds
from orchestrator.cli.ui.terminal import hint

if TYPE_CHECKING:
    from orchestrator.backends.log_query import LogQuery
    from orchestrator.run import Run

EPILOG = """\
Lines of several logs come in the order of their time, to the second, each with
[node:rank] in front of it.

examples:
  orchestrator logs RUN -f                           until the run has ended
  orchestrator logs RUN --all-ranks --tail 5         how each of them ended
  orchestrator logs RUN --grep '(?i)error|nan'       in any case of letters
  orchestrator logs RUN --node 1 --since 2026-11-21T10:00
  orchestrator logs RUN --launcher                   what starts the ranks
"""


def add_verbs(verbs: Any) -> None:
    """Adds the verb to the parser."""
    logs = verbs.add_parser(
        "logs",
        help="the logs of a run",
        description="What a rank of a run printed, or all of them, or what starts them; of runs\nin every state.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run(logs)
    logs.add_argument(
        "-f", "--follow", action="store_true", help="until the run has ended; Ctrl-C leaves the job alone"
    )
    ranks = logs.add_mutually_exclusive_group()
    ranks.add_argument(
        "--rank", type=int, action="append", default=[], metavar="N", help="of this rank; may be repeated (default: 0)"
    )
    ranks.add_argument("--all-ranks", action="store_true", help="of all ranks")
    logs.add_argument("--node", type=int, metavar="N", help="of the ranks of this machine")
    logs.add_argument("--launcher", action="store_true", help="of what starts the ranks and watches them")
    logs.add_argument("--tail", type=_count, metavar="N", help="only the last N lines of each log; more, as they come")
    logs.add_argument(
        "--since", type=_moment, metavar="T", help="only later lines, to the second: 90s, 10m, 2h, 1d ago, or a time"
    )
    logs.add_argument("--grep", metavar="RE", help="only lines in which this regular expression is found")
    add_output(logs)
    logs.set_defaults(run=run_logs)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"not a number of lines: {text}")
    return int(text)


def _moment(text: str) -> float:
    """`10m` ago, or an ISO 8601 time, in seconds since the epoch."""
    from datetime import datetime

    try:
        return time.time() - seconds(text)
    except argparse.ArgumentTypeError:
        pass
    try:
        moment = datetime.fromisoformat(text).timestamp()  # local time, unless it says otherwise
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"not a time: {text} (90s, 10m, 2h, 1d, 2026-11-21, 2026-11-21T10:00)"
        ) from None
    if moment > time.time():
        raise argparse.ArgumentTypeError(f"{text} is still to come")
    return moment


def run_logs(arguments: argparse.Namespace) -> int:
    """Prints logs."""
    from orchestrator.backends.log_query import LogQuery
    from orchestrator.cli.ui.follow import leaving_alone, print_logs
    from orchestrator.support.errors import UsageError

    query = _query(arguments)
    if query.follow and arguments.output != "text":
        raise UsageError(f"-f has no end to put into one {arguments.output} document", fix="leave out -f, or -o")
    run = attached(arguments)
    if arguments.output != "text":
        _print_list(run, query, arguments.output)
        return 0
    if query.follow:
        with leaving_alone(run):
            some = print_logs(run, sys.stdout, query)
            hint(f"{run.status().state}  {run.handle}")
    else:
        some = print_logs(run, sys.stdout, query)
    if not some and query == LogQuery(ranks=query.ranks, node=query.node, follow=query.follow):
        hint(f"nothing was printed; what starts the ranks: orchestrator logs {run.name} --launcher")
    return 0


def _query(arguments: argparse.Namespace) -> LogQuery:
    from orchestrator.backends.log_query import LogQuery, choose_ranks

    return LogQuery(
        ranks=choose_ranks(arguments.rank, arguments.all_ranks, node=arguments.node, launcher=arguments.launcher),
        node=arguments.node,
        launcher=arguments.launcher,
        follow=arguments.follow,
        tail=arguments.tail,
        since=arguments.since,
        grep=None if arguments.grep is None else _pattern(arguments.grep),
    )


def _pattern(text: str) -> re.Pattern[str]:
    import shlex

    from orchestrator.support.errors import UsageError

    try:
        return re.compile(text)
    except (re.error, OverflowError) as problem:
        fix = f"--grep {shlex.quote(re.escape(text))}, if these very letters are meant"
        raise UsageError(f"--grep {text}: not a regular expression: {problem}", fix=fix) from None


def _print_list(run: Run, query: LogQuery, style: str) -> None:
    """One document, written item by item: it may be larger than memory."""
    import json

    import yaml

    some = False
    for line in (line for block in run.log_blocks(query) for line in block.lines()):
        item = {"node": line.node, "rank": line.rank, "writer": line.writer, "text": line.text}
        if style == "json":
            sys.stdout.write((",\n" if some else "[\n") + json.dumps(item))
        else:
            sys.stdout.write(yaml.safe_dump([item], sort_keys=False))
        some = True
    if not some:
        print("[]")
    elif style == "json":
        print("\n]")
