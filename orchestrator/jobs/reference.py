"""Reference of the keys of every kind of job, and a spec with all of them: `explain` and `init --full`."""

from __future__ import annotations

from typing import Any

from orchestrator.jobs.registry import all_kinds, job_kind
from orchestrator.specs.reference import explain, full_spec, keys
from orchestrator.specs.site import spec_model
from orchestrator.support.errors import SpecError
from train_jobs.artifacts.layers import preset_names
from train_jobs.config.names import did_you_mean


def explain_key(key: str, kind: str | None = None) -> list[dict[str, Any]]:
    """Return what a key means: {key, kinds, type, default, text, recipes}, once for each meaning.

    Args:
        key: dotted, as in a spec; the name of a section stands for every key below it.
        kind: only as this kind of job has it; None: as every kind has it.

    Raises:
        SpecError: unknown kind or key.
    """
    kinds = all_kinds() if kind is None else {kind: job_kind(kind)}
    found = explain(key, {name: (spec_model(each.spec), each.recipes) for name, each in kinds.items()})
    if not found:
        known = {each.name: each for kind in kinds.values() for each in keys(spec_model(kind.spec))}
        sections = [name for name, each in known.items() if each.section and "." not in name]
        raise SpecError(f"unknown key {key!r}{did_you_mean(key, known)}", facts={"sections": ", ".join(sections)})
    return found


def full_job(kind: str, recipe: str | None) -> str:
    """Return a spec with every key, with the values of a recipe.

    Raises:
        SpecError: unknown kind or recipe.
    """
    found = job_kind(kind)
    names = preset_names(found.recipes)
    chosen = recipe or str(found.spec.model_fields["recipe"].default)
    if chosen not in names:
        raise SpecError(f"unknown recipe {chosen!r}{did_you_mean(chosen, names)}", facts={"known": ", ".join(names)})
    return full_spec(kind, spec_model(found.spec), chosen, found.recipes)
