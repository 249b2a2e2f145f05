"""What one kind of job takes of defaults that are written down for all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from orchestrator.jobs.kind import JobKind
from orchestrator.jobs.registry import DEFAULT, all_kinds, job_kind
from orchestrator.specs.job import JobSpec
from train_jobs.artifacts.layers import Layer, preset_names


def for_kind(layer: Layer, kind: JobKind) -> Layer:
    """Return the project's defaults without those that only other kinds have; what no kind has is left, and refused.

    Args:
        layer: the project's file.
        kind: the kind of job.
    """
    others = [other for name, other in all_kinds().items() if name != kind.name]
    specs = [other.spec for other in others]
    tree = layer.tree
    if kind.subject != _subject(tree):
        known = {key for spec in (kind.spec, *specs) for key in spec.model_fields} - {*JobSpec.model_fields}
        tree = {key: tree[key] for key in tree if key not in known}
    tree = _known(tree, kind.spec, specs)
    foreign = {name for other in others for name in preset_names(other.recipes)} - {*preset_names(kind.recipes)}
    if tree.get("recipe") in foreign or tree.get("kind") in {other.name for other in others}:
        tree = {key: value for key, value in tree.items() if key not in {"recipe", "kind"}}
    return replace(layer, tree=tree)


def _subject(tree: dict[str, Any]) -> str:
    """Return what a project's sections of a job are about, by the kind or else the recipe that it names."""
    for name, kind in all_kinds().items():
        if tree.get("kind") == name or ("kind" not in tree and tree.get("recipe") in preset_names(kind.recipes)):
            return kind.subject
    return job_kind(DEFAULT).subject


def _known(tree: dict[str, Any], model: type[BaseModel], others: Sequence[type[BaseModel]]) -> dict[str, Any]:
    """The keys that `model` has, or that none has."""
    found = {}
    for key, value in tree.items():
        elsewhere = [other for other in others if key in other.model_fields]
        if key not in model.model_fields:
            if not elsewhere:
                found[key] = value
            continue
        section = _section(model, key)
        sections = [part for other in elsewhere if (part := _section(other, key)) is not None]
        nested = isinstance(value, dict) and section is not None
        found[key] = _known(value, section, sections) if nested and section else value
    return found


def _section(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    annotation = model.model_fields[key].annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
