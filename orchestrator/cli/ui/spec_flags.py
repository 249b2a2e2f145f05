"""Spec flags."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan
    from orchestrator.jobs.kind import JobKind
    from orchestrator.specs.resolved import Flag

EXAMPLES = (
    "submit pretrain --data notes/ --set train.steps=2000",
    "submit finetune --task MRPC --data glue_data --model @last",
    "submit finetune --task reviews.yaml --model bert-base-uncased",
    "submit evaluate --model @last --data held-out.csv",
    "submit predict --model @last --input new.csv --output out.jsonl",
)
SWEEP = "sweep"


def _add_spec(parser: argparse.ArgumentParser) -> None:
    from orchestrator.cli.ui import completers
    from orchestrator.jobs.registry import SHIPPED

    parser.add_argument(
        "kind",
        type=_kind,
        metavar="KIND",
        help=f"which job: {', '.join(SHIPPED)}; {SWEEP}: many of one; or FILE.yaml, a job of az ml for Azure",
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
        elif "--output" in _kind_of(namespace).keys:
            namespace.delivery = Path(value)
        else:
            raise argparse.ArgumentError(self, f"invalid choice: {value!r} (choose from {', '.join(STYLES)})")


def _kind(word: str) -> str:
    """One of the kinds of jobs, or a job file."""
    from orchestrator.jobs.registry import is_kind, kind_names

    if word == SWEEP or word.endswith((".yml", ".yaml")) or is_kind(word):
        return word
    known = ", ".join([*kind_names(), SWEEP])
    raise argparse.ArgumentTypeError(f"{word} is none of: {known}, a file with .yaml or .yml")


def _kind_of(arguments: argparse.Namespace) -> JobKind:
    """Return the kind that the flags of a command line are about; of a sweep, the likely kind of its trials."""
    from orchestrator.jobs.registry import DEFAULT, is_kind, job_kind

    if is_kind(arguments.kind):
        return job_kind(arguments.kind)
    return job_kind("finetune" if getattr(arguments, "task", None) else DEFAULT)


def flags_of(arguments: argparse.Namespace) -> dict[str, Flag]:
    """What the flags of a command line say of a job: dotted path -> value and flag."""
    from orchestrator.cli.ui.arguments import pairs
    from orchestrator.specs.resolved import Flag

    kind = _kind_of(arguments)
    given: dict[str, tuple[Any, str]] = {
        "name": (arguments.name, "--name"),
        "max_restarts": (arguments.max_restarts, "--max-restarts"),
        "backend": (arguments.backend, "--backend"),
        "recipe": (arguments.recipe, "--recipe"),
        **_data(kind, [*(arguments.data or []), *(arguments.input or [])]),
        "output": (_path(arguments.delivery), "--output"),
        kind.keys["--store"]: (_path(arguments.store), "--store"),
        "task": (arguments.task, "--task"),
        "code.folder": (_path(arguments.code), "--code"),
        kind.keys["--model"]: (arguments.model, "--model"),
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


def _data(kind: JobKind, words: list[str]) -> dict[str, tuple[Any, str]]:
    """Return what --data gives: paths of this machine, or the name of one text or folder that is remote.

    Args:
        kind: of the job.
        words: as they were given.

    Raises:
        UsageError: both, or several remote ones, or several folders of a task.
    """
    from orchestrator.specs.site import our_sites
    from orchestrator.support.errors import UsageError
    from train_jobs.artifacts.layers import dotted

    remote = [(word, site) for word in words for site in our_sites() if site.is_remote(word)]
    if remote and len(words) > 1:
        raise UsageError("--data takes one remote text, and no other text with it", fix=f"--data {remote[0][0]}")
    if remote:
        word, site = remote[0]
        return {dotted(site.data_key): (word, "--data")}
    return kind.data_flag(words)
