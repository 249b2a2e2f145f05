"""Jobs of two phases: a recipe that continues another one starts from the result of that recipe's run.

`Orchestrator.plan_phases` plans both, and `orchestrator submit` runs both.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.jobs.base import Plan
from orchestrator.jobs.registry import job_kind
from orchestrator.specs.resolved import Flag, Resolved
from orchestrator.support.errors import SpecError
from train_jobs.artifacts.layers import continued_recipe, dotted, leaves, merge, read_preset

ALONE = "earlier."  # prefix of the keys that only the earlier phase has


@dataclass(frozen=True)
class Phases:
    """Plans of two phases of a job."""

    earlier: Plan
    """The earlier phase."""
    later: Plan
    """The phase that continues it. Without `completed` a forecast: its run is not named before the earlier one ends."""
    completed: str | None
    """Name of the completed run of the earlier phase, which `later` starts from. None: it must run first."""


def required_recipe(resolved: Resolved) -> str | None:
    """Return the recipe that must be trained first; None: the job has a start, or its recipe continues no other."""
    spec, kind = resolved.spec, job_kind(resolved.spec.kind)
    if any(getattr(spec, key) is not None for key in kind.paths.starts):
        return None
    return continued_recipe(spec.recipe, kind.recipes)


def require_start(resolved: Resolved) -> None:
    """Refuse a job that continues another recipe's run but names no run.

    Raises:
        SpecError: it has no start.
    """
    if (recipe := required_recipe(resolved)) is not None:
        raise SpecError(
            f"recipe {resolved.spec.recipe} continues a run of recipe {recipe}",
            fix=f"orchestrator submit {resolved.spec.kind} --recipe {recipe} first, then --set phase_from=RUN",
        )


def earlier_flags(resolved: Resolved, recipe: str) -> dict[str, Flag]:
    """Return the values of the earlier phase, by key.

    The user's values apply to both phases, except those of keys that differ between the two recipes, such as the length
    of sequences and the steps. Values in the section `earlier` apply to the earlier phase alone.

    Args:
        resolved: the later phase.
        recipe: recipe of the earlier phase.
    """
    spec, folder = resolved.spec, job_kind(resolved.spec.kind).recipes
    mine, theirs = (dict(leaves(merge(read_preset(name, folder)).tree)) for name in (spec.recipe, recipe))
    own = {dotted(path) for path in mine.keys() | theirs.keys() if mine.get(path) != theirs.get(path)}
    flags = {path: Flag(change.value, change.origin) for path, change in resolved.changes.items()}
    shared = {path: flag for path, flag in flags.items() if path not in own and not path.startswith((ALONE, "tags."))}
    alone = {path.removeprefix(ALONE): flag for path, flag in flags.items() if path.startswith(ALONE)}
    tags = {"tags": Flag(dict(spec.tags), "tags")} if spec.tags else {}  # whole: their names may contain dots
    return {**shared, **tags, **alone, "recipe": Flag(recipe, f"continued by {spec.recipe}")}
