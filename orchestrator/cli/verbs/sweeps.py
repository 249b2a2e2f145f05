"""sweep list, show, best, report, extend, retry; and the parts of submit, plan and validate for sweeps."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml

from orchestrator.cli.ui.spec_flags import flags_of
from orchestrator.cli.ui.sweep_view import best_text, finish, follow_sweep, plan_text, sweep_text
from orchestrator.cli.ui.terminal import hint, print_result, table
from orchestrator.client import Orchestrator
from orchestrator.support.errors import StorageError, UsageError
from orchestrator.support.formatting import ago
from orchestrator.sweep import PlannedSweep, Sweep
from train_jobs.artifacts.files import write_text
from train_jobs.artifacts.yaml_values import SpecDumper
from train_jobs.config.errors import in_shell


def list_all(arguments: argparse.Namespace) -> None:
    """Print all sweeps."""
    found = []
    for sweep in Orchestrator().sweeps.all():
        try:
            found.append(sweep.status())
        except StorageError as problem:  # one damaged sweep must not hide all others
            hint(f"warning: {problem.message}; {problem.fix}")
    rows = [
        [status.name, status.state.value, f"{status.ended}/{status.trials}", best_text(status), ago(status.created)]
        for status in found
    ]
    documents = [status.model_dump(mode="json", exclude={"rows"}) for status in found]
    print_result(arguments.output, documents, table(rows, ["SWEEP", "STATE", "TRIALS", "BEST", "SUBMITTED"]))


def _attached(arguments: argparse.Namespace) -> Sweep:
    return Orchestrator().sweeps.attach(arguments.name)


def show(arguments: argparse.Namespace) -> None:
    """Print the trials."""
    sweep = _attached(arguments)
    if arguments.watch:
        follow_sweep(sweep)
    status = sweep.status()
    print_result(arguments.output, status.as_dict(), sweep_text(status))
    if status.state.resumable and sweep.may_start_trials:
        hint(f"\nnext\n  resume  {sweep.resume_command()}")


def best(arguments: argparse.Namespace) -> None:
    """Print the best trial, and write its spec if requested."""
    sweep = _attached(arguments)
    status, row = sweep.status(), sweep.best()
    spec = sweep.best_spec() if arguments.spec is not None else {}
    if arguments.spec is not None:
        _write_spec(arguments.spec, yaml.dump(spec, Dumper=SpecDumper, sort_keys=False))
    lines = [f"trial {row.trial} of sweep {status.name}: {status.metric} {row.outcome:.6g}"]
    lines += [f"  {path}  {value}" for path, value in row.settings.items()]
    lines.append(f"  runs  {' '.join(row.runs)}")
    print_result(arguments.output, row.model_dump(mode="json"), "\n".join(lines))
    if arguments.spec is not None:
        if len(row.runs) > 1 and "seeds" not in spec:
            hint(f"the trial is {len(row.runs)} runs; the spec repeats that of seed {spec['train']['seed']}")
        hint(f"\nnext\n  orchestrator submit {sweep.folder.record().kind} -f {in_shell(arguments.spec)}")


def _write_spec(path: Path, text: str) -> None:
    """Write a spec, and create its folder if it is missing.

    Raises:
        StorageError: it cannot be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as problem:
        message = f"cannot write the spec: {problem.strerror}"
        raise StorageError(message, facts={"where": path}, fix="--spec FILE") from problem


def report(arguments: argparse.Namespace) -> None:
    """Write the page, and its figures if requested; print their paths."""
    sweep = _attached(arguments)
    paths = [sweep.report(arguments.to), *(sweep.pictures(arguments.png) if arguments.png else [])]
    print_result(arguments.output, {"files": [str(path) for path in paths]}, "\n".join(map(str, paths)))


def extend(arguments: argparse.Namespace) -> int:
    """Add trials, or raise limits, and follow the sweep.

    Raises:
        UsageError: neither is given.
    """
    if arguments.trials is arguments.hours is arguments.cost is None:
        fix = f"orchestrator sweep extend {in_shell(arguments.name)} --trials 20"
        raise UsageError("cannot extend the sweep without --trials, --hours or --cost", fix=fix)
    sweep = _attached(arguments)
    sweep.extend(arguments.trials or 0, hours=arguments.hours, cost=arguments.cost)
    return finish(sweep, arguments.output, followed=not arguments.detach)


def retry(arguments: argparse.Namespace) -> int:
    """Run failed trials again, and follow the sweep."""
    sweep = _attached(arguments)
    sweep.retry(arguments.trials)
    hint(f"resumed  {sweep.name}")
    return finish(sweep, arguments.output, followed=not arguments.detach)


def submit_sweep(arguments: argparse.Namespace) -> int:
    """Start a sweep and follow it to its end."""
    planned = planned_sweep(arguments)
    hint(plan_text(planned))
    sweep = Orchestrator().sweeps.submit(planned)
    hint(f"\n{'submitted' if sweep.created else 'already exists'}  {sweep.name}")
    if not sweep.created and (ineffective := sweep.differing_limits(planned)):
        limits = ", ".join(f"limits.{key} {what}" for key, what in ineffective.items())
        hint(f"warning: {limits} has no effect on the existing sweep; orchestrator sweep extend raises limits")
    return finish(sweep, arguments.output, followed=not arguments.detach)


def show_plan(arguments: argparse.Namespace) -> None:
    """Print the plan of a sweep; for a sweep that a service drives, also the exact request."""
    planned = planned_sweep(arguments)
    document: dict[str, Any] = {"sweep": planned.record.model_dump(mode="json"), "plan": planned.plan.as_dict()}
    if planned.submission is not None:
        document["request"] = planned.submission.export
    print_result(arguments.output, document, plan_text(planned))


def planned_sweep(arguments: argparse.Namespace) -> PlannedSweep:
    """Return the sweep that a command line describes, and print its warnings."""
    flags = flags_of(arguments)
    # Flags set keys of the trial, but --name and --recipe name the sweep itself: they become keys of the sweep.
    own = {key: flags.pop(key) for key in ("name", "recipe") if key in flags}
    sets = [f"{key}={flag.value}" for key, flag in own.items()]
    planned = Orchestrator().sweeps.plan(file=arguments.file, sets=[*sets, *arguments.sets], flags=flags)
    if getattr(arguments, "new", False):
        hint("warning: --new has no effect on a sweep: --name starts another sweep of the same plan")
    for warning in planned.record.warnings:
        hint(f"warning: {warning}")
    return planned
