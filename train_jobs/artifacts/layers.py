"""Layered configurations in YAML or JSON; all invalid keys and values are reported together, with file and line.

    layers = [read_file(preset), read_file("pretrain.yml"), read_assignments(["train.steps=100"], "--set")]
    merged = merge(layers)
    config = build(PretrainConfig, merged)

A later layer overrides earlier ones, key by key; lists are replaced, not merged.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from train_jobs.artifacts.redaction import redact
from train_jobs.artifacts.regular_files import SpecialFileError, open_regular
from train_jobs.artifacts.unreadable import unreadable
from train_jobs.artifacts.yaml_values import DEEPEST, EXPONENT, MOST_BYTES, Line, YamlValues, read_yaml, too_large
from train_jobs.artifacts.yaml_values import KeyPath as KeyPath
from train_jobs.artifacts.yaml_values import dotted as dotted
from train_jobs.config.errors import SpecError, did_you_mean
from train_jobs.config.fields import AS_WRITTEN, NAMED
from train_jobs.config.other_tools import our_key

ModelT = TypeVar("ModelT", bound=BaseModel)

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
PRETRAIN_RECIPES, PREPARE_RECIPES = RECIPES / "pretrain", RECIPES / "prepare"
FINETUNE_RECIPES, PREDICT_RECIPES = RECIPES / "finetune", RECIPES / "predict"
COMMAND_RECIPES = RECIPES / "command"
EXTENDS = "extends"  # key of a recipe: name of the recipe in the same folder that it overrides
CONTINUES = "continues"  # key of a recipe: name of the recipe whose result it starts from
SUBMISSION_KEYS = ("kind", "recipe")  # of a file for `orchestrator submit`, which a job also reads
MAX_LISTED = 15  # known keys are listed if there are fewer than this
MOST_PROBLEMS = 100  # problems with a place and a suggestion; more are counted
PLAIN = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "missing": "required",
}
"""Type of an error of pydantic -> its message, where pydantic's own is about parsing."""
FEW = 3  # keys that a hint names
LONGEST_SHOWN = 200  # characters of a value in a message
_MAYBE_SECRET = {"secrets", "uri"}  # keys whose values no message shows: one that is refused may be a secret itself


@dataclass(frozen=True)
class Origin:
    """The place where a value was written."""

    source: str
    """File, preset or flag."""
    line: int | None = None
    """Line in the file, from 1."""

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True)
class ConfigLayer:
    """One source of values: a nested dict, and the line of each key."""

    source: str
    """File, preset or flag, for messages."""
    tree: dict[str, Any]
    """Nested values."""
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    """Path of a key -> its line in the file."""

    def origin(self, path: KeyPath) -> Origin:
        """Return where the value at `path`, or the nearest section around it, was written."""
        while path and path not in self.lines:
            path = path[:-1]
        return Origin(self.source, self.lines.get(path) or None)

    def text(self, path: KeyPath) -> str | None:
        """Return how a number, a truth value or a date was written; None: it is another value, or not from YAML."""
        line = self.lines.get(path)
        return line.text if isinstance(line, Line) else None


@dataclass(frozen=True)
class Merged:
    """Merged layers."""

    tree: dict[str, Any]
    """Nested values."""
    origins: dict[KeyPath, Origin]
    """Path of a value -> where it was written."""
    texts: dict[KeyPath, str] = field(default_factory=dict)
    """Path of a number, a truth value or a date -> how it was written."""

    def origin(self, path: KeyPath) -> Origin | None:
        """Return where the value at `path`, or the nearest section around it, was written."""
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path[:-1]
        return None


def read_file(path: Path, source: str | None = None) -> ConfigLayer:
    """Read a YAML or JSON mapping with the line of each key.

    Args:
        path: path of the file.
        source: its name in messages. None: the path.

    Raises:
        SpecError: the file is missing, not UTF-8, not YAML or not a mapping, a key is duplicated, or the file is larger
            than 4 MiB.
    """
    name = source or str(path)
    return read_text(read_source(path, name), name)


def read_source(path: Path, source: str) -> str:
    """Return the text of a YAML or JSON file.

    Args:
        path: path of the file.
        source: its name in messages.

    Raises:
        SpecError: the file is missing, not a regular one, not UTF-8 or larger than 4 MiB.
    """
    try:
        with open_regular(path, pipe=True) as stream:
            content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise too_large(source, f"more than {MOST_BYTES >> 20} MiB")
        return content.decode()
    except (FileNotFoundError, NotADirectoryError):
        raise SpecError(f"no such file: {path}", fix="orchestrator init, or -f with an existing file") from None
    except (PermissionError, IsADirectoryError, SpecialFileError) as problem:
        error = unreadable(path, problem)
        raise SpecError(error.message, facts=error.facts, fix=error.fix) from None
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        text = f"{source}:{line}: byte {problem.start} of the file is not UTF-8"
        raise SpecError(f"{path} is not UTF-8", problems=[text]) from None


def read_text(text: str, source: str) -> ConfigLayer:
    """Read a YAML or JSON mapping from a string.

    Args:
        text: the document.
        source: its name in messages.

    Raises:
        SpecError: the text is not YAML or not a mapping, or a key is duplicated.
    """
    values = read_yaml(text, source)
    if values.tree is None and not values.problems:
        return ConfigLayer(source, {})
    if not isinstance(values.tree, dict):
        raise SpecError(f"invalid {source}: not keys and values", problems=[f"{source}:1: not a mapping"])
    if values.problems:
        raise SpecError(f"{source} has {_count(values.problems)}", problems=values.problems)
    return ConfigLayer(source, values.tree, values.lines)


def read_assignments(assignments: Iterable[str], source: str) -> ConfigLayer:
    """Return a layer from `a.b=value` strings; values are parsed as YAML.

    Args:
        assignments: the strings.
        source: the flag that they were given with, for messages.

    Raises:
        SpecError: an assignment lacks `=`, has an empty key, or has a value that is not YAML.
    """
    tree: dict[str, Any] = {}
    lines: dict[KeyPath, Line] = {}
    problems: list[str] = []
    for text in assignments:
        key, equals, raw = text.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            problems.append(f"{source} {text}: not of the form path.to.key=value")
            continue
        if len(parts) > DEEPEST:
            problems.append(f"{source}: a key of more than {DEEPEST} parts")
            continue
        try:
            values = _assigned(raw)
        except SpecError as failure:
            problems.append(f"{source} {text}: {failure.message}")
            continue
        if key.strip() in NAMED and isinstance(values.tree, str):
            parts.append("name")
        lines |= {(*parts, *path): Line(0, line.text) for path, line in values.lines.items()}
        if not assign(tree, tuple(parts), values.tree):
            problems.append(f"{source} {text}: a part of {key} is already a plain value")
    if problems:
        raise SpecError(f"{source} has {_count(problems)}", problems=problems)
    return ConfigLayer(source, tree, lines)


def _assigned(raw: str) -> YamlValues:
    """Return the value of an assignment, which is read as YAML.

    Raises:
        SpecError: the value is not YAML, or a part of it is invalid.
    """
    if not raw.strip():
        return YamlValues("the value", "", {(): Line(0)})
    try:
        values = read_yaml(raw, "the value")
    except SpecError as failure:
        raise failure if not failure.problems else SpecError("the value is not valid YAML") from None
    if values.problems:
        raise SpecError(values.problems[0].removeprefix("the value:1: ").lstrip(": "))
    return values


def assign(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> bool:
    """Set a value in nested dicts, creating sections; return False if a part of `path` is a plain value.

    A section keeps the keys that it has and `value` lacks.
    """
    for part in path[:-1]:
        section = tree.setdefault(part, {})
        if not isinstance(section, dict):
            return False
        tree = section
    key = path[-1]
    tree[key] = _joined(tree[key], value) if key in tree else value
    return True


def _joined(below: Any, above: Any) -> Any:
    """Return one value over another; two sections have the keys of both."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: _joined(below[key], value) if key in below else value for key, value in above.items()}


def merge(layers: Iterable[ConfigLayer]) -> Merged:
    """Merge layers; later ones override earlier ones. `optimizer: lamb` is short for `optimizer: {name: lamb}`."""
    merged = Merged({}, {})
    for layer in layers:
        short = {key: {"name": layer.tree[key]} for key in NAMED if isinstance(layer.tree.get(key), str)}
        _overlay(merged, merged.tree, {**layer.tree, **short}, (), layer)
    return merged


def _overlay(
    merged: Merged, below: dict[str, Any], above: Mapping[str, Any], path: KeyPath, layer: ConfigLayer
) -> None:
    for key, value in above.items():
        here = (*path, key)
        if isinstance(value, dict):
            if not isinstance(below.get(key), dict):
                below[key] = {}
                merged.texts.pop(here, None)
                merged.origins[here] = layer.origin(here)
            _overlay(merged, below[key], value, here, layer)
        else:
            # A plain value replaces a section: origins of the section's keys are then wrong.
            for stale in _paths(below.get(key), here):
                merged.origins.pop(stale, None)
                merged.texts.pop(stale, None)
            below[key] = value
            merged.origins[here] = layer.origin(here)
            merged.texts.update((at, text) for at in _paths(value, here) if (text := layer.text(at)) is not None)


def _paths(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the path of a value and, in a section or list, those of all its values."""
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _paths(inner, (*path, key))


def build(model: type[ModelT], merged: Merged) -> ModelT:
    """Validate the merged values.

    Args:
        model: configuration to build.
        merged: values and their origins.

    Raises:
        SpecError: with one line per invalid key or value: `file:line: path.to.key: reason`.
    """
    try:
        return model.model_validate(with_texts(model, merged))
    except ValidationError as failure:
        errors = failure.errors(include_url=False)
        problems = [_problem(model, merged, dict(error)) for error in errors[:MOST_PROBLEMS]]
        more = [f"and {len(errors) - MOST_PROBLEMS} more"] if len(errors) > MOST_PROBLEMS else []
        raise SpecError(f"the configuration has {_count(errors)}", problems=problems + more) from None


def with_texts(
    model: type[BaseModel], merged: Merged, setting: Callable[[KeyPath], KeyPath] = lambda path: path
) -> dict[str, Any]:
    """Return the tree with text as it was written where the model has text and YAML has another value.

    Args:
        model: the configuration.
        merged: values, and how they were written.
        setting: function that returns the path in the configuration, given that in the tree.
    """
    as_text: dict[tuple[KeyPath, bool], bool] = {}  # a list of 100,000 numbers has one type
    texts = {}
    for path, text in merged.texts.items():
        kind = tuple(0 if isinstance(part, int) else part for part in setting(path)), EXPONENT.match(text) is not None
        if kind not in as_text:
            as_text[kind] = _is_text(model, kind[0], number=kind[1])
        if as_text[kind]:
            texts[path] = text
    if not texts:
        return merged.tree
    tree = copy.deepcopy(merged.tree)
    for path, text in texts.items():
        place: Any = tree
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = text
    return tree


def _is_text(model: type[BaseModel], path: KeyPath, *, number: bool) -> bool:
    """Return whether a value is taken as it was written.

    Args:
        model: the configuration.
        path: the value's.
        number: whether only YAML 1.2 reads it as a number; then it is text in every field of text.
    """
    kinds = [(kind, marks) for kind, marks in _kinds(model, path) if kind is not NoneType]
    texts = [(kind in {str, Path} and number) or (kind is str and AS_WRITTEN in marks) for kind, marks in kinds]
    return bool(texts) and all(texts)


def _kinds(annotation: Any, path: KeyPath, marks: Iterable[Any] = ()) -> Iterator[tuple[Any, Iterable[Any]]]:
    """Yield each type that the value at a path may have, with its marks."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _kinds(arguments[0], path, arguments[1:])
    elif origin in {Union, UnionType}:
        for inner in arguments:
            yield from _kinds(inner, path, marks)
    elif not path:
        yield annotation, marks
    elif origin in {dict, list, tuple}:
        yield from _kinds(arguments[origin is dict], path[1:])
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel) and path[0] in annotation.model_fields:
        found = annotation.model_fields[str(path[0])]
        yield from _kinds(found.annotation, path[1:], found.metadata)


def preset_names(folder: Path = PRETRAIN_RECIPES) -> list[str]:
    """Return the names of the presets in a folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def read_preset(name: str, folder: Path = PRETRAIN_RECIPES, what: str = "recipe") -> list[ConfigLayer]:
    """Read a shipped preset and those that it extends.

    Args:
        name: name of the preset.
        folder: folder of the presets.
        what: kind of preset, for messages.

    Returns:
        The layers, the base first.

    Raises:
        SpecError: the name is unknown; the message lists the known ones.
    """
    names = preset_names(folder)
    if name not in names:
        raise SpecError(f"unknown {what} {name!r}{did_you_mean(name, names)}", facts={"known": ", ".join(names)})
    layers = read_overlays(folder / f"{name}.yaml", source=f"preset {name}")
    for layer in layers:
        layer.tree.pop(CONTINUES, None)
    return layers


def continued_recipe(name: str, folder: Path = PRETRAIN_RECIPES) -> str | None:
    """Return the recipe of the phase before that of a shipped recipe; None: it starts a model.

    Args:
        name: name of an existing recipe.
        folder: folder of the recipes.
    """
    return read_file(folder / f"{name}.yaml").tree.get(CONTINUES)


def read_overlays(path: Path, source: str | None = None) -> list[ConfigLayer]:
    """Read a file and the files that it extends.

    Args:
        path: path of the file; its key `extends: NAME` refers to NAME.yaml in the same folder.
        source: its name in messages. None: its path.

    Returns:
        The layers, the base first.

    Raises:
        SpecError: a file is missing or invalid, or a file extends itself, directly or through others.
    """
    layers: list[ConfigLayer] = []
    seen = [path]
    while True:
        layer = read_file(path, source)
        base = layer.tree.pop(EXTENDS, None)
        layers.insert(0, layer)
        if base is None:
            return layers
        where = layer.origin((EXTENDS,))
        path = path.with_name(f"{base}.yaml")
        if not path.is_file() or path in seen:
            what = "extends itself" if path in seen else f"no such file: {path}"
            raise SpecError(f"cannot read {layer.source}", problems=[f"{where}: {EXTENDS}: {base!r}: {what}"])
        seen.append(path)
        source = f"preset {base}" if source else None


def config_layers(source: str, recipes: Path) -> tuple[list[ConfigLayer], bool]:
    """Read the configuration of a job: a file, or a shipped recipe by name.

    A file may be written for `orchestrator submit`: its `kind` has to be that of the job, and its `recipe` is laid
    below it.

    Args:
        source: path or name. An existing path takes precedence over a recipe with the same name.
        recipes: folder of the recipes, named like the kind of job.

    Returns:
        The layers, the base first, and whether they are a shipped recipe.

    Raises:
        SpecError: the file is missing or invalid, is for another kind of job, or names an unknown recipe.
    """
    if not Path(source).exists() and source in preset_names(recipes):
        return read_preset(source, recipes), True
    layers = read_overlays(Path(source))
    own = merge(layers)
    kind, recipe = (own.tree.get(key) for key in SUBMISSION_KEYS)
    if kind not in {None, recipes.name}:
        problem = f"{own.origin(('kind',))}: kind: must be {recipes.name}, not {kind!r}"
        raise SpecError(f"{source} is for another kind of job", problems=[problem], fix=f"-m train_jobs.{kind}")
    for key, layer in itertools.product(SUBMISSION_KEYS, layers):
        layer.tree.pop(key, None)
    return (layers if recipe is None else [*read_preset(str(recipe), recipes), *layers]), False


def leaves(tree: Mapping[str, Any], path: KeyPath = ()) -> Iterable[tuple[KeyPath, Any]]:
    """Yield each plain value of a nested dict with its path."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def plain_message(error: Mapping[str, Any]) -> str:
    """Return the message of an error of pydantic as the end of a sentence about the key."""
    message = PLAIN.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ")
    return re.sub("^input should ", "must ", message[:1].lower() + message[1:])


def _problem(model: type[BaseModel], merged: Merged, error: dict[str, Any]) -> str:
    path = tuple(error["loc"])
    origin = merged.origin(path)
    where = f"{origin}: " if origin else ""
    name = f"{dotted(path)}: " if path else ""
    if error["type"] == "extra_forbidden":
        known = _keys_of(model, path[:-1])
        hint = did_you_mean(str(path[-1]), known)
        below = [f"{key}.{path[-1]}" for key in sorted(known) if path[-1] in _keys_of(model, (*path[:-1], key))]
        if below:
            hint = f" (did you mean {' or '.join(map(json.dumps, below[:FEW]))}?)"
        elif ours := our_key(str(path[-1]), lambda key: _has_key(model, key)):
            hint = f' (did you mean "{ours}"?)'
        if not hint and len(known) < MAX_LISTED:
            hint = f" (known: {', '.join(sorted(known))})"
        return f"{where}{name}unknown key{hint}"
    message, value = plain_message(error), error.get("input")
    if error["type"] == "literal_error" and isinstance(value, str):
        choices = [choice.strip("'\"") for choice in error["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        message += did_you_mean(value, choices)
    if isinstance(value, str | int | float | bool) and _MAYBE_SECRET.isdisjoint(path):
        shown = repr(redact(value) if isinstance(value, str) else value)
        message += f", not {shown if len(shown) <= LONGEST_SHOWN else shown[:LONGEST_SHOWN] + '...'}"
    return f"{where}{name}{message}"


def _has_key(model: type[BaseModel], key: str) -> bool:
    *path, name = key.split(".")
    return name in _keys_of(model, tuple(path))


def _keys_of(model: type[BaseModel], path: KeyPath) -> list[str]:
    current: type[BaseModel] | None = model
    parts = iter(path)
    for part in parts:
        if current is None or part not in current.model_fields:
            return []
        annotation = current.model_fields[str(part)].annotation
        if get_origin(annotation) is dict:
            next(parts, None)  # the key of a dict, which is not a field
        current = _section(annotation)
    return list(current.model_fields) if current else []


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        if found := _section(inner):
            return found
    return None


def _count(problems: Sequence[object]) -> str:
    return f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
