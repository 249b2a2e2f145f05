"""Flags that describe a job: their declarations, and the keys of a spec that they set."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.ui import completers
from orchestrator.cli.ui.arguments import STYLES, argument
from orchestrator.jobs.registry import DEFAULT, SHIPPED, is_kind, job_kind, kind_names

if TYPE_CHECKING:
    from orchestrator.jobs.kind import JobKind
    from orchestrator.specs.resolved import Flag

SWEEP = "sweep"


def kind_or_file(word: str) -> str:
    """Parse a kind of job, `sweep`, or the name of a job file that a backend reads.

    Raises:
        argparse.ArgumentTypeError: it is none of them.
    """
    if word == SWEEP or is_kind(word):
        return word
    from orchestrator.backends import reader_of
    from orchestrator.support.errors import UsageError
    from orchestrator.support.home import home_folder
    from train_jobs.config.errors import did_you_mean

    try:
        reader_of(Path(word), home_folder(os.environ))
    except UsageError:
        known = [*kind_names(), SWEEP]
        near = did_you_mean(word, known)
        text = f"unknown kind of job {word!r}{near}: {', '.join(known)}, or a file with .yaml or .yml"
        raise argparse.ArgumentTypeError(text) from None
    return word


class KindHelp(argparse.Action):
    """--help; after a kind of job it lists only the flags that set a key of this kind."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
        if (name := getattr(namespace, "kind", None)) and is_kind(name):
            from orchestrator.specs.settings import setting_type
            from orchestrator.specs.site import spec_model
            from train_jobs.artifacts.layers import preset_names

            kind = job_kind(name)
            spec = spec_model(kind.spec)
            for flag, action in ((flag, parser._option_string_actions[flag.flags[-1]]) for flag in SPEC_FLAGS):
                keys = kind.data_flag([""]) if flag.dest == "data" else [kind.keys.get(flag.flags[-1], flag.key)]
                if flag.key and all(setting_type(spec, key) is None for key in keys):
                    action.help = argparse.SUPPRESS
                elif flag.dest == "recipe":
                    action.help = f"preset of the job: {', '.join(preset_names(kind.recipes))}"
        parser.print_help()
        parser.exit()


class OutputAction(argparse.Action):
    """-o text|json|yaml sets the output format; for predict, any other value is the file of predictions."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        if value in STYLES:
            namespace.output = value
        elif "--output" in kind_of(namespace).keys:
            namespace.delivery = Path(value)
        else:
            raise argparse.ArgumentError(self, f"invalid choice: {value!r} (choose from {', '.join(STYLES)})")


class OneFile(argparse.Action):
    """-f once: a second file would silently replace the first."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        if namespace.file is not None:
            raise argparse.ArgumentError(self, f"one spec file, not both {namespace.file} and {value}")
        namespace.file = value


HELP = argument("-h", "--help", action=KindHelp, nargs=0, help="show this help message and exit")
KIND = argument(
    "kind",
    type=kind_or_file,
    metavar="KIND",
    help=f"kind of job: {', '.join(SHIPPED)}; {SWEEP} for many trials of a job; or FILE.yaml, an az ml job",
)
SPEC_FLAGS = (
    argument("-f", "--file", type=Path, action=OneFile, help="spec file (YAML)"),
    argument(
        "--set",
        dest="sets",
        completer=completers.assignments,
        action="append",
        default=[],
        metavar="A.B=C",
        help="override one key of the spec; may be repeated",
    ),
    argument("-n", "--name", key="name", help="first part of the run's name, before the hash"),
    argument(
        "--recipe",
        key="recipe",
        completer=completers.recipes,
        help="preset of the job. pretrain: tiny (default), small, base, large, or a published one such as large-google;"
        " prepare: uncased, cased; finetune: the task's own (default), glue-stable, glue-roberta, ...",
    ),
    argument(
        "--data",
        key="data.text",
        action="append",
        metavar="PATH",
        help="text file or folder, or its URL (s3://, gs://, abfss://); may be repeated. finetune: folder with the"
        " task's files; evaluate: file with labels."
        " On Azure also azureml:NAME:VERSION or azureml://datastores/...",
    ),
    argument(
        "--column",
        action="append",
        metavar="[ROLE=]NAME",
        help="column of the text in a table or in JSON Lines; finetune, evaluate, predict: text=NAME, pair=NAME,"
        " label=NAME; predict: also id=NAME, which is copied to the output. May be repeated",
    ),
    argument(
        "--check",
        key="check",
        choices=("quick", "all"),
        help="how much of the data the plan reads to find problems: quick (default), about a second; all, everything",
    ),
    argument("--input", key="input", action="append", metavar="FILE", help="predict: file with the rows to predict"),
    argument(
        "--store",
        key="data.store",
        metavar="FOLDER",
        help="token store: the output of prepare, the input of pretrain; prepare also takes a URL",
    ),
    argument(
        "--task",
        key="task",
        completer=completers.tasks,
        metavar="TASK|FILE",
        help="finetune: CoLA, MNLI, ..., glue for all of GLUE, SQuAD-1.1, SQuAD-2.0, NER; or a YAML file that"
        " describes the files and columns of your own task",
    ),
    argument(
        "--model",
        key="init_from",
        completer=completers.runs,
        metavar="RUN|FOLDER|NAME",
        help="model to fine-tune, evaluate or predict with: a run, a folder, a name on the Hugging Face Hub, or"
        " models:/NAME@ALIAS of an MLflow registry",
    ),
    argument(
        "--code",
        key="code.folder",
        type=Path,
        metavar="DIR",
        help="folder of your own code, added to train_jobs (see code.entry)",
    ),
    argument(
        "--from",
        key="init_from",
        dest="initial",
        metavar="RUN|FOLDER|NAME",
        help="start from the model of a run, or from a Hugging Face BERT (folder, name on the Hub, or"
        " models:/NAME@ALIAS of an MLflow registry)",
    ),
    argument(
        "--allow-pickle",
        key="trust.allow_pickle",
        action="store_true",
        default=None,
        help="load pytorch_model.bin, a pickle, if the model has no model.safetensors",
    ),
    argument(
        "--require-signature",
        key="trust.require_signature",
        type=Path,
        metavar="KEY",
        help="refuse a model without a valid signature of this public key (PEM file); see model sign",
    ),
    argument(
        "--phase-from",
        key="phase_from",
        dest="phase",
        metavar="RUN|FOLDER",
        help="start the next phase from the weights and moments of a run, with a new schedule",
    ),
    argument(
        "--executor",
        key="data.executor.name",
        metavar="NAME",
        help="what prepares the text: processes of this machine, or dask, a cluster (default: auto, dask on several"
        " nodes)",
    ),
    argument("--nodes", key="compute.nodes", type=int, metavar="N", help="number of machines (default: 1)"),
    argument("--cluster", key="compute.cluster", metavar="NAME", help="Azure ML cluster to run on, or serverless"),
    argument(
        "--sku",
        key="compute.sku",
        completer=completers.sizes,
        metavar="SIZE",
        help="machine size on Azure; creates or updates a cluster of this size",
    ),
    argument("--tier", key="compute.tier", metavar="TIER", help="dedicated or spot machines (default: dedicated)"),
    argument(
        "--processes",
        key="compute.processes_per_node",
        type=int,
        metavar="N",
        help="processes on each node (default: one per GPU)",
    ),
    argument(
        "--max-restarts",
        key="max_restarts",
        type=int,
        metavar="N",
        help="maximum automatic restarts after errors (default: 0)",
    ),
    argument(
        "--max-preemptions",
        key="max_preemptions",
        type=int,
        metavar="N",
        help="maximum automatic restarts after evictions (default: unlimited on Spot machines, else as --max-restarts)",
    ),
    argument(
        "--supervise",
        key="azure.supervise",
        metavar="WHERE",
        help="here: commands that follow the run restart it; cloud: a schedule of Azure ML does (default: here)",
    ),
    argument(
        "--profile",
        key="profile.steps",
        type=int,
        metavar="STEPS",
        help="number of steps to profile; writes a trace, and a table in the report",
    ),
    argument(
        "--tensorboard",
        key="metrics.tensorboard",
        action="store_true",
        default=None,
        help="also write TensorBoard event files",
    ),
    argument(
        "--env",
        key="environment.variables",
        action="append",
        default=[],
        metavar="K[=V]",
        help="environment variable of the job; may be repeated. K alone: a secret, taken from your environment at each"
        " start and never stored",
    ),
    argument(
        "--env-file",
        key="environment.secrets",
        type=Path,
        metavar="FILE",
        help="file of mode 0600 with a line K=V for each secret environment variable; read at each start",
    ),
    argument(
        "--show-values",
        action="store_true",
        default=None,
        help="show values of the data in errors and warnings, and so in logs; by default only places, types and"
        " lengths are shown (docs/privacy.md)",
    ),
    argument("--tag", key="tags", action="append", default=[], metavar="K=V", help="label of the run; may be repeated"),
)
BACKEND = argument("-b", "--backend", completer=completers.backends, help="where to run: local (default), debug, azure")
OUTPUT = argument(
    "-o",
    "--output",
    action=OutputAction,
    default="text",
    metavar="{text,json,yaml,FILE}",
    help="output format on stdout (default: text); for predict also the file of predictions, .jsonl, .csv, .tsv,"
    " .parquet or .npz",
)


def kind_of(arguments: argparse.Namespace) -> JobKind:
    """Return the kind of job that a command line describes; of a sweep, the probable kind of its trials."""
    # A flag may set another key in another kind, and the kind of a sweep's trials is known only once its file is read.
    if is_kind(arguments.kind):
        return job_kind(arguments.kind)
    return job_kind("finetune" if getattr(arguments, "task", None) else DEFAULT)


def given_flags(arguments: argparse.Namespace) -> list[str]:
    """Return the flags of a command line that describe a job."""
    given = [flag.flags[-1] for flag in SPEC_FLAGS if getattr(arguments, flag.dest)]
    given += ["--"] if getattr(arguments, "words", None) else []
    return [*given, *(["--new"] if getattr(arguments, "new", False) else [])]


def flags_of(arguments: argparse.Namespace) -> dict[str, Flag]:
    """Return the keys of a spec that a command line sets: dotted path -> value and flag."""
    from orchestrator.specs.resolved import Flag

    kind = kind_of(arguments)
    given: dict[str, tuple[Any, str]] = {
        "backend": (arguments.backend, "--backend"),
        "output": (getattr(arguments, "delivery", None), "--output"),
        "command": (getattr(arguments, "words", None) or None, "--"),
    }
    for flag in SPEC_FLAGS:
        name, value = flag.flags[-1], getattr(arguments, flag.dest)
        if flag.dest == "tag":
            value = pairs(value, name) or None
        if flag.dest == "env_file":
            value = secret_references(arguments.env, value, os.environ) or None
            name = name if arguments.env_file else "--env"
        if flag.dest == "env":
            value = pairs([*(word for word in value if "=" in word), *_shown(arguments)], name) or None
        if flag.dest == "data":
            given |= _data(kind, [*(value or []), *(arguments.input or [])])
        elif flag.dest == "column" and value:
            given |= kind.column_flag(value, given["data.text"][0] if "data.text" in given else None)
        elif flag.key and flag.dest != "input" and value is not None:
            given[kind.keys.get(name, flag.key)] = (value, name)
    return {
        path: Flag(str(value) if isinstance(value, Path) else value, name)
        for path, (value, name) in given.items()
        if value is not None
    }


def _shown(arguments: argparse.Namespace) -> list[str]:
    """Return the variable of the job that --show-values sets, as an argument of --env."""
    from train_jobs.config.privacy import SHOW_VALUES

    return [f"{SHOW_VALUES}=1"] if arguments.show_values else []


def _data(kind: JobKind, words: list[str]) -> dict[str, tuple[Any, str]]:
    """Return the keys that --data and --input set: paths of this machine, or the name of one remote asset.

    Raises:
        UsageError: they mix local paths with a remote asset, or name several assets, or several folders of a task.
    """
    from orchestrator.specs.site import builtin_sites
    from orchestrator.support.errors import UsageError
    from train_jobs.artifacts.layers import dotted
    from train_jobs.config.errors import in_shell

    remote = [(word, site) for word in words for site in builtin_sites() if site.is_remote(word)]
    if not remote:
        return kind.data_flag(words)
    word, site = remote[0]
    if len(words) > 1:
        raise UsageError(f"cannot combine {word} with other data", fix=f"--data {in_shell(word)}")
    return {dotted(site.data_key): (word, "--data")}


def secret_references(words: list[str], file: Path | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return where the secrets of `--env K` and `--env-file` are kept: name -> reference.

    Args:
        words: the arguments of --env; those with `=` are no secrets.
        file: the file; its variables come before those of the environment.
        environ: environment variables.

    Raises:
        UsageError: neither the file nor the environment has a variable, or the file cannot be used.
    """
    from orchestrator.support.errors import UsageError
    from orchestrator.support.secret_sources import ENVIRONMENT, FILE, read_env_file

    found = {} if file is None else dict.fromkeys(read_env_file(file), f"{FILE}:{file.absolute()}")
    for name in (word for word in words if "=" not in word and word not in found):
        if not environ.get(name):
            fix = f"export {name}=... or --env-file FILE; if it is not secret: --env {name}=VALUE"
            raise UsageError(f"needs {name}: it is not set in the environment", fix=fix)
        found[name] = f"{ENVIRONMENT}:{name}"
    return found


def pairs(words: list[str], flag: str) -> dict[str, str]:
    """Parse `K=V` arguments.

    Args:
        words: the arguments.
        flag: their flag, for messages.

    Raises:
        UsageError: an argument has another form.
    """
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            from orchestrator.support.errors import UsageError

            raise UsageError(f"invalid {flag} {word!r}: must be KEY=VALUE", fix=f"{flag} KEY=VALUE")
        found[key] = value
    return found
