"""list, status, logs, report: looking at runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the parser."""
    from orchestrator.cli.arguments import add_output, add_run

    listing = verbs.add_parser("list", help="all runs", description="All runs, the newest first.")
    add_output(listing)
    listing.set_defaults(run=run_list)
    status = verbs.add_parser("status", help="how a run stands", description="How a run stands.")
    add_run(status)
    status.add_argument("--lineage", action="store_true", help="where it comes from, and what of that still verifies")
    add_output(status)
    status.set_defaults(run=run_status)
    logs = verbs.add_parser("logs", help="the log of a run", description="The log of one rank of a run.")
    add_run(logs)
    logs.add_argument(
        "-f", "--follow", action="store_true", help="until the run has ended; Ctrl-C leaves the job alone"
    )
    logs.add_argument("--rank", type=int, default=0, help="which process (default: 0)")
    logs.set_defaults(run=run_logs)
    report = verbs.add_parser("report", help="a page with the curves", description="One self-contained HTML page.")
    add_run(report)
    report.add_argument("--to", type=Path, metavar="FILE", help="where to write it (default: in the run's folder)")
    add_output(report)
    report.set_defaults(run=run_report)


def run_list(arguments: argparse.Namespace) -> int:
    """Prints all runs."""
    from orchestrator.cli.render import duration, hint, print_document, table, when
    from orchestrator.client import Orchestrator

    runs = Orchestrator().runs()
    if arguments.output != "text":
        print_document([status.as_dict() for status in runs], arguments.output)
        return 0
    if not runs:
        hint("no runs yet\n  fix  orchestrator submit pretrain")
        return 0
    rows = [
        (
            status.name,
            status.state.value,
            f"{status.step or 0}/{status.steps}",
            duration((status.ended or status.created) - (status.started or status.created)) if status.ended else "",
            when(status.created),
        )
        for status in runs
    ]
    print(table(rows, ("RUN", "STATE", "STEP", "TIME", "SUBMITTED")))
    return 0


def run_status(arguments: argparse.Namespace) -> int:
    """Prints how a run stands."""
    from orchestrator.cli.render import next_commands, print_document, status_text
    from orchestrator.client import Orchestrator

    if arguments.lineage:
        return print_lineage(arguments)
    status = Orchestrator().attach(arguments.name).status()
    if arguments.output != "text":
        print_document(status.as_dict(), arguments.output)
        return 0
    print(status_text(status), flush=True)
    next_commands(status)
    return 0


def print_lineage(arguments: argparse.Namespace) -> int:
    """Prints where a run comes from."""
    from orchestrator.cli.render import print_document
    from orchestrator.client import Orchestrator
    from orchestrator.lineage import lineage_text

    checked = Orchestrator().attach(arguments.name).lineage()
    if arguments.output != "text":
        print_document(checked.as_dict(), arguments.output)
    else:
        print(lineage_text(checked))
    return 0


def run_logs(arguments: argparse.Namespace) -> int:
    """Prints a log."""
    from orchestrator.cli.follow import follow_log, leaving_alone
    from orchestrator.client import Orchestrator

    run = Orchestrator().attach(arguments.name)
    with leaving_alone(run):
        follow_log(run, sys.stdout, rank=arguments.rank, follow=arguments.follow)
    return 0


def run_report(arguments: argparse.Namespace) -> int:
    """Writes the page, prints its path."""
    from orchestrator.cli.render import print_document
    from orchestrator.client import Orchestrator

    path = Orchestrator().attach(arguments.name).report(arguments.to)
    if arguments.output != "text":
        print_document({"report": str(path)}, arguments.output)
    else:
        print(path)
    return 0
