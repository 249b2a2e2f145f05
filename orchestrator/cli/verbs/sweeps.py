"""sweep list, show, best, extend, and what submit, plan, validate, resume and cancel do with a sweep."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.ui.sweep_view import _best_text, _finish, follow, leaving_alone, plan_text, sweep_text

if TYPE_CHECKING:
    from orchestrator.specs.resolved import Flag
    from orchestrator.sweep import PlannedSweep, Sweep

CANCEL_SECONDS = 120.0  # of trials that save a checkpoint each


def add_verbs(verbs: Any) -> None:
    """Adds the verb and what it does to the parser."""
    from orchestrator.cli.ui import completers
    from orchestrator.cli.ui.arguments import add_group, add_output, add_verb

    actions = add_group(
        verbs,
        "sweep",
        summary="many trials of one job",
        description="Look at sweeps, and let them have more trials. orchestrator submit sweep starts one, resume goes"
        " on with one, cancel ends one.",
        example="sweep show @last -w",
    )

    def add(name: str, run: Any, summary: str, example: str, more: str) -> argparse.ArgumentParser:
        parser = add_verb(
            actions, name, run, summary=summary, description=f"{summary.capitalize()}{more}", example=f"sweep {example}"
        )
        if name != "list":
            which = parser.add_argument("name", metavar="SWEEP", help="name, its beginning, or @last")
            completers.attach(which, completers.sweeps)
        add_output(parser)
        return parser

    add("list", run_list, "list sweeps", "list", ", the newest first: state, trials that have ended, best of them.")
    show = add(
        "show",
        run_show,
        "show the trials of a sweep",
        "show @last -w",
        ": state, last and best report, settings. * is the best.",
    )
    show.add_argument("-w", "--watch", action="store_true", help="until it has ended")
    best = add(
        "best", run_best, "show the best trial of a sweep", "best @last --spec best.yaml", ", of those that have ended."
    )
    best.add_argument("--spec", type=Path, metavar="FILE", help="write the spec that runs it again")
    report = add(
        "report",
        run_report,
        "write a page about a sweep",
        "report @last --to report.html",
        ": its figures and all of its trials. So does orchestrator report SWEEP.",
    )
    report.add_argument("--to", type=Path, metavar="FILE", help="the page (default: report.html in the sweep's folder)")
    report.add_argument("--png", type=Path, metavar="FOLDER", help="write its first figures as pictures too")
    _add_extend(add)


def _add_extend(add: Callable[[str, Any, str, str, str], argparse.ArgumentParser]) -> None:
    from orchestrator.cli.ui.arguments import above_zero, positive

    extend = add(
        "extend",
        run_extend,
        "let a sweep have more trials, hours or money",
        "extend @last --trials 20 --hours 24",
        ": trials that it has are left alone.",
    )
    extend.add_argument("--trials", type=positive, metavar="N", help="so many more")
    extend.add_argument("--hours", type=above_zero, metavar="N", help="limits.hours from now on, since its submission")
    extend.add_argument("--cost", type=above_zero, metavar="N", help="limits.cost from now on, USD of all its trials")
    extend.add_argument("-d", "--detach", action="store_true", help="return once they are started")


def run_list(arguments: argparse.Namespace) -> int:
    """Prints all sweeps."""
    from orchestrator.cli.ui.render import ago, print_document
    from orchestrator.cli.ui.terminal import table
    from orchestrator.client import Orchestrator

    found = [sweep.status() for sweep in Orchestrator().sweeps.all()]
    if arguments.output != "text":
        print_document([status.model_dump(mode="json", exclude={"rows"}) for status in found], arguments.output)
        return 0
    rows = [
        [status.name, status.state.value, f"{status.ended}/{status.trials}", _best_text(status), ago(status.created)]
        for status in found
    ]
    print(table(rows, ["SWEEP", "STATE", "TRIALS", "BEST", "SUBMITTED"]))
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """Prints the trials."""
    from orchestrator.cli.ui.render import print_document

    sweep = _attached(arguments)
    if arguments.watch:
        follow(sweep)
    status = sweep.status()
    if arguments.output != "text":
        print_document(status.as_dict(), arguments.output)
    else:
        print(sweep_text(status))
    return 0


def run_best(arguments: argparse.Namespace) -> int:
    """Prints the best trial, and writes its spec."""
    import yaml

    from orchestrator.cli.ui.render import hint, print_document
    from train_jobs.config.names import in_shell

    sweep = _attached(arguments)
    status, row = sweep.status(), sweep.best()
    if arguments.spec is not None:
        _write_spec(arguments.spec, yaml.safe_dump(sweep.best_spec(), sort_keys=False))
    if arguments.output != "text":
        print_document(row.model_dump(mode="json"), arguments.output)
    else:
        print(f"trial {row.trial} of sweep {status.name}: {status.metric} {row.outcome:.6g}")
        for path, value in row.settings.items():
            print(f"  {path}  {value}")
        print(f"  runs  {' '.join(row.runs)}")
    if arguments.spec is not None:
        hint(f"\nnext\n  orchestrator submit {sweep.folder.record().kind} -f {in_shell(arguments.spec)}")
    return 0


def _write_spec(path: Path, text: str) -> None:
    """Writes a spec, in a folder that is made if it is missing.

    Raises:
        StorageError: it cannot be written there.
    """
    from orchestrator.support.errors import StorageError
    from train_jobs.artifacts.files import write_text

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as problem:
        told = f"cannot write the spec: {problem.strerror}"
        raise StorageError(told, facts={"where": path}, fix="--spec FILE") from problem


def run_report(arguments: argparse.Namespace) -> int:
    """Writes the page, and pictures if asked; prints where they are."""
    from orchestrator.cli.ui.render import print_document

    sweep = _attached(arguments)
    paths = [sweep.report(arguments.to)]
    if arguments.png is not None:
        paths += sweep.pictures(arguments.png)
    if arguments.output != "text":
        print_document({"files": [str(path) for path in paths]}, arguments.output)
    else:
        print("\n".join(map(str, paths)))
    return 0


def run_extend(arguments: argparse.Namespace) -> int:
    """Goes on with more trials, or other limits."""
    from orchestrator.support.errors import UsageError

    if arguments.trials is arguments.hours is arguments.cost is None:
        fix = f"orchestrator sweep extend {arguments.name} --trials 20"
        raise UsageError("nothing to extend by: --trials, --hours or --cost says what", fix=fix)
    sweep = _attached(arguments)
    sweep.extend(arguments.trials or 0, hours=arguments.hours, cost=arguments.cost)
    return _finish(sweep, arguments.output, followed=not arguments.detach)


def submit_sweep(arguments: argparse.Namespace) -> int:
    """Starts a sweep and follows it to its end."""
    from orchestrator.cli.ui.render import hint
    from orchestrator.client import Orchestrator

    planned = _planned(arguments)
    hint(plan_text(planned))
    sweep = Orchestrator().sweeps.submit(planned)
    hint(f"\n{'submitted' if sweep.created else 'already there'}  {sweep.name}")
    if not sweep.created and (unheeded := sweep.differing_limits(planned)):
        told = ", ".join(f"limits.{key} {what}" for key, what in unheeded.items())
        hint(f"warning: {told}: no effect on a sweep that is there already; orchestrator sweep extend raises limits")
    return _finish(sweep, arguments.output, followed=not arguments.detach)


def resume_sweep(sweep: Sweep, arguments: argparse.Namespace) -> int:
    """Goes on with a sweep and follows it."""
    from orchestrator.cli.ui.render import hint

    if arguments.processes is not None:
        hint("warning: --processes has no effect: a sweep goes on as it was submitted")
    sweep.resume()
    hint(f"resumed  {sweep.name}")
    return _finish(sweep, arguments.output, followed=not arguments.detach)


def follow_sweep(sweep: Sweep, arguments: argparse.Namespace) -> int:
    """Follows a sweep to its end, as `attach` does a run."""
    return _finish(sweep, arguments.output, followed=True)


def wait_for_sweep(sweep: Sweep, arguments: argparse.Namespace) -> int:
    """Waits until a sweep has ended, prints how."""
    with leaving_alone(sweep):
        sweep.wait(arguments.timeout)
    return _finish(sweep, arguments.output, followed=False)


def cancel_sweeps(sweeps: Sequence[Sweep], *, wait: bool) -> list[dict[str, Any]]:
    """Ends sweeps with their trials; returns how they stand."""
    for sweep in sweeps:
        sweep.cancel()
    until = time.monotonic() + CANCEL_SECONDS
    while wait and time.monotonic() < until and any(not one.state().terminal for one in sweeps):
        time.sleep(min(sweep.poll_seconds for sweep in sweeps))
    return [sweep.status().model_dump(mode="json", exclude={"rows"}) for sweep in sweeps]


def validate_sweep(arguments: argparse.Namespace) -> int:
    """Prints the sweep's name if all is well."""
    from orchestrator.cli.ui.render import print_document

    name = _planned(arguments).record.name
    if arguments.output != "text":
        print_document({"valid": True, "name": name}, arguments.output)
    else:
        print(f"valid: {name}")
    return 0


def show_plan(arguments: argparse.Namespace) -> int:
    """Print what submit would do; where a service drives the sweep, with the very body that it gets."""
    from orchestrator.cli.ui.render import print_document

    planned = _planned(arguments)
    if arguments.output == "text":
        print(plan_text(planned))
        return 0
    document: dict[str, Any] = {"sweep": planned.record.model_dump(mode="json"), "plan": planned.plan.as_dict()}
    if planned.submission is not None:
        document["request"] = planned.submission.export
    print_document(document, arguments.output)
    return 0


def _attached(arguments: argparse.Namespace) -> Sweep:
    from orchestrator.client import Orchestrator

    return Orchestrator().sweeps.attach(arguments.name)


def _planned(arguments: argparse.Namespace) -> PlannedSweep:
    from orchestrator.cli.ui.render import hint
    from orchestrator.cli.ui.spec_flags import flags_of
    from orchestrator.client import Orchestrator

    flags: dict[str, Flag] = flags_of(arguments)
    own = {"name": flags.pop("name", None), "recipe": flags.pop("recipe", None)}
    sets = [f"{key}={flag.value}" for key, flag in own.items() if flag is not None]
    planned = Orchestrator().sweeps.plan(file=arguments.file, sets=[*sets, *arguments.sets], flags=flags)
    if getattr(arguments, "new", False):
        hint("warning: --new has no effect: a sweep of the same plan is the same sweep; --name gives another its name")
    for warning in planned.record.warnings:
        hint(f"warning: {warning}")
    return planned
