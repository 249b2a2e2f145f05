"""Pages generated from the code: every key of a spec, every command, every kind of error."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from pydantic import BaseModel

from orchestrator.cli.main import build_parser
from orchestrator.jobs.registry import all_kinds, job_kind, kind_names
from orchestrator.specs.job import JobSpec
from orchestrator.specs.reference import REQUIRED, KeyHelp, keys
from orchestrator.specs.site import spec_model
from orchestrator.specs.sweep_spec import SweepSpec
from train_jobs.artifacts.layers import preset_names

COLUMNS = "100"


def spec_page(kind: str) -> str:
    """Return the page with all keys of a kind of job and their defaults, by section."""
    found = job_kind(kind)
    recipes = ", ".join(f"`{name}`" for name in preset_names(found.recipes))
    lines = [
        f"# Keys of a {kind} job",
        "",
        f"`orchestrator submit {kind} -f job.yaml`, where job.yaml has any of these keys; `--set a.b=c` and",
        f"`ORCHESTRATOR_A__B=c` name the same. Recipes, which bring values of their own: {recipes}.",
        "",
    ]
    return "\n".join([*lines, *_section(spec_model(found.spec, ()))])


def sweep_page() -> str:
    """All keys of a sweep."""
    lines = [
        "# Keys of a sweep",
        "",
        "`orchestrator submit sweep -f sweep.yaml`; the trial has keys of its own kind.",
        "",
    ]
    return "\n".join([*lines, *_section(SweepSpec)])


def _section(model: type[BaseModel]) -> Iterator[str]:
    """Yield a table of keys for each section of a model."""
    sections: dict[tuple[str, ...], list[KeyHelp]] = {(): []}
    heads: dict[tuple[str, ...], str] = {}
    for key in keys(model):
        if key.section:
            sections[key.path], heads[key.path] = [], key.text
        else:
            sections[key.path[:-1]].append(key)
    for path, plain in sections.items():
        if path:
            yield f"## {'.'.join(path)}\n"
            if heads[path]:
                yield f"{heads[path]}\n"
        if plain:
            yield "| key | default | |\n| --- | --- | --- |"
            for key in plain:
                default = f"`{key.default}`" if key.default not in {"", REQUIRED} else key.default
                yield f"| `{key.name}` | {default} | {_cell(key.text)} |"
            yield ""


def commands_page() -> str:
    """--help of every verb, as a terminal shows it."""
    os.environ["COLUMNS"] = COLUMNS
    parser = build_parser()
    lines = ["# Commands", "", "```text", parser.format_help().rstrip(), "```", ""]
    for name, verb in sorted(_verbs(parser).items()):
        lines += [f"## {name}", "", "```text", verb.format_help().rstrip(), "```", ""]
        for action, below in _verbs(verb).items():
            lines += [f"### {name} {action}", "", "```text", below.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def _verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def pages() -> dict[str, str]:
    """Path below docs/ -> Markdown, of all pages that are made."""
    assert all(issubclass(kind.spec, JobSpec) for kind in all_kinds().values())
    specs = {f"reference/{kind}.md": spec_page(kind) for kind in kind_names()}
    return {**specs, "reference/sweep.md": sweep_page(), "reference/commands.md": commands_page()}
