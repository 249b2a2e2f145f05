"""Reference of the keys of a spec, read from the models: type, default, help text, and the recipes that change a key.

Used by `orchestrator explain`, `orchestrator init --full` and the documentation. Help texts are the docstrings below
the fields. They are parsed from the source only here: to parse every model would slow down every command.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from train_jobs.artifacts.layers import dotted, leaves, merge, preset_names, read_preset

REQUIRED = "required"
WIDTH = 110
_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


class KeyHelp(NamedTuple):
    """One key of a spec."""

    path: tuple[str, ...]
    """Parts of its path; a part that ends in `[]` is an element of a list."""
    type: str
    """Its type as text; empty for a section."""
    default: str
    """Its default as YAML; `required` if it has none, empty for a section."""
    text: str
    """Its help text, on one line."""
    section: bool = False
    """Whether other keys are below it."""

    @property
    def name(self) -> str:
        """The dotted key, such as `train.steps`."""
        return ".".join(self.path)


def keys(
    model: type[BaseModel], path: tuple[str, ...] = (), above: frozenset[type[BaseModel]] = frozenset()
) -> Iterator[KeyHelp]:
    """Yield every key of a model: first its plain keys, then each section followed by its own keys.

    Args:
        model: the model.
        path: path of the section that the model is; empty: the whole spec.
        above: models of the enclosing sections, where the recursion stops.
    """
    texts, above = help_texts(model), above | {model}
    nested = []
    for name, field in model.model_fields.items():
        inner, many = _model_of(field.annotation)
        if inner is None or many:
            yield KeyHelp((*path, name), type_text(field.annotation, field.metadata), default_text(field), texts[name])
        if inner is not None and inner not in above:  # a recursive model, such as a nested space, is listed once
            nested.append((f"{name}[]" if many else name, inner))
    for name, inner in nested:
        yield KeyHelp((*path, name), "", "", prose(inner.__doc__ or ""), section=True)
        yield from keys(inner, (*path, name), above)


def help_texts(model: type[BaseModel]) -> dict[str, str]:
    """Return field -> the docstring below it, in the class or in one of its bases."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):  # `spec_model` builds models at run time, which have no source
            found.update({name: prose(field.description or "") for name, field in base.model_fields.items()} | found)
            continue
        (tree,) = ast.parse(textwrap.dedent(source)).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in itertools.pairwise([*tree.body, ast.Pass()]):
            if not isinstance(field, ast.AnnAssign):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(field.target)] = prose(str(text.value.value))
            else:
                found[ast.unparse(field.target)] = _own_text(base, field)
    return found


def _own_text(model: type[BaseModel], field: ast.AnnAssign) -> str:
    """Return the help text of a field without a docstring: if it is a section, the docstring of its model."""
    inner, _ = _model_of(model.model_fields[ast.unparse(field.target)].annotation)
    return prose(inner.__doc__ or "") if inner else ""


def prose(text: str) -> str:
    """Return a docstring as a single line."""
    return re.sub(r"\s+", " ", text).strip()


def type_text(annotation: Any, metadata: list[Any] | tuple[Any, ...] = ()) -> str:
    """Return an annotation as text: `int, above 0`, `adamw | lamb`, `text or null`."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return type_text(inner, more)
    bounds = [f"{word} {found:g}" for part in metadata for word, found in _bounds(part)]
    return ", ".join([_plain_type(annotation), *bounds])


def _bounds(part: Any) -> Iterator[tuple[str, float]]:
    for each in getattr(part, "metadata", [part]):
        for key, word in _BOUNDS.items():
            if isinstance(value := getattr(each, key, None), int | float):
                yield word, value


def _plain_type(annotation: Any) -> str:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(map(str, inside))
    if origin in {list, tuple}:
        parts = dict.fromkeys(type_text(part) for part in inside if part is not Ellipsis)
        return f"list of {' | '.join(parts)}"
    if origin is dict:
        return f"mapping of {type_text(inside[0])} to {type_text(inside[1])}"
    if inside:
        return " | ".join(dict.fromkeys("null" if part is type(None) else type_text(part) for part in inside))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return {str: "text", Path: "path", bool: "true | false", float: "number", int: "integer"}.get(
        annotation, getattr(annotation, "__name__", str(annotation))
    )


def _model_of(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """Return the model in an annotation, if there is one, and whether the field holds several instances of it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for argument in get_args(annotation):
        inner, many = _model_of(argument)
        if inner is not None:
            return inner, many or get_origin(annotation) in {dict, list}
    return None, False


def default_text(field: FieldInfo) -> str:
    """Return the default of a field as YAML; `required` for a required field."""
    if field.is_required():
        return REQUIRED
    value = field.get_default(call_default_factory=True)
    return "" if value is PydanticUndefined or isinstance(value, BaseModel) else yaml_text(value)


def yaml_text(value: Any) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(_plain(value), default_flow_style=True, width=1000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("...").strip()


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def recipe_values(folder: Path) -> dict[str, dict[str, Any]]:
    """Return recipe -> dotted key -> value, including keys from the recipes that it extends."""
    return {
        name: {dotted(path): value for path, value in leaves(merge(read_preset(name, folder)).tree)}
        for name in preset_names(folder)
    }


def full_spec(kind: str, model: type[BaseModel], recipe: str, folder: Path) -> str:
    """Return a spec as YAML text with every key, each below its help text, and with the values of a recipe.

    Args:
        kind: name of the kind of job, for the first line.
        model: model of its specs.
        recipe: recipe that provides the values; a required key without a value becomes a comment.
        folder: folder of the recipes of this kind.
    """
    values = {**recipe_values(folder)[recipe], "kind": kind, "recipe": recipe}
    lines = [f"# Every key of a {kind} job, with the values of the recipe {recipe}. Delete what you do not change."]
    skipped: tuple[str, ...] | None = None
    for key in keys(model):
        if skipped is not None and key.path[: len(skipped)] == skipped:
            continue
        skipped = key.path if key.path[-1].endswith("[]") else None
        if skipped:
            continue  # elements of lists: see the reference
        indent = "  " * (len(key.path) - 1)
        lines += ["", *textwrap.wrap(key.text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")]
        value = yaml_text(values[key.name]) if key.name in values else key.default
        mark = "# " if value == REQUIRED else ""
        lines.append(f"{indent}{mark}{key.path[-1]}:{f' {value}' if value else ''}")
    return "\n".join(lines) + "\n"


def explain(key: str, kinds: Mapping[str, tuple[type[BaseModel], Path]]) -> list[dict[str, Any]]:
    """Return type, default and help text of a key, once for each distinct meaning among the kinds of jobs.

    Args:
        key: dotted key, such as `train.steps`; for a section, its keys are returned as well.
        kinds: kind -> model of its specs, and folder of its recipes.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for kind, (model, folder) in kinds.items():
        recipes = recipe_values(folder)
        for each in keys(model):
            if each.name != key and not each.name.startswith((f"{key}.", f"{key}[]")):
                continue
            changed = {name: values[each.name] for name, values in recipes.items() if each.name in values}
            entry = found.setdefault(
                (each.name, each.type, each.default, each.text, tuple(map(str, changed.items()))),
                {
                    "key": each.name,
                    "kinds": [],
                    **({} if each.section else {"type": each.type, "default": each.default}),
                    "text": each.text,
                    "recipes": changed,
                },
            )
            entry["kinds"].append(kind)
    return list(found.values())
