"""init, explain, home, doctor, completion: the commands before the first run."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.ui.terminal import hint, paint_word, print_document, print_result, terminal_of, write_line
from orchestrator.support.formatting import WIDTH, fact_lines
from orchestrator.support.home import HOME_VARIABLE, home_folder

# A shell runs `orchestrator completion` at every start, so imports of the other verbs are inside their functions.
if TYPE_CHECKING:
    from orchestrator.support.finding import Finding

PROGRAM = "orchestrator"
INSTALL = {
    "bash": "echo 'source <(orchestrator completion bash)' >> ~/.bashrc",
    "zsh": "echo 'autoload -U compinit; compinit; source <(orchestrator completion zsh)' >> ~/.zshrc",
    "fish": "orchestrator completion fish > ~/.config/fish/completions/orchestrator.fish",
}


def init(arguments: argparse.Namespace) -> None:
    """Write the files of a project, and print their paths.

    Raises:
        UsageError: --recipe is given without --full.
    """
    from orchestrator.jobs.scaffold import write_project
    from orchestrator.support.errors import UsageError
    from train_jobs.config.errors import in_shell

    kind, recipe = arguments.template, arguments.recipe
    if recipe and not arguments.full:
        raise UsageError("cannot use --recipe without --full", fix="add --full")
    paths = write_project(arguments.folder, kind, full=arguments.full, recipe=recipe, force=arguments.force)
    print_result(arguments.output, {"files": [str(path) for path in paths]}, "\n".join(map(str, paths)))
    job = in_shell(arguments.folder / "job.yaml")
    hint(f"\nnext\n  plan    orchestrator plan {kind} -f {job}\n  submit  orchestrator submit {kind} -f {job}")


def explain(arguments: argparse.Namespace) -> None:
    """Print the meaning of each key."""
    from orchestrator.jobs.scaffold import explain_key

    found = explain_key(arguments.key, arguments.kind)
    print_result(arguments.output, found, "\n\n".join("\n".join(_key_lines(entry)) for entry in found))


def _key_lines(entry: dict[str, Any]) -> list[str]:
    """Return the key, its facts, and its help text."""
    from orchestrator.specs.reference import yaml_text

    rows = [(label, entry[label]) for label in ("type", "default") if entry.get(label)]
    rows += [("kinds", ", ".join(entry["kinds"]))]
    if entry["recipes"]:
        rows.append(("recipes", ", ".join(f"{name} {yaml_text(value)}" for name, value in entry["recipes"].items())))
    return [entry["key"], *fact_lines([*rows, ("", ""), ("meaning", entry["text"])], label=12)]


def doctor(arguments: argparse.Namespace) -> int:
    """Print each finding; the exit code is 1 if a check fails, 8 if it is one of the GPUs."""
    from orchestrator.doctor import examine, gpu_findings
    from orchestrator.sweep import Sweeps

    found, home, code = [], home_folder(os.environ), 0
    machine = examine(
        home=home,
        folder=Path.cwd(),
        environ=os.environ,
        backend_name=arguments.backend,
        sweeps_behind=Sweeps(home).behind,
    )
    gpus = gpu_findings(os.environ) if arguments.gpu else ()
    for finding, failed in itertools.chain(zip(machine, itertools.repeat(1)), zip(gpus, itertools.repeat(8))):
        found.append(finding)
        code = failed if finding.level == "fail" else code
        if arguments.output == "text":
            write_line("\n".join(_finding_lines(finding)), sys.stdout)
    if arguments.output != "text":
        print_document([finding.model_dump(mode="json") for finding in found], arguments.output)
    return code


def _finding_lines(finding: Finding) -> Iterator[str]:
    """Yield level, name, text and fix; a command to paste stays on one line."""
    indent = f"{'':<4}  {finding.name:<15}  "
    wrapper = textwrap.TextWrapper(WIDTH, indent, " " * len(indent), break_on_hyphens=False, break_long_words=False)
    first, *rest = wrapper.wrap(finding.text) or [indent]
    yield paint_word(f"{finding.level:<4}", terminal_of()) + first[4:]
    yield from rest
    if finding.fix:
        yield f"      {'fix':<15}  {finding.fix}"


def share(arguments: argparse.Namespace) -> None:
    """Give a group access to the home folder."""
    from orchestrator.support.access import share_home

    home = home_folder(os.environ)
    share_home(home, arguments.group)
    text = f"{home}: members of group {arguments.group} can read, change and run everything in it"
    print_result(arguments.output, {"home": str(home), "group": arguments.group}, text)
    hint(f"\nfor each member\n  export {HOME_VARIABLE}={home}")


def unshare(arguments: argparse.Namespace) -> None:
    """Close the home folder to all other users."""
    from orchestrator.support.access import unshare_home

    home = home_folder(os.environ)
    unshare_home(home)
    print_result(arguments.output, {"home": str(home), "group": None}, f"{home}: only you can enter it")


def completion(arguments: argparse.Namespace) -> None:
    """Print the completion code of a shell, and on a terminal how to install it."""
    from argcomplete.shell_integration import shellcode

    print(shellcode([PROGRAM], shell=arguments.shell))
    if sys.stdout.isatty():
        hint(f"to install it:\n  {INSTALL[arguments.shell]}")
