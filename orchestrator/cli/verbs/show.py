"""list, status, report, diff, cost, debug: show runs and their results."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from orchestrator.cli.ui.follow import detach_on_interrupt, watch
from orchestrator.cli.ui.render import mlflow_table, next_commands, status_text
from orchestrator.cli.ui.run_list import DEFAULT_LIMIT, RunList
from orchestrator.cli.ui.targets import attach_run, find_target
from orchestrator.cli.ui.terminal import (
    aligned,
    hint,
    print_document,
    print_result,
    shortened,
    table,
    terminal_of,
    write_line,
)
from orchestrator.client import Orchestrator
from orchestrator.run import Run
from orchestrator.runs.status import RunState, RunStatus
from orchestrator.support.errors import NotFoundError, StorageError, UsageError
from orchestrator.support.formatting import counted, duration, money

if TYPE_CHECKING:
    from orchestrator.estimates.cost import RunCost
    from orchestrator.runs.differences import Difference
    from orchestrator.runs.mlflow_runs import MlflowRun
    from orchestrator.runs.significance import ScoreTests

NO_RUNS = "no runs yet\n  fix  orchestrator submit pretrain"
NO_PRICE = "no price (set it at submission: --set compute.price_per_hour=USD)"
REPEATED = "REPEATED: node hours of steps that were done again, because a restart resumed from an earlier checkpoint"
LISTED_FILES = 20
SECTIONS = ("spec", "compute", "environment", "data")  # of a difference
# keys of results with hundreds of figures, which the report has as tables
DETAILS = ("seeds.", "sets.", "table.", "tasks.")
NOTHING_DIFFERS = "\nsame spec, compute, environment, data and code"


def list_runs(arguments: argparse.Namespace) -> None:
    """Print runs, or with --mlflow those of an MLflow store or server and ours.

    Raises:
        UsageError: --experiment is given without --mlflow, or --trials with it.
    """
    states, orchestrator = [RunState(state) for state in arguments.states], Orchestrator(arguments.backend)
    found: list[RunStatus] | list[MlflowRun]
    is_cut = False
    if arguments.trials and arguments.mlflow is not None:
        raise UsageError("cannot use --trials with --mlflow, which lists all runs", fix="orchestrator list --trials")
    if arguments.mlflow is not None:
        limits = {"experiment": arguments.experiment, "states": states, "limit": arguments.limit}
        found = others = orchestrator.mlflow_runs(arguments.mlflow, **limits)
        text = mlflow_table(others)
    elif arguments.experiment is not None:
        raise UsageError("cannot use --experiment without --mlflow", fix="add --mlflow URI")
    elif arguments.output != "text":
        found, text = orchestrator.runs(states=states, limit=arguments.limit), ""
    else:
        # trials are runs in a state, which a folded sweep would hide
        # a function, since `sweeps` imports what a list without trials does not need
        rows = RunList(lambda name: orchestrator.sweeps.find(name), trials=arguments.trials or bool(states))
        text = rows.text(orchestrator.iter_runs(states=states), arguments.limit or DEFAULT_LIMIT)
        found = []
        is_cut = not rows.complete and not arguments.limit
    if arguments.output != "text":
        print_document([one.as_dict() for one in found], arguments.output)
    elif text:
        write_line(text, sys.stdout)
        if is_cut:
            hint(f"the newest {DEFAULT_LIMIT}; for older ones add --limit N")
    elif states:
        hint(f"no run is {' or '.join(states)}\n  fix  orchestrator list")
    else:
        hint(NO_RUNS)


def status(arguments: argparse.Namespace) -> None:
    """Print the status of a run, or its lineage."""
    run = attach_run(arguments)
    if arguments.lineage:
        from orchestrator.runs.lineage_report import lineage_text

        checked = run.lineage()
        print_result(arguments.output, checked.as_dict(), lineage_text(checked))
    elif arguments.watch:
        with detach_on_interrupt(run):
            watch(run, sys.stdout, arguments.output)
    else:
        found = run.status()
        print_result(arguments.output, found.as_dict(), status_text(found))
        if arguments.output == "text":
            next_commands(found)


def stacks(arguments: argparse.Namespace) -> None:
    """Print the stacks of a run's ranks."""
    run = attach_run(arguments)
    found = run.stacks(rank=arguments.rank)
    document = {"run": str(run.handle), "stacks": {str(rank): text for rank, text in found.items()}}
    print_result(arguments.output, document, "\n\n".join(f"rank {rank}\n{text}" for rank, text in found.items()))
    if arguments.output == "text":
        hint(
            "\ninnermost frame first; if all ranks but one wait in all_reduce, that one is stuck\n"
            f"  again   orchestrator debug {run.name}\n"
            f"  cancel  orchestrator cancel {run.name}"
        )


def report(arguments: argparse.Namespace) -> None:
    """Write the page, and its figures if requested; print their paths.

    Raises:
        UsageError: a sweep is combined with other runs, or the runs cannot be compared.
    """
    orchestrator = Orchestrator(arguments.backend)
    found = [find_target(orchestrator, name) for name in arguments.name]
    runs = [one for one in found if isinstance(one, Run)]
    sweeps = [one for one in found if not isinstance(one, Run)]
    if sweeps and len(found) > 1:
        raise UsageError(
            "cannot combine a sweep with other runs in one report",
            facts={"sweep": sweeps[0].name},
            fix=f"orchestrator report {sweeps[0].name}",
        )
    if sweeps:
        page = sweeps[0].report(arguments.to)
        pictures = sweeps[0].pictures(arguments.png) if arguments.png else []
    else:
        page = runs[0].report(arguments.to, compare_with=runs[1:])
        pictures = runs[0].pictures(arguments.png, compare_with=runs[1:]) if arguments.png else []
    document = {"report": str(page), "pictures": [str(path) for path in pictures]}
    print_result(arguments.output, document, "\n".join(map(str, [page, *pictures])))


def diff(arguments: argparse.Namespace) -> None:
    """Print the differences between two runs."""
    orchestrator = Orchestrator(arguments.backend)
    a, b = (_compared(orchestrator, name, arguments.mlflow) for name in arguments.name)
    if isinstance(a, Run) and isinstance(b, Run):
        difference = a.compare(b, patch=arguments.code)
    else:
        from orchestrator.runs.mlflow_runs import compare_runs

        difference = compare_runs(*(one.as_mlflow_run() if isinstance(one, Run) else one for one in (a, b)))
    print_result(arguments.output, difference.model_dump(mode="json"), "\n".join(_difference_lines(difference)))


def _compared(orchestrator: Orchestrator, name: str, uri: str | None) -> Run | MlflowRun:
    """Return a run; one that is unknown here is looked up in MLflow, if its URI is given."""
    try:
        return orchestrator.attach(name)
    except NotFoundError:
        if uri is None:
            raise
    from orchestrator.runs.mlflow_runs import find_run

    return find_run(uri, name)


def _difference_lines(difference: Difference) -> Iterator[str]:
    yield f"a  {difference.a}"
    yield f"b  {difference.b}"
    for name in SECTIONS:
        yield from _section(name, getattr(difference, name))
    if code := difference.code:
        yield "\ncode"
        files = [(word, path) for word in ("added", "removed", "changed") for path in getattr(code, word)]
        yield from (f"  {word:<7}  {path}" for word, path in files[:LISTED_FILES])
        if len(files) > LISTED_FILES:
            yield f"  and {len(files) - LISTED_FILES} more files (-o json lists all)"
        if not files:
            yield f"  digest  {code.digest['a'][:8]} -> {code.digest['b'][:8]}"
    elif not any(getattr(difference, name) for name in SECTIONS):
        yield NOTHING_DIFFERS
    rows = [
        [key, *(_value_text(pair[side]) if side in pair else "" for side in ("a", "b", "difference"))]
        for key, pair in difference.results.items()
        if not key.startswith(DETAILS) and not any(isinstance(value, list) for value in pair.values())
    ]
    yield "\n" + table(rows, ("results", "a", "b", "b - a"))
    yield from _test_lines(difference.significance)
    if code and code.patch:
        yield "\n" + code.patch.rstrip("\n")


def _test_lines(found: ScoreTests) -> Iterator[str]:
    """Yield the table of tests and what they assume."""
    for scored, tests in groupby(found.tests, lambda test: (test.scored, test.rows)):
        rows = [
            [
                test.metric,
                *(f"{value:.4f}" for value in (test.score_a, test.score_b)),
                f"{test.difference:+.4f}",
                f"{test.p:.4f}",
                test.method,
            ]
            for test in tests
        ]
        yield "\n" + table(rows, (f"{scored[0]}, {scored[1]:,} rows", "a", "b", "b - a", "p", "test"))
    if found.notes:
        yield ""
        yield from found.notes


def _section(name: str, pairs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield `key  a -> b` where it fits on a line of the terminal, else a and b below the key."""
    if not pairs:
        return
    yield f"\n{name}"
    width, columns = max(len(key) for key in pairs), terminal_of().columns
    for key, pair in pairs.items():
        old, new = (_value_text(pair[side]) if side in pair else "(none)" for side in ("a", "b"))
        line = f"  {key:<{width}}  {old} -> {new}"
        if columns is None or len(line) <= columns:
            yield line
        else:
            yield from (f"  {key}", f"    a  {shortened(old, columns - 7)}", f"    b  {shortened(new, columns - 7)}")


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


def cost(arguments: argparse.Namespace) -> None:
    """Print machine hours and cost.

    Raises:
        UsageError: neither runs nor --all are given, or both.
    """
    if arguments.all == bool(arguments.name):
        raise UsageError("cannot show costs: give either runs or --all", fix="orchestrator cost @last")
    orchestrator = Orchestrator(arguments.backend)
    costs = []
    named = {str(run.handle): run for run in map(orchestrator.attach, arguments.name)}  # a run once, however named
    for run in named.values() if named else orchestrator.attach_all():
        try:
            costs.append(run.cost())
        except NotFoundError:
            if not arguments.all:  # else it was deleted meanwhile
                raise
        except StorageError as problem:
            if not arguments.all:
                raise
            hint(f"warning: {problem.message}; its cost is not counted")
    total = _total(costs)
    document = {"runs": [cost.model_dump(mode="json") for cost in costs], "total": total}
    text = _cost_text(costs[0]) if len(costs) == 1 else _cost_table(costs, total) if costs else None
    print_result(arguments.output, document, text)
    if not costs and arguments.output == "text":
        hint(NO_RUNS)


def _cost_text(cost: RunCost) -> str:
    origin = f" ({cost.price_origin})" if cost.price_origin else ""
    price = NO_PRICE if cost.price_per_hour is None else f"{money(cost.price_per_hour)} per node and hour{origin}"
    rows = [
        (
            "node hours",
            f"{_hours(cost.node_hours)}: {counted(cost.attempts, 'attempt')} on {counted(cost.nodes, 'node')}",
        ),
        ("process hours", _hours(cost.process_hours)),
        ("price", price),
        ("cost", NO_PRICE if cost.cost is None else money(cost.cost)),
    ]
    if cost.repeated_node_hours:
        repeated = (
            f"{counted(cost.repeated_steps, 'step')} done again after a restart, {_hours(cost.repeated_node_hours)}"
        )
        rows.append(("repeated", repeated + ("" if cost.repeated_cost is None else f", {money(cost.repeated_cost)}")))
    return "\n".join([cost.name, *aligned(rows)])


def _hours(hours: float) -> str:
    """Return machine hours as `42 s`, `2 min 05 s`, `1.5 h` or `1,204 h`."""
    if hours < 1:
        return duration(hours * 3600)
    return f"{hours:,.0f} h" if hours >= 100 else f"{hours:.3g} h"


def _cost_table(costs: list[RunCost], total: dict[str, Any]) -> str:
    documents = [*(cost.model_dump() for cost in costs), {"name": "total", **total}]
    rows = [
        [
            found["name"],
            _hours(found["node_hours"]),
            _hours(found["process_hours"]),
            "" if found["cost"] is None else money(found["cost"]),
            _hours(found["repeated_node_hours"]) if found["repeated_node_hours"] else "",
        ]
        for found in documents
    ]
    text = table(rows, ("RUN", "NODE HOURS", "PROCESS HOURS", "COST", "REPEATED"))
    unpriced = total["runs_without_price"]
    if total["repeated_node_hours"]:
        text += f"\n{REPEATED}"
    return text + (f"\n{unpriced} of {len(costs)} runs: {NO_PRICE}" if unpriced else "")


def _total(costs: list[RunCost]) -> dict[str, Any]:
    """Return the sums over all runs; the cost covers runs with a price; None: no run has one."""
    priced = [cost.cost for cost in costs if cost.cost is not None]
    return {
        "node_hours": sum(cost.node_hours for cost in costs),
        "process_hours": sum(cost.process_hours for cost in costs),
        "repeated_node_hours": sum(cost.repeated_node_hours for cost in costs),
        "cost": sum(priced) if priced else None,
        "runs_without_price": len(costs) - len(priced),
    }
