"""The settings of a job by their dotted paths: existence, type, and values from environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel

from orchestrator.support.errors import SpecError
from train_jobs.artifacts.layers import ConfigLayer, read_assignments
from train_jobs.config.errors import did_you_mean

if TYPE_CHECKING:
    from orchestrator.specs.job import JobSpec

MAX_SETTINGS_WIDTH = 60
Settings = dict[str, Any]
"""Dotted path -> value."""
TEXT = "data.text"  # names files, although its type does not contain `Path`


def section_of(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """Return the model of a section; None for a plain key."""
    annotation = model.model_fields[key].annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def seed_setting(job: JobSpec, seed: int) -> Settings | None:
    """Return the setting that gives a job a seed; None: the kind of job has no seed."""
    if "seeds" in type(job).model_fields:
        return {"seeds": [seed]}
    return {"train.seed": seed} if setting_type(type(job), "train.seed") is not None else None


def seeds_of(job: JobSpec) -> list[int]:
    """Return the seeds that a job trains with, one after the other; empty: the kind of job has at most one."""
    return list(dict(job)["seeds"]) if "seeds" in type(job).model_fields else []


def setting_type(model: type[BaseModel], path: str) -> Any:
    """Return the type of a setting; None: the setting does not exist. Free mappings accept any key."""
    annotation: Any = model
    for part in path.split("."):
        if not _is_model(annotation):
            return Any if get_origin(annotation) is dict else None
        if part not in annotation.model_fields:
            return None
        annotation = annotation.model_fields[part].annotation
    return annotation


def is_section(model: type[BaseModel], path: str) -> bool:
    """Return whether a setting is a section or a free mapping."""
    annotation = setting_type(model, path)
    return get_origin(annotation) is dict or _is_model(annotation)


def names_files(model: type[BaseModel], path: str) -> bool:
    """Return whether a setting is a path of this machine."""
    return path == TEXT or _has_path(setting_type(model, path))


def _has_path(annotation: Any) -> bool:
    return annotation is Path or any(_has_path(inner) for inner in get_args(annotation))


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def settings_text(settings: dict[str, Any], *, longest: int | None = MAX_SETTINGS_WIDTH) -> str:
    """Return settings as one line of `name=value`, with the last part of each name and six significant digits."""
    words = []
    for path, value in settings.items():
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        words.append(f"{path.rsplit('.', 1)[-1]}={shown}")
    text = " ".join(words)
    return text if longest is None or len(text) <= longest else f"{text[: longest - 3]}..."


PREFIX = "ORCHESTRATOR_"
SEPARATOR = "__"
# Not keys of a spec: the home folder, tracebacks, and what a backend sets for a job, which may submit another one.
RESERVED = ("HOME", "DEBUG", "CLOCK", "CODE", "MACHINE_METADATA", "OUTPUTS", "TRACKING")
RESERVED_PREFIX = "RUN"  # variables that a backend sets for the job


def sections_of(environ: Mapping[str, str]) -> list[str]:
    """Return the sections that ORCHESTRATOR_SECTION__KEY variables name."""
    named = (name.removeprefix(PREFIX).split(SEPARATOR) for name in environ if name.startswith(PREFIX))
    return [section.lower() for section, *key in named if key]


def variable_layers(model: type[JobSpec], environ: Mapping[str, str]) -> tuple[list[ConfigLayer], list[str]]:
    """Return a layer for each ORCHESTRATOR_* variable that names a key, and a warning for each that does not.

    Args:
        model: model of the spec.
        environ: environment variables.

    Raises:
        SpecError: some values are not YAML; the error lists all of them.
    """
    layers: list[ConfigLayer] = []
    warnings: list[str] = []
    problems: list[str] = []
    for variable in sorted(environ):
        name = variable.removeprefix(PREFIX)
        parts = name.split(SEPARATOR)
        of_backend = len(parts) == 1 and name.startswith(tuple(f"{section.upper()}_" for section in model.sections))
        if name == variable or name in RESERVED or name.startswith(RESERVED_PREFIX) or of_backend:
            continue
        path = key_of(model, parts)
        if path is None:
            hint = did_you_mean(variable, variables_of(model))
            warnings.append(f"{variable} is ignored: it does not name a key of a spec{hint}")
            continue
        try:
            layers.append(read_assignments([f"{path}={environ[variable]}"], variable))
        except SpecError as failure:
            problems += failure.problems
    if problems:
        raise SpecError("invalid environment variables: their values are not YAML", problems=problems)
    return layers, warnings


def key_of(model: type[BaseModel], parts: list[str]) -> str | None:
    """Return the dotted key of a variable, given the parts of its name; None: there is no such key.

    Fields are matched in lower case; in mappings with free keys (tags, variables), names keep their case.
    """
    path: list[str] = []
    section: type[BaseModel] | None = model
    for part in parts:
        name = part.lower() if section else part
        if not name or (section and name not in section.model_fields):
            return None
        path.append(name)
        section = section_of(section, name) if section else None
    return ".".join(path)


def variables_of(model: type[BaseModel], prefix: str = PREFIX) -> list[str]:
    """Return the name of the variable of each key of `model`."""
    names: list[str] = []
    for key in model.model_fields:
        section = section_of(model, key)
        name = prefix + key.upper()
        names += variables_of(section, name + SEPARATOR) if section else [name]
    return names
