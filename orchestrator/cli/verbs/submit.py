"""submit, plan, validate: turn a spec, or a job file of another program, into a run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from orchestrator.cli.ui.follow import finish
from orchestrator.cli.ui.render import next_commands
from orchestrator.cli.ui.spec_flags import SWEEP, flags_of, given_flags
from orchestrator.cli.ui.terminal import hint, print_document, print_result
from orchestrator.client import Orchestrator
from orchestrator.jobs.registry import is_kind
from orchestrator.support.errors import UsageError
from orchestrator.support.formatting import LABEL, fact_lines
from train_jobs.config.pretrain import OBSERVERS

if TYPE_CHECKING:
    from orchestrator.backends.base import Submission
    from orchestrator.jobs.base import Plan
    from orchestrator.run import Run


def validate(arguments: argparse.Namespace) -> None:
    """Print the name of the run or the sweep if its spec is valid."""
    if arguments.kind == SWEEP:
        from orchestrator.cli.verbs.sweeps import planned_sweep

        name = planned_sweep(arguments).record.name
    elif is_kind(arguments.kind):
        name = _plan(arguments).name
    else:
        name = _prepared_file(arguments).run
    print_result(arguments.output, {"valid": True, "name": name}, f"valid: {name}")


def plan(arguments: argparse.Namespace) -> None:
    """Print the plan and the exact request; `--dry-run` of submit is this function, so the two cannot differ."""
    style = arguments.output
    if arguments.kind == SWEEP:
        from orchestrator.cli.verbs.sweeps import show_plan

        show_plan(arguments)
    elif not is_kind(arguments.kind):
        submission = _prepared_file(arguments)
        print_document(submission.export if style == "yaml" else submission.as_dict(), style.replace("text", "json"))
    else:
        planned = _plan(arguments)
        submission = Orchestrator().prepare(planned, new=arguments.new)
        document = submission.as_dict()
        request = yaml.safe_dump(document["request"], sort_keys=False, width=10_000).splitlines()
        lines = [planned.summary(), *_notes(submission), f"\nrequest to the {planned.spec.backend} backend"]
        exported = submission.export if style == "yaml" else None
        print_result(style, exported or document, "\n".join([*lines, *(f"  {line}" for line in request)]))


def submit(arguments: argparse.Namespace) -> int:
    """Start the run and follow it to its end."""
    if arguments.dry_run:
        plan(arguments)
        return 0
    if arguments.kind == SWEEP:
        from orchestrator.cli.verbs.sweeps import submit_sweep

        return submit_sweep(arguments)
    if not is_kind(arguments.kind):
        run = Orchestrator().submit(_prepared_file(arguments))
        hint(f"submitted  {run.handle}")
        next_commands(run.status())
        return finish(run, arguments.output, follow=not arguments.detach)
    planned = _plan(arguments)
    submission = Orchestrator().prepare(planned, new=arguments.new)
    hint("\n".join([planned.summary(), *_notes(submission)]))
    run = Orchestrator().submit(submission, new=arguments.new)
    status = run.status()
    hint(f"\n{'submitted' if run.created else 'already exists: ' + status.state.value}  {run.handle}")
    if not run.created and (ineffective := _ineffective_changes(run, planned)):
        hint(f"warning: {', '.join(ineffective)} has no effect on the existing run; --new starts another run")
    if not status.state.terminal:
        next_commands(status)
    return finish(run, arguments.output, follow=not arguments.detach, delivery=planned.delivery)


def _plan(arguments: argparse.Namespace) -> Plan:
    flags = flags_of(arguments)
    found = Orchestrator().plan(arguments.kind, file=arguments.file, flags=flags, sets=arguments.sets)
    for warning in found.warnings:
        hint(f"warning: {warning}")
    return found


def _prepared_file(arguments: argparse.Namespace) -> Submission:
    """Return the request for a job file of another program.

    Raises:
        UsageError: flags that describe a job are given too, or the chosen backend does not read job files.
        SpecError: the file has mistakes; all are listed.
    """
    if given := given_flags(arguments):
        text = f"cannot combine {', '.join(given)} with a job file"
        raise UsageError(text, fix=f"edit {arguments.kind}")
    return Orchestrator(arguments.backend).prepare_file(Path(arguments.kind))


def _notes(submission: Submission) -> list[str]:
    """Return the notes of a submission as lines of the plan's summary."""
    notes = (note.partition(": ") for note in submission.notes)
    return fact_lines([(label, text) for label, _, text in notes], label=LABEL)


def _ineffective_changes(run: Run, plan: Plan) -> list[str]:
    """Return the user's settings that the existing run of the same hash does not have, as `key=value`."""
    # Settings of observers, such as tensorboard or the profiler, do not change the hash: a submission that changes
    # only these returns the existing run, which would silently ignore them.
    existing, found = run.plan()["job"], []
    for path, change in plan.changes.items():
        section, _, key = path.partition(".")
        if section in OBSERVERS and section in existing and existing[section][key] != change.value:
            found.append(f"{path}={json.dumps(change.value)}")
    return found
