"""submit, plan, validate: from a spec to a run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.backends.base import Submission
    from orchestrator.jobs.base import Plan
    from orchestrator.run import Run
from typing import TYPE_CHECKING

from orchestrator.cli.ui.spec_flags import EXAMPLES, SWEEP, _add_spec, _plan

SPEC_FLAGS = {
    "file": "-f",
    "sets": "--set",
    "name": "-n",
    "recipe": "--recipe",
    "data": "--data",
    "code": "--code",
    "task": "--task",
    "model": "--model",
    "store": "--store",
    "input": "--input",
    "new": "--new",
    "initial": "--from",
    "phase": "--phase-from",
    "nodes": "--nodes",
    "cluster": "--cluster",
    "sku": "--sku",
    "processes": "--processes",
    "max_restarts": "--max-restarts",
    "profile": "--profile",
    "tensorboard": "--tensorboard",
    "env": "--env",
    "tag": "--tag",
}  # say something about a job of ours; a file says all of its own


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the parser."""
    from orchestrator.cli.ui.arguments import add_verb

    submit = add_verb(
        verbs,
        "submit",
        run_submit,
        summary="start a job and follow it",
        description="Start a job and follow it. Ctrl-C stops following, never the job.",
        example="\n  orchestrator ".join(EXAMPLES),
    )
    _add_spec(submit)
    submit.add_argument("--dry-run", "--dryrun", action="store_true", help="print plan and request, start nothing")
    submit.add_argument("-d", "--detach", action="store_true", help="return once the run is started")
    submit.add_argument("--new", action="store_true", help="another run, even if there is one of the same hash")
    plan = add_verb(
        verbs,
        "plan",
        run_plan,
        summary="show what submit would do",
        description="Show what submit would do: the plan, and the very request that would be sent.",
        example="plan pretrain -f job.yaml",
    )
    _add_spec(plan)
    plan.add_argument("--new", action="store_true", help="plan another run of the same hash")
    validate = add_verb(
        verbs,
        "validate",
        run_validate,
        summary="check a spec",
        description="Check a spec; name all that is wrong at once, with file and line.",
        example="validate pretrain -f job.yaml",
    )
    _add_spec(validate)


def run_validate(arguments: argparse.Namespace) -> int:
    """Prints the run's name if all is well."""
    from orchestrator.cli.ui.render import print_document

    if arguments.kind == SWEEP:
        from orchestrator.cli.verbs.sweeps import validate_sweep

        return validate_sweep(arguments)
    if _is_file(arguments.kind):
        return show_file(arguments)
    plan = _plan(arguments)
    if arguments.output != "text":
        print_document({"valid": True, "name": plan.name}, arguments.output)
    else:
        print(f"valid: {plan.name}")
    return 0


def run_plan(arguments: argparse.Namespace) -> int:
    """Prints plan and request."""
    if arguments.kind == SWEEP:
        from orchestrator.cli.verbs.sweeps import show_plan

        return show_plan(arguments)
    if _is_file(arguments.kind):
        return show_file(arguments)
    from orchestrator.cli.ui.render import print_document
    from orchestrator.client import Orchestrator

    plan = _plan(arguments)
    submission = Orchestrator().prepare(plan, new=arguments.new)
    if arguments.output == "yaml" and submission.export is not None:
        print_document(submission.export, "yaml")
        return 0
    document = submission.as_dict()
    if arguments.output != "text":
        print_document(document, arguments.output)
        return 0
    import yaml

    print("\n".join([plan.summary(), *_notes(submission)]))
    print(f"\nrequest to the {plan.spec.backend} backend")
    for line in yaml.safe_dump(document["request"], sort_keys=False, width=10_000).splitlines():
        print(f"  {line}")
    return 0


def run_submit(arguments: argparse.Namespace) -> int:
    """Starts the run and follows it to its end."""
    if arguments.dry_run:
        return run_plan(arguments)
    if arguments.kind == SWEEP:
        from orchestrator.cli.verbs.sweeps import submit_sweep

        return submit_sweep(arguments)
    if _is_file(arguments.kind):
        return submit_file(arguments)
    from orchestrator.cli.ui.render import hint, next_commands
    from orchestrator.client import Orchestrator

    plan = _plan(arguments)
    submission = Orchestrator().prepare(plan, new=arguments.new)
    hint("\n".join([plan.summary(), *_notes(submission)]))
    run = Orchestrator().submit(submission, new=arguments.new)
    status = run.status()
    hint(f"\n{'submitted' if run.created else 'already there: ' + status.state.value}  {run.handle}")
    if not run.created and (unheeded := _unheeded(run, plan)):
        hint(f"warning: {', '.join(unheeded)}: no effect on a run that is there already; --new starts another")
    if not status.state.terminal:
        next_commands(status)
    from orchestrator.cli.ui.follow import finish

    return finish(run, arguments.output, follow=not arguments.detach, delivery=plan.delivery)


def _is_file(kind: str) -> bool:
    """Whether a job file is given in place of a kind of job."""
    return kind.endswith((".yml", ".yaml"))


def _notes(submission: Submission) -> list[str]:
    """The notes of a submission, as lines of the plan's summary."""
    from orchestrator.support.formatting import LABEL, fact_lines

    notes = (note.partition(": ") for note in submission.notes)
    return fact_lines([(label, text) for label, _, text in notes], label=LABEL)


def _unheeded(run: Run, plan: Plan) -> list[str]:
    """Changed values that only look on a run, so that it is still the same run, and that this one does not have."""
    from train_jobs.config.pretrain import OBSERVERS

    there, found = run.plan()["job"], []
    for path, change in plan.changes.items():
        section, _, key = path.partition(".")
        if section in OBSERVERS and section in there and there[section][key] != change.value:
            found.append(f"{path}={json.dumps(change.value)}")
    return found


def _prepared_file(arguments: argparse.Namespace) -> Submission:
    """What would be sent for a job file of another program; all of our own flags are refused.

    Raises:
        UsageError: such a flag is given, or the chosen backend takes no job files.
        SpecError: all that is wrong with the file.
    """
    from orchestrator.client import Orchestrator
    from orchestrator.support.errors import UsageError

    given = [flag for name, flag in SPEC_FLAGS.items() if getattr(arguments, name, None)]
    if given:
        raise UsageError(
            f"a job file says all itself: {', '.join(given)} cannot be given", fix=f"edit {arguments.kind}"
        )
    return Orchestrator(arguments.backend).prepare_file(Path(arguments.kind))


def show_file(arguments: argparse.Namespace) -> int:
    """Print what would be sent."""
    from orchestrator.cli.ui.render import print_document

    submission = _prepared_file(arguments)
    if arguments.verb != "validate":
        shown = arguments.output == "yaml"
        print_document(submission.export if shown else submission.as_dict(), "yaml" if shown else "json")
    elif arguments.output == "text":
        print(f"valid: {submission.run}")
    else:
        print_document({"valid": True, "name": submission.run}, arguments.output)
    return 0


def submit_file(arguments: argparse.Namespace) -> int:
    """Submit the job and follow it to its end."""
    from orchestrator.cli.ui.render import hint, next_commands
    from orchestrator.client import Orchestrator

    run = Orchestrator().submit(_prepared_file(arguments))
    hint(f"submitted  {run.handle}")
    next_commands(run.status())
    from orchestrator.cli.ui.follow import finish

    return finish(run, arguments.output, follow=not arguments.detach)
