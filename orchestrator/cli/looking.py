"""debug: looking inside a run."""

from __future__ import annotations

import argparse
from typing import Any


def add_verbs(verbs: Any) -> None:
    """Adds the verb to the parser."""
    from orchestrator.cli.ui.arguments import add_output, add_run, add_verb

    debug = add_verb(
        verbs,
        "debug",
        run_debug,
        summary="where the ranks of a run stand",
        description="Where each rank of a live run stands at this moment: the Python stacks of all its threads, the"
        " innermost frame first. The run goes on.",
        example="debug @last --rank 1",
    )
    add_run(debug)
    debug.add_argument("--rank", type=int, metavar="N", help="of this process only")
    add_output(debug)


def run_debug(arguments: argparse.Namespace) -> int:
    """Prints stacks."""
    from orchestrator.cli.ui.arguments import attached
    from orchestrator.cli.ui.render import hint, print_document

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
