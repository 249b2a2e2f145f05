"""Pages that are made of the code: every key of a spec, every command, every kind of error."""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import os
import re
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from orchestrator.cli.main import build_parser
from orchestrator.jobs.registry import all_kinds, job_kind, kind_names
from orchestrator.specs.job import JobSpec
from orchestrator.specs.site import spec_model
from orchestrator.specs.sweep_spec import SweepSpec
from orchestrator.support import errors
from train_jobs.artifacts.layers import preset_names

COLUMNS = "100"


def spec_page(kind: str) -> str:
    """All keys of a kind of job, section by section, with what each is when nobody says."""
    found = job_kind(kind)
    recipes = ", ".join(f"`{name}`" for name in preset_names(found.recipes))
    lines = [
        f"# Keys of a {kind} job",
        "",
        f"`orchestrator submit {kind} -f job.yaml`, where job.yaml has any of these keys; `--set a.b=c` and",
        f"`ORCHESTRATOR_A__B=c` name the same. Recipes, which bring values of their own: {recipes}.",
        "",
    ]
    return "\n".join([*lines, *_section(spec_model(found.spec, ()), ())])


def sweep_page() -> str:
    """All keys of a sweep."""
    lines = [
        "# Keys of a sweep",
        "",
        "`orchestrator submit sweep -f sweep.yaml`; the trial has keys of its own kind.",
        "",
    ]
    return "\n".join([*lines, *_section(SweepSpec, ())])


def help_texts(model: type[BaseModel]) -> dict[str, str]:
    """Field -> the docstring under it, in the class or in those it is made of."""
    found = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in itertools.pairwise(tree.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(field.target)] = _prose(str(text.value.value))
    return found


def _section(
    model: type[BaseModel], path: tuple[str, ...], above: frozenset[type[BaseModel]] = frozenset()
) -> Iterator[str]:
    above |= {model}
    plain, nested = [], []
    texts = help_texts(model)
    for name, field in model.model_fields.items():
        part = _model_of(field.annotation)
        if part is None or part.many:
            plain.append((name, field))
        if part is not None and part.model not in above:  # options of a choice have spaces of their own
            nested.append((f"{name}[]" if part.many else name, part.model))
    if path:
        yield f"## {'.'.join(path)}\n"
        if model.__doc__:
            yield f"{_prose(model.__doc__)}\n"
    if plain:
        yield "| key | default | |\n| --- | --- | --- |"
        for name, field in plain:
            key = ".".join((*path, name))
            yield f"| `{key}` | {_default(field)} | {_cell(texts[name])} |"
        yield ""
    for name, part in nested:
        yield from _section(part, (*path, name), above)


class Part(NamedTuple):
    """A section, or the elements of a list that may be sections."""

    model: type[BaseModel]
    many: bool


def _model_of(annotation: Any) -> Part | None:
    """What a field consists of; None: of a value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return Part(annotation, many=False)
    for argument in get_args(annotation):
        if (part := _model_of(argument)) is not None:
            return Part(part.model, many=part.many or get_origin(annotation) in {dict, list})
    return None


def _default(field: Any) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return ""
    if isinstance(value, tuple | set | frozenset):
        value = [*value]
    text = yaml.safe_dump(_plain(value), default_flow_style=True, width=1000).removesuffix("\n").removesuffix("...")
    return f"`{text.strip()}`"


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return value if isinstance(value, bool | int | float | str | None) else str(value)


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


def errors_table() -> str:
    """Every kind of error with the command line's exit code."""
    kinds = [found for name in errors.__all__ if (found := getattr(errors, name)) is not errors.UserError]
    rows = [
        f"| `{kind.kind}` | {kind.exit_code} | {_cell(_prose((kind.__doc__ or '').partition('Args:')[0]))} |"
        for kind in sorted(kinds, key=lambda kind: (kind.exit_code, kind.kind))
    ]
    return "\n".join(["| kind | exit code | |", "| --- | --- | --- |", *rows])


def _prose(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def pages() -> dict[str, str]:
    """Path below docs/ -> Markdown, of all pages that are made."""
    assert all(issubclass(kind.spec, JobSpec) for kind in all_kinds().values())
    specs = {f"reference/{kind}.md": spec_page(kind) for kind in kind_names()}
    return {**specs, "reference/sweep.md": sweep_page(), "reference/commands.md": commands_page()}
