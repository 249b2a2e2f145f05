"""diff, cost: the differences between runs, and what they took."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from orchestrator.cli.ui.arguments import add_output, add_run, add_verb, orchestrator_of
from orchestrator.cli.ui.terminal import hint, print_document, print_result, shortened, table, terminal_of

if TYPE_CHECKING:
    from orchestrator.estimates.cost import RunCost
    from orchestrator.runs.differences import Difference

NO_PRICE = "no price (--set compute.price_per_hour=USD, at submission)"
LISTED_FILES = 20


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the parser."""
    diff = add_verb(
        verbs,
        "diff",
        run_diff,
        summary="show the differences between two runs",
        description="Show the differences between two runs: spec, compute, packages, text and code; and the results of"
        " both.",
        example="diff @last pretrain-tiny-4e919d08 --code",
    )
    add_run(diff, count=2)
    diff.add_argument("--code", action="store_true", help="also the changed lines of the code")
    add_output(diff)
    cost = add_verb(
        verbs,
        "cost",
        run_cost,
        summary="show hours and cost of runs",
        description="Machine hours of all attempts of runs, their price, and what of it was done twice.",
        example="cost --all",
    )
    add_run(cost, count="*")
    cost.add_argument("--all", action="store_true", help="of every run")
    add_output(cost)


def run_diff(arguments: argparse.Namespace) -> int:
    """Prints what differs."""
    orchestrator = orchestrator_of(arguments)
    a, b = (orchestrator.attach(name) for name in arguments.name)
    difference = a.compare(b, patch=arguments.code)
    print_result(arguments.output, difference.model_dump(mode="json"), lambda: "\n".join(_difference_lines(difference)))
    return 0


def run_cost(arguments: argparse.Namespace) -> int:
    """Prints hours and money."""
    from orchestrator.support.errors import StorageError, UsageError

    if arguments.all == bool(arguments.name):
        raise UsageError("cost needs runs, or --all", fix="orchestrator cost @last")
    orchestrator = orchestrator_of(arguments)
    runs = [orchestrator.attach(name) for name in arguments.name] or orchestrator.attach_all()
    costs = []
    for run in runs:
        try:
            costs.append(run.cost())
        except StorageError as problem:
            if not arguments.all:
                raise
            hint(f"warning: {problem.message}: not counted")
    if arguments.output != "text":
        document = {"runs": [cost.model_dump(mode="json") for cost in costs], "total": _total(costs)}
        print_document(document, arguments.output)
    elif len(costs) == 1:
        print(_cost_text(costs[0]))
    elif costs:
        print(_cost_table(costs))
    else:
        hint("no runs yet\n  fix  orchestrator submit pretrain")
    return 0


def _difference_lines(difference: Difference) -> Iterator[str]:
    yield f"a  {difference.a}"
    yield f"b  {difference.b}"
    sections = ("spec", "compute", "environment", "data")
    for name in sections:
        yield from _section(name, getattr(difference, name))
    if code := difference.code:
        yield "\ncode"
        files = [(word, path) for word in ("added", "removed", "changed") for path in getattr(code, word)]
        yield from (f"  {word:<7}  {path}" for word, path in files[:LISTED_FILES])
        if len(files) > LISTED_FILES:
            yield f"  and {len(files) - LISTED_FILES} more files (-o json names them all)"
        if not files:
            yield f"  digest  {code.digest['a'][:8]} -> {code.digest['b'][:8]}"
    if not code and not any(getattr(difference, name) for name in sections):
        yield "\nsame spec, compute, environment, data and code"
    yield from _results(difference)
    if code and code.patch:
        yield "\n" + code.patch.rstrip("\n")


def _section(name: str, pairs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """`key  a -> b` where that fits the terminal's lines, else a and b below the key."""
    if not pairs:
        return
    yield f"\n{name}"
    width, columns = max(len(key) for key in pairs), terminal_of().columns
    for key, pair in pairs.items():
        old, new = (_word(pair[side]) if side in pair else "(none)" for side in ("a", "b"))
        line = f"  {key:<{width}}  {old} -> {new}"
        if columns is None or len(line) <= columns:
            yield line
        else:
            yield from (f"  {key}", f"    a  {shortened(old, columns - 7)}", f"    b  {shortened(new, columns - 7)}")


def _results(difference: Difference) -> Iterator[str]:
    rows = [
        [key, *(_word(pair[side]) if side in pair else "" for side in ("a", "b", "difference"))]
        for key, pair in difference.results.items()
    ]
    yield "\n" + table(rows, ("results", "a", "b", "b - a"))


def _word(value: Any) -> str:
    import json

    if isinstance(value, str):
        return value
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


def _cost_text(cost: RunCost) -> str:
    from orchestrator.cli.ui.render import counted, money

    def priced(usd: float | None) -> str:
        return "" if usd is None else f", {money(usd)}"

    origin = f" ({cost.price_origin})" if cost.price_origin else ""
    price = NO_PRICE if cost.price_per_hour is None else f"{money(cost.price_per_hour)} a node and hour{origin}"
    rows = [
        ("node hours", f"{cost.node_hours:.3g}: {counted(cost.attempts, 'attempt')} on {counted(cost.nodes, 'node')}"),
        ("process hours", f"{cost.process_hours:.3g}"),
        ("price", price),
        ("cost", NO_PRICE if cost.cost is None else money(cost.cost)),
    ]
    if cost.repeated_node_hours:
        again = f"{cost.repeated_steps} steps, {cost.repeated_node_hours:.3g} node hours{priced(cost.repeated_cost)}"
        rows.append(("repeated", again))
    return "\n".join([cost.name, *(f"  {label:<13}  {text}" for label, text in rows)])


def _cost_table(costs: list[RunCost]) -> str:
    from orchestrator.cli.ui.render import money

    def cells(hours: float, processes: float, cost: float | None, repeated: float) -> list[str]:
        return [f"{hours:.3g}", f"{processes:.3g}", "" if cost is None else money(cost), f"{repeated:.3g}"]

    rows = [
        [cost.name, *cells(cost.node_hours, cost.process_hours, cost.cost, cost.repeated_node_hours)] for cost in costs
    ]
    total = _total(costs)
    rows.append(
        ["total", *cells(total["node_hours"], total["process_hours"], total["cost"], total["repeated_node_hours"])]
    )
    text = table(rows, ("RUN", "NODE HOURS", "PROCESS HOURS", "COST", "REPEATED"))
    unpriced = total["runs_without_price"]
    return text + (f"\n{unpriced} of {len(costs)} runs: {NO_PRICE}" if unpriced else "")


def _total(costs: list[RunCost]) -> dict[str, Any]:
    """Sums over runs; the cost of those that have a price, None where none has."""
    priced = [cost.cost for cost in costs if cost.cost is not None]
    return {
        "node_hours": sum(cost.node_hours for cost in costs),
        "process_hours": sum(cost.process_hours for cost in costs),
        "repeated_node_hours": sum(cost.repeated_node_hours for cost in costs),
        "cost": sum(priced) if priced else None,
        "runs_without_price": len(costs) - len(priced),
    }
