"""download, prune: copies of what runs wrote, and an end to what nobody needs any more."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.ui import completers
from orchestrator.cli.ui.arguments import (
    ENDED,
    add_backend,
    add_output,
    add_run,
    add_states,
    add_verb,
    attached,
    orchestrator_of,
    positive,
    seconds,
)
from orchestrator.cli.ui.terminal import hint, print_document, print_result, table
from orchestrator.support.formatting import bytes_text

if TYPE_CHECKING:
    from orchestrator.backends.retention import Item, Pruning

OUTPUTS = ("model", "checkpoints", "logs", "metrics", "result", "plan", "spec", "code")


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the parser."""
    download = add_verb(
        verbs,
        "download",
        run_download,
        summary="copy what a run wrote",
        description="Copy outputs of a run: all that are asked for, each whole, or none. Prints their paths.",
        example="download @last model checkpoints --to results/",
    )
    add_run(download)
    outputs = download.add_argument(
        "outputs", metavar="OUTPUT", nargs="*", help=f"{', '.join(OUTPUTS)}, ... (default: model)"
    )
    completers.attach(outputs, lambda **_: list(OUTPUTS))
    download.add_argument("--all", action="store_true", help="every output that there is")
    download.add_argument("--to", type=Path, metavar="DIR", help="where to (default: a folder of the run's name)")
    download.add_argument("--force", action="store_true", help="replace what is there")
    add_output(download)
    prune = add_verb(
        verbs,
        "prune",
        run_prune,
        summary="delete old runs",
        description="Delete runs that have ended, the oldest first, and remains of interrupted commands. Every rule"
        " that is given must let a run go; runs that go on are never touched. What MLflow holds of a run stays.",
        example="prune --keep-last 10 --older-than 30d --dry-run",
    )
    prune.add_argument("--keep-last", type=positive, metavar="N", help="keep the N newest finished runs")
    prune.add_argument("--older-than", type=seconds, metavar="T", help="only what ended longer ago: 12h, 30d")
    add_states(prune, "--state", choices=ENDED)
    prune.add_argument("--stores", action="store_true", help="also delete token stores that no remaining run uses")
    prune.add_argument("--dry-run", "--dryrun", action="store_true", help="show what would go, delete nothing")
    prune.add_argument("-y", "--yes", action="store_true", help="do not ask")
    add_backend(prune)
    add_output(prune)


def run_download(arguments: argparse.Namespace) -> int:
    """Copies, prints where to."""
    from orchestrator.cli.ui.transfer import TransferLine
    from orchestrator.support.errors import UsageError

    if arguments.all and arguments.outputs:
        raise UsageError("--all is every output: do not name some", fix=f"orchestrator download {arguments.name} --all")
    run = attached(arguments)
    outputs = [] if arguments.all else arguments.outputs or ["model"]
    line = TransferLine(sys.stderr)
    show = partial(line, run.name) if sys.stderr.isatty() else None
    try:
        paths = run.download(*outputs, to=arguments.to, force=arguments.force, progress=show)
    finally:
        line.end()
    print_result(
        arguments.output, {"run": run.name, "paths": [str(path) for path in paths]}, lambda: "\n".join(map(str, paths))
    )
    return 0


def run_prune(arguments: argparse.Namespace) -> int:
    """Shows what would go, asks, deletes."""
    from orchestrator.runs.status import RunState
    from orchestrator.support.errors import UsageError

    if not (arguments.keep_last or arguments.older_than is not None or arguments.states):
        raise UsageError(
            "prune needs a rule: --keep-last, --older-than or --state",
            fix="orchestrator prune --keep-last 10 --dry-run",
        )
    text = arguments.output == "text"
    orchestrator = orchestrator_of(arguments)
    pruning = orchestrator.pruning(
        keep_last=arguments.keep_last,
        older_than=arguments.older_than,
        states=[RunState(state) for state in arguments.states],
        stores=arguments.stores,
    )
    if pruning.unused_store_bytes and not arguments.stores:
        unused = bytes_text(pruning.unused_store_bytes)
        hint(f"kept: token stores of texts that no run is of then, {unused}; --stores deletes them")
    if arguments.dry_run or not pruning.items:
        if not text:
            print_document({"dry_run": arguments.dry_run, **pruning.model_dump(mode="json")}, arguments.output)
        elif pruning.items:
            print(f"{_listed(pruning.items)}\nwould be deleted: {_amount(pruning)}")
        else:
            hint("nothing to delete")
        return 0
    if not (arguments.yes or _agreed(pruning)):
        hint("nothing was deleted")
        return 1
    done = orchestrator.prune(pruning)
    for name, why in done.kept.items():
        hint(f"kept: {name}: {why}")
    if not text:
        print_document({"dry_run": False, **done.model_dump(mode="json")}, arguments.output)
    else:
        print(f"{_listed(done.deleted)}\nfreed {bytes_text(done.freed_bytes)}")
    return 0


def _agreed(pruning: Pruning) -> bool:
    """Shows what would go, asks whether to delete it.

    Raises:
        UsageError: nobody is there to ask.
    """
    from orchestrator.support.errors import UsageError

    if not sys.stdin.isatty():
        raise UsageError(
            "nobody is there to be asked whether to delete", fix="--yes, or --dry-run to see what would go"
        )
    hint(_listed(pruning.items))
    print(f"delete {_amount(pruning)}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _amount(pruning: Pruning) -> str:
    from orchestrator.cli.ui.render import counted

    kinds = ((pruning.runs, "run"), (pruning.leftovers, "leftover"), (pruning.token_stores, "token store"))
    return ", ".join([*(counted(len(items), noun) for items, noun in kinds if items), bytes_text(pruning.total_bytes)])


def _listed(items: list[Item]) -> str:
    from orchestrator.cli.ui.render import ago

    rows = [
        (
            item.name,
            item.state.value if item.state else "",
            "" if item.ended is None else ago(item.ended),
            "" if item.bytes is None else bytes_text(item.bytes),
        )
        for item in items
    ]
    return table(rows, ("NAME", "STATE", "ENDED", "SIZE"))
