"""Values of a spec in environment variables: ORCHESTRATOR_TRAIN__STEPS=100 is train.steps, read as YAML."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from orchestrator.specs.job import JobSpec
from orchestrator.support.errors import SpecError
from train_jobs.artifacts.layers import Layer, read_assignments
from train_jobs.config.names import did_you_mean

PREFIX = "ORCHESTRATOR_"
SEPARATOR = "__"
RESERVED = ("HOME", "DEBUG")  # read elsewhere: the home folder, tracebacks
RESERVED_PREFIX = "RUN"  # set for the job by its backend


def sections_of(environ: Mapping[str, str]) -> list[str]:
    """Return the sections that ORCHESTRATOR_SECTION__KEY variables name."""
    named = (name.removeprefix(PREFIX).split(SEPARATOR) for name in environ if name.startswith(PREFIX))
    return [section.lower() for section, *key in named if key]


def variable_layers(model: type[JobSpec], environ: Mapping[str, str]) -> tuple[list[Layer], list[str]]:
    """One layer for each ORCHESTRATOR_* variable that names a key of `model`, and a warning for each that does not.

    Raises:
        SpecError: values that are not YAML, all of them at once.
    """
    layers: list[Layer] = []
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
            warnings.append(f"{variable} is ignored: no key of a spec is called that{hint}")
            continue
        try:
            layers.append(read_assignments([f"{path}={environ[variable]}"], variable))
        except SpecError as failure:
            problems += failure.problems
    if problems:
        raise SpecError("environment variables with values that are not YAML", problems=problems)
    return layers, warnings


def key_of(model: type[BaseModel], parts: list[str]) -> str | None:
    """The dotted key that the parts of a variable's name stand for, None where there is no such key.

    Fields are matched in lower case; below a free mapping (tags, variables) a name is kept as it is written.
    """
    path: list[str] = []
    section: type[BaseModel] | None = model
    for part in parts:
        name = part.lower() if section else part
        if not name or (section and name not in section.model_fields):
            return None
        path.append(name)
        section = _section(section, name) if section else None
    return ".".join(path)


def variables_of(model: type[BaseModel], prefix: str = PREFIX) -> list[str]:
    """The variable of each key of `model`."""
    names: list[str] = []
    for key in model.model_fields:
        section = _section(model, key)
        name = prefix + key.upper()
        names += variables_of(section, name + SEPARATOR) if section else [name]
    return names


def _section(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    annotation = model.model_fields[key].annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
