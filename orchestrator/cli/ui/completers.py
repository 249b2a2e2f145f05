"""Completions for a shell, through argcomplete.

Every press of TAB starts a Python process, so each function imports only what its own answer needs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from pydantic import BaseModel

LOCAL = "local://"
Completer = Callable[..., list[str]]


def runs(prefix: str, **_: Any) -> list[str]:
    """Return @last and the runs of the home folder, newest first; handles too if the prefix starts like one."""
    from orchestrator.support.home import RUNS, home_folder, run_names

    home = home_folder(os.environ)
    names = run_names(*home.glob("*/"))
    if prefix and (LOCAL.startswith(prefix) or prefix.startswith(LOCAL)):
        return [*names, *(LOCAL + name for name in run_names(home / RUNS))]
    return ["@last", *names]


def sweeps(**_: Any) -> list[str]:
    """Return @last and the sweeps of the home folder, newest first."""
    from orchestrator.support.home import home_folder, sweep_names

    return ["@last", *sweep_names(home_folder(os.environ))]


def failed_trials(parsed_args: argparse.Namespace | None = None, **_: Any) -> list[str]:
    """Return the numbers of the failed trials of the sweep on the command line."""
    from orchestrator.support.home import home_folder
    from orchestrator.sweep import Sweeps

    name = str(getattr(parsed_args, "name", None) or "@last")
    rows = Sweeps(home_folder(os.environ)).attach(name).status().rows
    return [str(row.trial) for row in rows if row.state == "failed"]


def runs_and_sweeps(prefix: str, **_: Any) -> list[str]:
    """Return runs, then sweeps."""
    return [*runs(prefix), *sweeps()[1:]]


def backends(**_: Any) -> list[str]:
    """Return the names of the backends."""
    from orchestrator.backends import backend_names

    return backend_names()


def recipes(parsed_args: argparse.Namespace | None = None, **_: Any) -> list[str]:
    """Return the recipes of the kind of job on the command line."""
    from orchestrator.jobs.registry import DEFAULT, is_kind, job_kind
    from train_jobs.artifacts.layers import preset_names

    kind = str(getattr(parsed_args, "kind", None))
    return preset_names(job_kind(kind if is_kind(kind) else DEFAULT).recipes)


def tasks(**_: Any) -> list[str]:
    """Return the names of the fine-tuning tasks."""
    from train_jobs.config.tasks import task_names

    return list(task_names())


def sizes(**_: Any) -> list[str]:
    """Return the names of machine sizes."""
    from orchestrator.specs.site import builtin_sites

    return [name for site in builtin_sites() for name in site.size_names()]


def assignments(prefix: str, parsed_args: argparse.Namespace | None = None, **_: Any) -> list[str]:
    """Return the dotted keys of a spec, each with `=`; after the `=`, the values of an enumeration."""
    from orchestrator.jobs.scaffold import spec_models

    key, equals, _rest = prefix.partition("=")
    kind = getattr(parsed_args, "kind", None) or "pretrain"
    choices = _keys(spec_models(kind)[kind][0])
    if not equals:
        return [f"{name}=" for name in choices]
    return [f"{key}={value}" for value in choices.get(key, [])]


def explained_keys(parsed_args: argparse.Namespace | None = None, **_: Any) -> list[str]:
    """Return the keys and sections that `explain` accepts."""
    from orchestrator.jobs.scaffold import spec_models
    from orchestrator.specs.reference import keys

    models = spec_models(getattr(parsed_args, "kind", None)).values()
    return list(dict.fromkeys(key.name for model, _ in models for key in keys(model)))


def _keys(model: type[BaseModel], prefix: str = "") -> dict[str, list[str]]:
    """Return dotted key -> its possible values, empty unless it is an enumeration or a boolean."""
    from pydantic import BaseModel

    found: dict[str, list[str]] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= _keys(field.annotation, f"{prefix}{name}.")
        else:
            values = [str(value) for value in get_args(field.annotation) if isinstance(value, str)]
            # Validators of open enumerations (built-in names, or a class of the user's own) list theirs as `known`.
            values += [word for check in field.metadata for word in getattr(getattr(check, "func", None), "known", ())]
            found[prefix + name] = ["true", "false"] if field.annotation is bool else values
    return found
