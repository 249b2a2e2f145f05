"""init, explain, doctor, completion: before the first run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.ui import completers
from orchestrator.cli.ui.arguments import add_output, add_verb
from orchestrator.cli.ui.terminal import hint, paint_word, print_document, print_result, terminal_of
from orchestrator.support.formatting import fact_lines
from orchestrator.support.home import home_folder

if TYPE_CHECKING:
    from orchestrator.doctor import Finding

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "orchestrator"
INSTALL = {
    "bash": "echo 'source <(orchestrator completion bash)' >> ~/.bashrc",
    "zsh": "echo 'autoload -U compinit; compinit; source <(orchestrator completion zsh)' >> ~/.zshrc",
    "fish": "orchestrator completion fish > ~/.config/fish/completions/orchestrator.fish",
}


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the parser."""
    init = add_verb(
        verbs,
        "init",
        run_init,
        summary="begin a project",
        description="Write a job, the project's defaults and the list of what stays out of the code, each explained.",
        example="init my-bert\n  orchestrator init --full --template finetune --recipe squad",
    )
    init.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=Path(), help="where (default: here)")
    init.add_argument("--template", metavar="KIND", default="pretrain", help="kind of job (default: pretrain)")
    init.add_argument("--full", action="store_true", help="write every key, each with its help text")
    init.add_argument("--recipe", metavar="NAME", help="with --full: recipe whose values the keys have")
    init.add_argument("--force", action="store_true", help="replace files that are there")
    add_output(init)
    explain = add_verb(
        verbs,
        "explain",
        run_explain,
        summary="show what a key of a spec means",
        description="Show the type, the default and the help text of a key, and the recipes that change it. For a"
        " section, show every key below it.",
        example="explain train.micro_batch_size",
    )
    key = explain.add_argument("key", metavar="KEY", help="dotted key, as in a spec or after --set")
    completers.attach(key, completers.explained_keys)
    explain.add_argument("--kind", metavar="KIND", help="kind of job (default: every kind that has the key)")
    add_output(explain)
    doctor = add_verb(
        verbs,
        "doctor",
        run_doctor,
        summary="find what prevents runs",
        description="Check Python, packages, devices, disks, locks, ports and the tracking store, and print a fix for"
        " each problem; for Azure also check sign-in, workspace, datastore and quota. Exit code 1 if something fails.",
        example="doctor -b azure",
    )
    doctor.add_argument("-b", "--backend", metavar="NAME", help="where runs would go (default: as the project says)")
    add_output(doctor)
    completion = add_verb(
        verbs,
        "completion",
        run_completion,
        summary="completion for a shell",
        description="Print what makes a shell complete verbs, flags, runs, recipes and keys.",
        example="completion bash",
    )
    completion.add_argument("shell", choices=SHELLS, help="which shell")


def run_init(arguments: argparse.Namespace) -> int:
    """Writes the files, prints their paths."""
    from orchestrator.jobs.scaffold import write_project
    from orchestrator.support.errors import UsageError
    from train_jobs.config.names import in_shell

    recipe = arguments.recipe
    if recipe and not arguments.full:
        raise UsageError("--recipe has no effect without --full", fix="add --full")
    paths = write_project(
        arguments.folder, arguments.template, full=arguments.full, recipe=recipe, force=arguments.force
    )
    print_result(arguments.output, {"files": [str(path) for path in paths]}, lambda: "\n".join(map(str, paths)))
    job = in_shell(arguments.folder / "job.yaml")
    kind = arguments.template
    hint(f"\nnext\n  plan    orchestrator plan {kind} -f {job}\n  submit  orchestrator submit {kind} -f {job}")
    return 0


def run_explain(arguments: argparse.Namespace) -> int:
    """Print what each key means."""
    from orchestrator.jobs.reference import explain_key

    found = explain_key(arguments.key, arguments.kind)
    print_result(arguments.output, found, lambda: "\n\n".join("\n".join(_key_lines(entry)) for entry in found))
    return 0


def _key_lines(entry: dict[str, Any]) -> list[str]:
    """Return the key, its facts, and its help text."""
    from orchestrator.specs.reference import yaml_text

    rows = [(label, entry[label]) for label in ("type", "default") if entry.get(label)]
    rows += [("kinds", ", ".join(entry["kinds"]))]
    if entry["recipes"]:
        rows.append(("recipes", ", ".join(f"{name} {yaml_text(value)}" for name, value in entry["recipes"].items())))
    return [entry["key"], *fact_lines([*rows, ("", ""), ("meaning", entry["text"])], label=12)]


def run_doctor(arguments: argparse.Namespace) -> int:
    """Prints what each check found."""
    from orchestrator.doctor import examine

    found = []
    for finding in examine(
        home=home_folder(os.environ), folder=Path.cwd(), environ=os.environ, backend_name=arguments.backend
    ):
        found.append(finding)
        if arguments.output == "text":
            print("\n".join(_finding_lines(finding)), flush=True)
    if arguments.output != "text":
        print_document([finding.model_dump(mode="json") for finding in found], arguments.output)
    return 1 if any(finding.level == "fail" for finding in found) else 0


def _finding_lines(finding: Finding) -> Iterator[str]:
    """Level, name, text and fix; a command to paste stays on one line."""
    import textwrap

    from orchestrator.cli.ui.render import COLUMNS

    indent = f"{'':<4}  {finding.name:<15}  "
    wrapper = textwrap.TextWrapper(COLUMNS, indent, " " * len(indent), break_on_hyphens=False, break_long_words=False)
    first, *rest = wrapper.wrap(finding.text) or [indent]
    yield paint_word(f"{finding.level:<4}", terminal_of()) + first[4:]
    yield from rest
    if finding.fix:
        yield f"      {'fix':<15}  {finding.fix}"


def run_completion(arguments: argparse.Namespace) -> int:
    """Prints the shell's code, and how to keep it."""
    from argcomplete.shell_integration import shellcode

    print(shellcode([PROGRAM], shell=arguments.shell))
    if sys.stdout.isatty():
        hint(f"to keep it:\n  {INSTALL[arguments.shell]}")
    return 0
