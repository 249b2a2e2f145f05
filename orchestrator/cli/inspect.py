"""list, status, logs, report: looking at runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the parser."""
    from orchestrator.cli.arguments import add_backend, add_output, add_run, add_states, add_verb, positive

    listing = add_verb(
        verbs,
        "list",
        run_list,
        summary="all runs",
        description="All runs, the newest first.",
        example="list --state running --limit 10",
    )
    add_states(listing, "--state", "--status")
    listing.add_argument("--limit", type=positive, metavar="N", help="at most so many")
    add_backend(listing)
    add_output(listing)
    status = add_verb(
        verbs,
        "status",
        run_status,
        summary="how a run stands",
        description="How a run stands, and why it ended.",
        example="status @last --watch",
    )
    add_run(status)
    status.add_argument("-w", "--watch", action="store_true", help="until the run has ended; Ctrl-C leaves it alone")
    add_output(status)
    logs = verbs.add_parser("logs", help="the log of a run", description="The log of one rank of a run.")
    add_run(logs)
    logs.add_argument(
        "-f", "--follow", action="store_true", help="until the run has ended; Ctrl-C leaves the job alone"
    )
    logs.add_argument("--rank", type=int, default=0, help="which process (default: 0)")
    logs.set_defaults(run=run_logs)
    report = add_verb(
        verbs,
        "report",
        run_report,
        summary="a page with the curves",
        description="One self-contained HTML page.",
        example="report @last --to report.html",
    )
    add_run(report)
    report.add_argument("--to", type=Path, metavar="FILE", help="where to write it (default: in the run's folder)")
    add_output(report)


def run_list(arguments: argparse.Namespace) -> int:
    """Prints runs."""
    from orchestrator.cli.arguments import orchestrator_of
    from orchestrator.cli.render import hint, print_document, run_table
    from orchestrator.runs import RunState

    states = [RunState(state) for state in arguments.states]
    runs = orchestrator_of(arguments).runs(states=states, limit=arguments.limit)
    if arguments.output != "text":
        print_document([status.as_dict() for status in runs], arguments.output)
    elif runs:
        print(run_table(runs))
    elif states:
        hint(f"no run is {' or '.join(states)}\n  all  orchestrator list")
    else:
        hint("no runs yet\n  fix  orchestrator submit pretrain")
    return 0


def run_status(arguments: argparse.Namespace) -> int:
    """Prints how a run stands."""
    from orchestrator.cli.arguments import attached
    from orchestrator.cli.follow import leaving_alone
    from orchestrator.cli.render import next_commands, print_document, status_text
    from orchestrator.cli.watch import watch

    run = attached(arguments)
    if arguments.watch:
        with leaving_alone(run):
            return watch(run, sys.stdout, arguments.output)
    status = run.status()
    if arguments.output != "text":
        print_document(status.as_dict(), arguments.output)
        return 0
    print(status_text(status), flush=True)
    next_commands(status)
    return 0


def run_logs(arguments: argparse.Namespace) -> int:
    """Prints a log."""
    from orchestrator.cli.arguments import attached
    from orchestrator.cli.follow import follow_log, leaving_alone

    run = attached(arguments)
    with leaving_alone(run):
        follow_log(run, sys.stdout, rank=arguments.rank, follow=arguments.follow)
    return 0


def run_report(arguments: argparse.Namespace) -> int:
    """Writes the page, prints its path."""
    from orchestrator.cli.arguments import attached
    from orchestrator.cli.render import print_document

    path = attached(arguments).report(arguments.to)
    if arguments.output != "text":
        print_document({"report": str(path)}, arguments.output)
    else:
        print(path)
    return 0
