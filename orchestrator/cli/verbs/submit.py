"""submit, plan, validate: from a spec to a run."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.backends.base import Request
    from orchestrator.jobs.base import Plan
    from orchestrator.run import Run
    from orchestrator.specs.resolved import Flag

KINDS = (
    "pretrain",
    "prepare",
    "finetune",
    "evaluate",
    "predict",
)
EXAMPLES = (
    "submit pretrain --data notes/ --set train.steps=2000",
    "submit finetune --task MRPC --data glue_data --model @last",
    "submit finetune --task reviews.yaml --model bert-base-uncased",
    "submit evaluate --model @last --data held-out.csv",
    "submit predict --model @last --input new.csv --output out.jsonl",
)
PREDICTING = ("evaluate", "predict")  # kinds whose model predicts rows of files
SWEEP = "sweep"
ATTACH_LINES = 20  # of what a run has printed already, to one who comes back to it


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


def _add_spec(parser: argparse.ArgumentParser) -> None:
    from orchestrator.cli.ui import completers

    parser.add_argument(
        "kind",
        type=_kind,
        metavar="KIND",
        help=f"which job: {', '.join(KINDS)}; {SWEEP}: many of one; or FILE.yaml, a job of az ml for Azure",
    )
    parser.add_argument("-f", "--file", type=Path, help="spec file (YAML)")
    sets = parser.add_argument(
        "--set", dest="sets", action="append", default=[], metavar="A.B=C", help="change one value"
    )
    completers.attach(sets, completers.assignments)
    parser.add_argument("-n", "--name", help="first part of the run's name")
    backend = parser.add_argument("-b", "--backend", help="where to run: local (default), debug, azure")
    completers.attach(backend, completers.backends)
    recipe = parser.add_argument(
        "--recipe",
        help="preset of the job. pretrain: tiny (default), small, base, large, or a published one such as large-google;"
        " prepare: uncased, cased; finetune: that of the task (default), glue-stable, glue-roberta, ...",
    )
    completers.attach(recipe, completers.recipes)
    parser.add_argument(
        "--data",
        action="append",
        metavar="PATH",
        help="text file or folder; may be repeated. finetune: the folder of the task's files; evaluate: a file with"
        " what is right. On Azure also azureml:NAME:VERSION or azureml://datastores/...",
    )
    parser.add_argument(
        "--input", action="append", metavar="FILE", help="predict: a file, of which each row is predicted"
    )
    parser.add_argument(
        "--store", type=Path, metavar="FOLDER", help="token store: where prepare puts it, what pretrain is trained on"
    )
    task = parser.add_argument(
        "--task",
        metavar="TASK|FILE",
        help="finetune: CoLA, MNLI, ..., glue for all of GLUE, SQuAD-1.1, SQuAD-2.0, NER; or a YAML file with the"
        " files and columns of a task of your own",
    )
    completers.attach(task, completers.tasks)
    model = parser.add_argument(
        "--model",
        metavar="RUN|FOLDER|NAME",
        help="the model that is tuned, evaluated, or predicts; named as for --from",
    )
    completers.attach(model, completers.runs)
    parser.add_argument("--code", type=Path, metavar="DIR", help="code of your own, beside train_jobs (see code.entry)")
    parser.add_argument(
        "--from",
        dest="initial",
        metavar="RUN|FOLDER|NAME",
        help="start from a run's model, or from a Hugging Face BERT: its folder, or its name on the Hub",
    )
    parser.add_argument(
        "--phase-from",
        dest="phase",
        metavar="RUN|FOLDER",
        help="go on from a run's weights and moments, with a schedule of its own: a next phase",
    )
    parser.add_argument("--nodes", type=int, metavar="N", help="machines (default: 1)")
    parser.add_argument("--cluster", metavar="NAME", help="cluster of Azure ML to run on")
    sku = parser.add_argument("--sku", metavar="SIZE", help="machine size of the cluster: it is made or changed to fit")
    completers.attach(sku, completers.sizes)
    parser.add_argument("--processes", type=int, metavar="N", help="processes on each node (default: one for each GPU)")
    parser.add_argument(
        "--max-restarts", type=int, metavar="N", help="start a failed or preempted run again by itself (default: 0)"
    )
    parser.add_argument(
        "--profile", type=int, metavar="STEPS", help="record so many steps: a trace, and a table in the report"
    )
    parser.add_argument("--tensorboard", action="store_true", help="write event files for TensorBoard too")
    parser.add_argument("--env", action="append", default=[], metavar="K[=V]", help="environment variable of the job")
    parser.add_argument("--tag", action="append", default=[], metavar="K=V", help="label of the run")
    parser.add_argument(
        "-o",
        "--output",
        action=_Output,
        default="text",
        metavar="{text,json,yaml,FILE}",
        help="form of the result on stdout; predict: also where to put the predictions, .jsonl, .tsv, .parquet or .npz",
    )
    parser.set_defaults(delivery=None)


class _Output(argparse.Action):
    """-o text|json|yaml is the form of the result; of what predicts, anything else is the file of predictions."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        from orchestrator.cli.ui.arguments import STYLES

        if value in STYLES:
            namespace.output = value
        elif namespace.kind in PREDICTING:
            namespace.delivery = Path(value)
        else:
            raise argparse.ArgumentError(self, f"invalid choice: {value!r} (choose from {', '.join(STYLES)})")


def _kind(word: str) -> str:
    """One of the kinds of jobs, or a job file."""
    if word in {*KINDS, SWEEP} or word.endswith((".yml", ".yaml")):
        return word
    raise argparse.ArgumentTypeError(f"{word} is none of: {', '.join(KINDS)}, {SWEEP}, a file with .yaml or .yml")


def flags_of(arguments: argparse.Namespace) -> dict[str, Flag]:
    """What the flags of a command line say of a job: dotted path -> value and flag."""
    from orchestrator.cli.ui.arguments import pairs
    from orchestrator.specs.resolved import Flag

    given: dict[str, tuple[Any, str]] = {
        "name": (arguments.name, "--name"),
        "max_restarts": (arguments.max_restarts, "--max-restarts"),
        "backend": (arguments.backend, "--backend"),
        "recipe": (arguments.recipe, "--recipe"),
        **_data("finetune" if arguments.task else arguments.kind, [*(arguments.data or []), *(arguments.input or [])]),
        "output": (_path(arguments.delivery), "--output"),
        "store" if arguments.kind == "prepare" else "data.store": (_path(arguments.store), "--store"),
        "task": (arguments.task, "--task"),
        "code.folder": (_path(arguments.code), "--code"),
        "model" if arguments.kind in PREDICTING else "init_from": (arguments.model, "--model"),
        **({"init_from": (arguments.initial, "--from")} if arguments.initial else {}),
        "phase_from": (arguments.phase, "--phase-from"),
        "compute.nodes": (arguments.nodes, "--nodes"),
        "compute.cluster": (arguments.cluster, "--cluster"),
        "compute.sku": (arguments.sku, "--sku"),
        "compute.processes_per_node": (arguments.processes, "--processes"),
        "profile.steps": (arguments.profile, "--profile"),
        "metrics.tensorboard": (arguments.tensorboard or None, "--tensorboard"),
        "environment.variables": (pairs(arguments.env, "--env", environ=dict(os.environ)) or None, "--env"),
        "tags": (pairs(arguments.tag, "--tag") or None, "--tag"),
    }
    return {path: Flag(value, name) for path, (value, name) in given.items() if value is not None}


def _plan(arguments: argparse.Namespace) -> Plan:
    from orchestrator.cli.ui.render import hint
    from orchestrator.client import Orchestrator

    flags = flags_of(arguments)
    plan = Orchestrator().plan(arguments.kind, file=arguments.file, flags=flags, sets=arguments.sets)
    for warning in plan.warnings:
        hint(f"warning: {warning}")
    return plan


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _data(kind: str, words: list[str]) -> dict[str, tuple[Any, str]]:
    """The values of --data: paths of this machine, or the name of one text or folder that lies in Azure.

    Args:
        kind: of the job; a sweep's with --task is a fine-tuning.
        words: as they were given.

    Raises:
        UsageError: both, or several that lie in Azure, or several folders of a task.
    """
    from orchestrator.backends.azure.options import is_remote
    from orchestrator.support.errors import UsageError

    remote = [word for word in words if is_remote(word)]
    if remote and len(words) > 1:
        raise UsageError("--data names one text that lies in Azure, and nothing beside it", fix=f"--data {remote[0]}")
    if remote:
        return {"azure.data": (remote[0], "--data")}
    if kind in PREDICTING:
        return {"input": (words or None, "--data or --input")}
    if kind == "finetune":
        if len(words) > 1:
            raise UsageError("--data names one folder, that of the task's files", fix=f"--data {words[0]}")
        return {"data": (words[0] if words else None, "--data")}
    return {"data.text": (words or None, "--data")}


def run_validate(arguments: argparse.Namespace) -> int:
    """Prints the run's name if all is well."""
    from orchestrator.cli.ui.render import print_document

    if arguments.kind == SWEEP:
        from orchestrator.cli.verbs.sweeps import validate_sweep

        return validate_sweep(arguments)
    if arguments.kind not in KINDS:
        from orchestrator.cli.azml import show_file

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
    if arguments.kind not in KINDS:
        from orchestrator.cli.azml import show_file

        return show_file(arguments)
    from orchestrator.cli.ui.render import print_document
    from orchestrator.client import Orchestrator

    plan = _plan(arguments)
    request = Orchestrator().request(plan, new=arguments.new)
    if arguments.output == "yaml" and (file := request.file()) is not None:
        print_document(file, "yaml")
        return 0
    if arguments.output != "text":
        print_document({"plan": plan.as_dict(), "request": request.model_dump(mode="json")}, arguments.output)
        return 0
    import yaml

    print("\n".join([plan.summary(), *_notes(plan, request)]))
    print(f"\nrequest to the {plan.spec.backend} backend")
    for line in yaml.safe_dump(request.model_dump(mode="json"), sort_keys=False, width=10_000).splitlines():
        print(f"  {line}")
    return 0


def run_submit(arguments: argparse.Namespace) -> int:
    """Starts the run and follows it to its end."""
    if arguments.dry_run:
        return run_plan(arguments)
    if arguments.kind == SWEEP:
        from orchestrator.cli.verbs.sweeps import submit_sweep

        return submit_sweep(arguments)
    if arguments.kind not in KINDS:
        from orchestrator.cli.azml import submit_file

        return submit_file(arguments)
    from orchestrator.cli.ui.render import hint, next_commands
    from orchestrator.client import Orchestrator
    from orchestrator.jobs.pretrain.plan import PredictPlan

    plan = _plan(arguments)
    hint("\n".join([plan.summary(), *_notes(plan, Orchestrator().request(plan, new=arguments.new))]))
    run = Orchestrator().submit(plan, new=arguments.new)
    status = run.status()
    hint(f"\n{'submitted' if run.created else 'already there: ' + status.state.value}  {run.handle}")
    if not run.created and (unheeded := _unheeded(run, plan)):
        hint(f"warning: {', '.join(unheeded)}: no effect on a run that is there already; --new starts another")
    if not status.state.terminal:
        next_commands(status)
    delivery = plan.delivery if isinstance(plan, PredictPlan) else None
    return finish(run, arguments.output, follow=not arguments.detach, delivery=delivery)


def _notes(plan: Plan, request: Request) -> list[str]:
    """What the backend has to say of a request, as lines of the plan's summary."""
    from orchestrator.client import Orchestrator
    from orchestrator.support.formatting import LABEL, fact_lines

    notes = (note.partition(": ") for note in Orchestrator().notes(plan, request))
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


def finish(run: Run, style: str, *, follow: bool, delivery: Path | None = None) -> int:
    """Follows a run if asked to, then prints how it stands; the exit code is the job's.

    Args:
        run: which.
        style: of the result on stdout.
        follow: wait for its end.
        delivery: where its predictions are put; None: where it was told at its submission.

    Raises:
        Interrupted: Ctrl-C; the job goes on.
    """
    from orchestrator.backends.log_query import LogQuery
    from orchestrator.cli.ui.follow import leaving_alone, print_logs
    from orchestrator.cli.ui.render import hint, next_commands, print_document, status_text
    from orchestrator.runs.status import RunState

    if follow and not run.status().state.terminal:
        if not run.created:
            hint(f"from its last {ATTACH_LINES} lines on; all of them: orchestrator logs {run.name}")
        with leaving_alone(run):
            print_logs(run, sys.stderr, LogQuery(follow=True, tail=None if run.created else ATTACH_LINES))
            run.wait()
    status = run.status()
    if status.kind in PREDICTING and status.state == RunState.COMPLETED and (path := run.deliver(delivery)) is not None:
        hint(f"predictions  {path}")
    if style != "text":
        print_document(status.as_dict(), style)
    elif follow or status.state.terminal:
        print(status_text(status), flush=True)
        next_commands(status)
    else:
        print(status.handle)
    return (status.exit_code or 1) if status.state.resumable else 0
