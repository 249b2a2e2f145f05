"""submit, plan, validate: turn a spec, or a job file of another program, into a run."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from orchestrator.backends import load_backend
from orchestrator.cli.ui.follow import finish, follow_run
from orchestrator.cli.ui.render import next_commands
from orchestrator.cli.ui.spec_flags import SWEEP, flags_of, given_flags
from orchestrator.cli.ui.terminal import hint, print_document, print_result
from orchestrator.client import Orchestrator
from orchestrator.jobs.phases import Phases
from orchestrator.jobs.registry import is_kind
from orchestrator.runs.status import RunState
from orchestrator.support.errors import UsageError
from orchestrator.support.formatting import LABEL, fact_lines
from orchestrator.support.home import home_folder
from train_jobs.config.pretrain import OBSERVERS

if TYPE_CHECKING:
    from orchestrator.backends.base import Submission
    from orchestrator.jobs.base import Plan
    from orchestrator.run import Run

OF_THE_JOB = (*OBSERVERS, "card")  # sections of the job that do not change the hash of a run
OF_THE_SPEC = ("compute", "max_preemptions", "max_restarts", "notify", "tags", "tracking")  # those of the spec


def validate(arguments: argparse.Namespace) -> None:
    """Print the name of the run or the sweep if its spec is valid."""
    if arguments.kind == SWEEP:
        from orchestrator.cli.verbs.sweeps import planned_sweep

        name = planned_sweep(arguments).record.name
    elif is_kind(arguments.kind):
        name = _next_run(_plan(arguments)).name
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
        phases = planned if isinstance(planned, Phases) else None
        submission = Orchestrator().prepare(_next_run(planned), new=arguments.new)
        document, exported = submission.as_dict(), submission.export if style == "yaml" else None
        request = yaml.safe_dump(document["request"], sort_keys=False, width=10_000).splitlines()
        lines = [*_summary(planned, submission), f"\nrequest to the {submission.backend} backend"]
        if phases is not None and phases.completed is None:
            document = {"phases": [document, {"plan": phases.later.as_dict()}]}
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
    if isinstance(planned, Phases) and planned.completed is None:
        run = _start(planned, arguments)
        if not arguments.detach:
            follow_run(run)
        if arguments.detach or run.status().state != RunState.COMPLETED or run.folder is None:
            return finish(run, arguments.output, follow=False)
        planned = _plan(arguments)
    run = _start(planned, arguments)
    return finish(run, arguments.output, follow=not arguments.detach)


def _start(planned: Plan | Phases, arguments: argparse.Namespace) -> Run:
    """Print the plan and submit its next run, or find the run of the same hash."""
    plan = _next_run(planned)
    submission = Orchestrator().prepare(plan, new=arguments.new)
    hint("\n".join(_summary(planned, submission)))
    run = Orchestrator().submit(submission, new=arguments.new)
    status = run.status()
    hint(f"\n{'submitted' if run.created else 'already exists: ' + status.state.value}  {run.handle}")
    if not run.created and plan.spec.name is not None and not run.name.startswith(f"{plan.spec.name}-"):
        hint(f"warning: a run of the same plan has another name, {run.name}; --new starts one named {plan.spec.name}")
    if not run.created and (ineffective := _ineffective_changes(run, plan)):
        hint(f"warning: {', '.join(ineffective)} has no effect on the existing run; --new starts another run")
    if not status.state.terminal:
        next_commands(status)
    return run


def _next_run(planned: Plan | Phases) -> Plan:
    """Return the plan of the run that submit starts first: of two phases the earlier one, unless it is completed."""
    if isinstance(planned, Phases):
        return planned.earlier if planned.completed is None else planned.later
    return planned


def _summary(planned: Plan | Phases, submission: Submission) -> list[str]:
    """Return the plan as text, with a heading for each of two phases."""
    summary = [_next_run(planned).summary(), *_notes(submission)]
    if not isinstance(planned, Phases):
        return summary
    if planned.completed is not None:
        return [f"phase 1 of 2: completed run {planned.completed}\n\nphase 2 of 2", *summary]
    then = (
        f"another command after phase 1: orchestrator download {submission.run} --all, then this command with"
        f" --phase-from {submission.run}"
        if load_backend(submission.backend, home_folder(os.environ)).remote
        else "follows phase 1; if this command is stopped, repeat it"
    )
    return ["phase 1 of 2", *summary, f"\nphase 2 of 2: {then}", planned.later.summary()]


def _plan(arguments: argparse.Namespace) -> Plan | Phases:
    flags = flags_of(arguments)
    found = Orchestrator().plan_phases(arguments.kind, file=arguments.file, flags=flags, sets=arguments.sets)
    for warning in _next_run(found).warnings:
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
    submission = Orchestrator(arguments.backend).prepare_file(Path(arguments.kind))
    for note in submission.notes:
        hint(note)
    return submission


def _notes(submission: Submission) -> list[str]:
    """Return the notes of a submission as lines of the plan's summary."""
    notes = (note.partition(": ") for note in submission.notes)
    return fact_lines([(label, text) for label, _, text in notes], label=LABEL)


def _ineffective_changes(run: Run, plan: Plan) -> list[str]:
    """Return the user's settings that the existing run of the same hash does not have, as `key=value`."""
    # These settings and those of the backend do not change the hash: a submission that changes only them returns the
    # existing run, which would silently ignore them.
    existing, found = run.plan(), []
    spec = plan.spec.model_dump(mode="json")
    for path, change in plan.changes.items():
        section, _, key = path.partition(".")
        job = existing["job"]
        if section in OF_THE_JOB and section in job and job[section][key] != change.value:
            found.append(f"{path}={json.dumps(change.value)}")
        elif section in {*OF_THE_SPEC, run.handle.backend}:
            before, now = (_value_at(document, path) for document in (existing["spec"], spec))
            if before != now:
                found.append(f"{path}={json.dumps(now)}")
    return found


def _value_at(document: Any, path: str) -> Any:
    """Return the value at a dotted path; None if it does not exist, as in the record of an earlier version."""
    for key in path.split("."):
        document = document.get(key) if isinstance(document, Mapping) else None
    return document
