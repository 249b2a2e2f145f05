"""logs, download, prune, mlflow: the files of runs and their copies."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator.backends.log_query import LogQuery, choose_ranks
from orchestrator.cli.ui.follow import detach_on_interrupt, print_logs
from orchestrator.cli.ui.targets import attach_run, find_target, run_or_best
from orchestrator.cli.ui.terminal import TransferLine, confirm, hint, print_result, table, write_line
from orchestrator.client import Orchestrator
from orchestrator.run import Run
from orchestrator.runs.status import RunState
from orchestrator.runs.tracking_server import check_server, checked_address
from orchestrator.support.errors import AuthError, NotFoundError, ServiceError, StorageError, UsageError
from orchestrator.support.formatting import ago, bytes_text, counted
from train_jobs.config.errors import in_shell

if TYPE_CHECKING:
    from orchestrator.backends.purging import Purging
    from orchestrator.backends.retention import Item, Pruning
    from orchestrator.sweep import Sweep

RESTART_SECONDS = 60.0  # how long a batch waits for an MLflow server that is being restarted


def logs(arguments: argparse.Namespace) -> None:
    """Print logs.

    Raises:
        UsageError: -f is combined with -o json or yaml, or the regular expression is invalid.
    """
    query = LogQuery(
        ranks=choose_ranks(arguments.rank, arguments.all_ranks, node=arguments.node, launcher=arguments.launcher),
        node=arguments.node,
        launcher=arguments.launcher,
        follow=arguments.follow,
        tail=arguments.tail,
        since=arguments.since,
        grep=None if arguments.grep is None else _pattern(arguments.grep),
    )
    if query.follow and arguments.output != "text":
        raise UsageError(f"cannot follow a log as {arguments.output}: a document needs an end", fix="omit -f or -o")
    run = attach_run(arguments)
    if arguments.output != "text":
        _print_list(run, query, arguments.output)
        return
    if query.follow:
        with detach_on_interrupt(run):
            printed = print_logs(run, sys.stdout, query)
            hint(f"{run.status().state}  {run.handle}")
    else:
        printed = print_logs(run, sys.stdout, query)
    if not printed and query == LogQuery(ranks=query.ranks, node=query.node, follow=query.follow):
        hint(f"the log is empty; for the launcher's log: orchestrator logs {run.name} --launcher")


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, OverflowError) as problem:
        fix = f"--grep {shlex.quote(re.escape(text))}, to search for the literal text"
        raise UsageError(f"invalid regular expression {text!r}: {problem}", fix=fix) from None


def _print_list(run: Run, query: LogQuery, style: str) -> None:
    """Print the lines as one document, item by item: a log may be larger than memory."""
    import yaml  # slow to import, and rarely needed here

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


def download(arguments: argparse.Namespace) -> None:
    """Copy outputs, and print their paths.

    Raises:
        UsageError: --all is combined with names of outputs.
    """
    if arguments.all and arguments.outputs:
        raise UsageError(
            "cannot combine --all with names of outputs", fix=f"orchestrator download {in_shell(arguments.name)} --all"
        )
    outputs = [] if arguments.all else arguments.outputs or ["model"]
    run = run_or_best(Orchestrator(arguments.backend), arguments.name, model="model" in outputs)
    line = TransferLine(sys.stderr)
    show = partial(line, run.name) if sys.stderr.isatty() else None
    try:
        paths = run.download(*outputs, to=arguments.to, force=arguments.force, progress=show)
    finally:
        line.end()
    document = {"run": run.name, "paths": [str(path) for path in paths]}
    print_result(arguments.output, document, "\n".join(document["paths"]))


def prune(arguments: argparse.Namespace) -> int:
    """Show what would be deleted, ask for confirmation, and delete it.

    Raises:
        UsageError: no rule is given, a rule is given with --purge, or stdin is not a terminal.
    """
    if arguments.purge:
        return purge(arguments)
    # Without a rule, every finished run would match: a bare `prune` must not mean `delete everything`.
    ruled = arguments.keep_last or arguments.older_than is not None or arguments.states
    if not (ruled or arguments.stores):
        raise UsageError(
            "cannot prune without a rule: give --keep-last, --older-than or --state",
            fix="orchestrator prune --keep-last 10 --dry-run",
        )
    orchestrator = Orchestrator(arguments.backend)
    pruning = orchestrator.pruning(
        keep_last=arguments.keep_last if ruled else sys.maxsize,  # --stores alone deletes no run
        older_than=arguments.older_than,
        states=[RunState(state) for state in arguments.states],
        stores=arguments.stores,
    )
    if pruning.unused_store_bytes and not arguments.stores:
        unused = bytes_text(pruning.unused_store_bytes)
        hint(f"kept: {unused} of token stores that no remaining run uses; --stores deletes them")
    for name, why in pruning.kept.items():
        hint(f"kept: {name}: {why}")
    if arguments.dry_run or not pruning.items:
        text = f"{_listed(pruning.items)}\nwould be deleted: {_amount(pruning)}" if pruning.items else None
        print_result(arguments.output, {"dry_run": arguments.dry_run, **pruning.model_dump(mode="json")}, text)
        if text is None and arguments.output == "text":
            hint("nothing to delete")
        return 0
    if not arguments.yes:
        question = f"delete {_amount(pruning)}"
        if sys.stdin.isatty():
            hint(_listed(pruning.items))
        if not confirm(question, fix="add --yes, or --dry-run to list what would be deleted"):
            hint("nothing was deleted")
            return 1
    done = orchestrator.prune(pruning)
    for name in done.kept.keys() - pruning.kept.keys():
        hint(f"kept: {name}: {done.kept[name]}")
    text = f"{_listed(done.deleted)}\nfreed {bytes_text(done.freed_bytes)}"
    print_result(arguments.output, {"dry_run": False, **done.model_dump(mode="json")}, text)
    return 0


def purge(arguments: argparse.Namespace) -> int:
    """Show all traces of runs, ask for confirmation, and delete them.

    Raises:
        UsageError: a rule is given too, or stdin is not a terminal.
    """
    if arguments.keep_last or arguments.older_than is not None or arguments.states or arguments.stores:
        raise UsageError(
            "cannot combine --purge with rules: it deletes the named runs", fix="orchestrator prune --purge RUN"
        )
    orchestrator = Orchestrator(arguments.backend)
    purging = orchestrator.purging(*dict.fromkeys(arguments.purge))
    listed, remains = _traces(purging), _remains(purging)
    if arguments.dry_run:
        text = f"{listed}\nwould be deleted: {bytes_text(purging.total_bytes)}\n{remains}"
        print_result(arguments.output, {"dry_run": True, **purging.model_dump(mode="json")}, text)
        return 0
    if not arguments.yes:
        if sys.stdin.isatty():
            hint(f"{listed}\n{remains}")
        count = counted(len(purging.runs) + len(purging.pruned), "run")
        if not confirm(f"delete all traces of {count}, permanently", fix="add --yes, or --dry-run to list them"):
            hint("nothing was deleted")
            return 1
    done = orchestrator.purge(purging)
    text = f"{_traces(done)}\nfreed {bytes_text(done.total_bytes)}\n{_remains(done)}"
    print_result(arguments.output, {"dry_run": False, **done.model_dump(mode="json")}, text)
    return 0


def _traces(purging: Purging) -> str:
    return "\n".join([_listed(purging.items), *purging.records])


def _remains(purging: Purging) -> str:
    return "\n".join(["remains:", *(f"  {line}" for line in purging.remains)])


def _amount(pruning: Pruning) -> str:
    kinds = ((pruning.runs, "run"), (pruning.leftovers, "leftover"), (pruning.token_stores, "token store"))
    return ", ".join([*(counted(len(items), noun) for items, noun in kinds if items), bytes_text(pruning.total_bytes)])


def _listed(items: list[Item]) -> str:
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


def sync_mlflow(arguments: argparse.Namespace) -> int:
    """Copy runs and sweeps to MLflow, one after the other; the exit code is 7 if any of them failed.

    Raises:
        AuthError: the server of --to refused the credentials.
        ServiceError: it does not answer.
        UsageError: neither runs nor --all are given, or both, or MLflow cannot use the address.
    """
    if arguments.all == bool(arguments.name):
        raise UsageError("cannot sync with MLflow: give either runs or --all", fix="orchestrator mlflow sync --all")
    orchestrator = Orchestrator(arguments.backend)
    found = [find_target(orchestrator, name) for name in dict.fromkeys(arguments.name)]
    if arguments.all:  # sweeps last: they nest and tag the runs of their trials
        # a run after the run that it started from, whose MLflow run it names
        everything: list[Run | Sweep] = [*reversed(orchestrator.attach_all()), *orchestrator.sweeps.all()]
        found = [one for one in everything if _is_copied(one)]
    if arguments.to is not None:
        arguments.to = checked_address(arguments.to)
        check_server(arguments.to)
    documents: list[dict[str, Any]] = []
    total = len(found)
    try:
        for number, one in enumerate(found, start=1):
            try:
                documents.append(_synced(one, arguments.to))
            except NotFoundError:  # deleted meanwhile
                if not arguments.all:
                    raise
                total -= 1
                continue
            if arguments.output == "text":
                write_line(_sync_line(documents[-1], number, len(found)), sys.stdout)
    except (AuthError, ServiceError) as outage:
        hint(str(outage))
    failed = total - sum("error" not in document for document in documents)
    done = f"{total - failed} of {total} in MLflow" + (f", {failed} not copied" if failed else "")
    print_result(arguments.output, {"runs": documents, "failed": failed}, done)
    return ServiceError.exit_code if failed else 0


def _is_copied(one: Run | Sweep) -> bool:
    """Return whether a run or a sweep is copied to MLflow."""
    try:
        return one.copies_to_mlflow
    except StorageError:  # damaged: `_synced` reports it
        return True


def _synced(one: Run | Sweep, to: str | None) -> dict[str, Any]:
    """Copy a run or a sweep; return the entry of the document.

    Raises:
        AuthError: the server of --to no longer accepts the credentials.
        NotFoundError: the run or the sweep no longer exists.
        ServiceError: it has been away for too long.
    """
    for last in (True,) if to is None else (False, True):
        try:
            found = one.sync_mlflow(to)
        except (ServiceError, StorageError) as problem:
            failure = problem
        else:
            if found.note:
                hint(f"warning: {found.note}")
            return {"name": one.name, **asdict(found)}
        if to is not None and not last:
            check_server(to, RESTART_SECONDS)
    hint(str(failure))
    return {"name": one.name, **failure.as_json()}


def _sync_line(document: dict[str, Any], number: int, total: int) -> str:
    count = f"{number}/{total}  " if total > 1 else ""
    if "error" in document:
        return f"{count}{document['name']}  not copied"
    return f"{count}{document['name']}  {document['status']}  {counted(document['values'], 'value')} copied"
