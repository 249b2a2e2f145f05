"""list, status, debug, report: show what runs do."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from orchestrator.cli.ui.arguments import (
    add_backend,
    add_output,
    add_run,
    add_states,
    add_verb,
    attached,
    orchestrator_of,
    positive,
)
from orchestrator.cli.ui.terminal import hint, print_document, print_result


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the parser."""
    listing = add_verb(
        verbs,
        "list",
        run_list,
        summary="list runs",
        description="List runs, the newest first.",
        example="list --state running --limit 10",
    )
    add_states(listing, "--state", "--status")
    listing.add_argument("--limit", type=positive, metavar="N", help="at most N runs")
    add_backend(listing)
    add_output(listing)
    status = add_verb(
        verbs,
        "status",
        run_status,
        summary="show the status of a run",
        description="Show the status of a run, and why it ended.",
        example="status @last --watch",
    )
    add_run(status)
    status.add_argument("--lineage", action="store_true", help="where it comes from, and what of that still verifies")
    status.add_argument("-w", "--watch", action="store_true", help="until the run has ended; Ctrl-C leaves it alone")
    add_output(status)
    debug = add_verb(
        verbs,
        "debug",
        run_debug,
        summary="show each rank's Python stack",
        description="Show the Python stacks of all threads of each rank of a live run, the innermost frame first. The"
        " run continues.",
        example="debug @last --rank 1",
    )
    add_run(debug)
    debug.add_argument("--rank", type=int, metavar="N", help="only this rank")
    add_output(debug)
    _add_report(verbs)


def _add_report(verbs: Any) -> None:
    report = add_verb(
        verbs,
        "report",
        run_report,
        summary="write a page with the curves of runs, or of a sweep",
        description="One self-contained HTML page: of a run its curves, its scores, and the plan beside what came; of"
        " several runs their curves on the same axes and what differs; of a sweep its trials. A run or sweep that goes"
        " on is reported as far as it has come.",
        example="report @last --png figures\n"
        "  orchestrator report pretrain-tiny-4e919d08 @last --to both.html\n"
        "  orchestrator report search-1f3a77c2",
    )
    add_run(report, count="+", sweep=True)
    report.add_argument(
        "--to",
        type=Path,
        metavar="FILE",
        help="the page (default: in the folder of the run or sweep; of several, here)",
    )
    report.add_argument("--png", type=Path, metavar="FOLDER", help="write the figures as pictures too")
    add_output(report)


def run_list(arguments: argparse.Namespace) -> int:
    """Prints runs."""
    from orchestrator.cli.ui.render import run_table
    from orchestrator.runs.status import RunState

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
    """Print the status of a run."""
    from orchestrator.cli.ui.follow import leaving_alone
    from orchestrator.cli.ui.render import next_commands, status_text
    from orchestrator.cli.ui.status_watch import watch

    if arguments.lineage:
        return print_lineage(arguments)
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


def print_lineage(arguments: argparse.Namespace) -> int:
    """Prints where a run comes from."""
    from orchestrator.runs.lineage_report import lineage_text

    checked = attached(arguments).lineage()
    print_result(arguments.output, checked.as_dict(), lambda: lineage_text(checked))
    return 0


def run_debug(arguments: argparse.Namespace) -> int:
    """Prints stacks."""
    run = attached(arguments)
    stacks = run.stacks(rank=arguments.rank)
    if arguments.output != "text":
        print_document(
            {"run": str(run.handle), "stacks": {str(rank): text for rank, text in stacks.items()}}, arguments.output
        )
        return 0
    print("\n\n".join(f"rank {rank}\n{text}" for rank, text in stacks.items()), flush=True)
    hint(
        "\nthe innermost frame comes first; where ranks wait in all_reduce for one that does not, that one is stuck\n"
        f"  again   orchestrator debug {run.name}\n"
        f"  cancel  orchestrator cancel {run.name}"
    )
    return 0


def run_report(arguments: argparse.Namespace) -> int:
    """Writes the page, and pictures if asked; prints where they are."""
    from orchestrator.cli.ui.named import named
    from orchestrator.run import Run
    from orchestrator.support.errors import UsageError

    orchestrator, names = orchestrator_of(arguments), arguments.name
    found = [named(orchestrator, name) for name in names]
    sweeps = [one for one in found if not isinstance(one, Run)]
    if sweeps and len(names) > 1:
        raise UsageError(
            "a sweep is reported alone: its trials are compared on its own page",
            facts={"sweep": sweeps[0].name},
            fix=f"orchestrator report {sweeps[0].name}",
        )
    if sweeps:
        page = sweeps[0].report(arguments.to)
        pictures = sweeps[0].pictures(arguments.png) if arguments.png else []
    else:
        run, *beside = (one for one in found if isinstance(one, Run))
        page = run.report(arguments.to, beside=beside)
        pictures = run.pictures(arguments.png, beside=beside) if arguments.png else []
    print_result(
        arguments.output,
        {"report": str(page), "pictures": [str(path) for path in pictures]},
        lambda: "\n".join(map(str, [page, *pictures])),
    )
    return 0
