"""What one kind of job takes of defaults that are written down for all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from orchestrator.jobs.registry import KINDS
from orchestrator.specs.job import JobSpec
from train_jobs.artifacts.layers import Layer, preset_names


def for_kind(layer: Layer, model: type[BaseModel]) -> Layer:
    """The project's defaults without those that only other kinds of jobs know of; what none knows is left, and refused.

    Args:
        layer: the project's file.
        model: spec of the kind.
    """
    (kind,) = [kind for kind in KINDS.values() if kind.spec is model]
    others = [other.spec for other in KINDS.values() if other.spec is not model]
    tree = layer.tree
    if kind.subject != _subject(tree):
        tree = {key: tree[key] for key in tree if key in JobSpec.model_fields or not _is_known(key)}
    tree = _known(tree, model, others)
    foreign = {name for other in KINDS.values() for name in preset_names(other.recipes)} - {*preset_names(kind.recipes)}
    if tree.get("recipe") in foreign or tree.get("kind") in {*KINDS} - {model.model_fields["kind"].default}:
        tree = {key: value for key, value in tree.items() if key not in {"recipe", "kind"}}
    return replace(layer, tree=tree)


def _subject(tree: dict[str, Any]) -> str:
    """What a project's sections of a job are about, by the kind that it says, or names a recipe of."""
    for name, kind in KINDS.items():
        if tree.get("kind") == name or ("kind" not in tree and tree.get("recipe") in preset_names(kind.recipes)):
            return kind.subject
    return KINDS["pretrain"].subject


def _is_known(key: str) -> bool:
    return any(key in kind.spec.model_fields for kind in KINDS.values())


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
