"""What was written of a sweep, source by source: one form of every key, paths where they start, the trial apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.jobs.registry import DEFAULT, run_kind
from orchestrator.specs.paths import PathKeys, anchor
from orchestrator.specs.problem_list import Problems
from orchestrator.specs.resolved import PRESETS, shown
from orchestrator.specs.space import Parameter
from orchestrator.support.errors import SpecError
from train_jobs.artifacts.layers import KeyPath, Layer, merge, read_assignments, read_file, read_preset

SWEEP_PRESETS = PRESETS / "sweep"
TRIAL, SPACE = "trial", "space"
SHORT = {"sampling": "name", "early_termination": "policy"}  # section that one key of it may stand for -> that key


def read_layers(file: Path | None, sets: Iterable[str], problems: Problems) -> list[Layer]:
    """The sources of a sweep, the lowest first; one that cannot be read is a problem, and left out."""
    found: list[tuple[Layer, Path]] = []
    with problems.collecting():
        if file is not None:
            found += _normal(read_file(file, shown(file, Path.cwd())), file.absolute().parent)
    with problems.collecting():
        found += _normal(read_assignments(sets, "--set"), Path.cwd())
    merged = merge(layer for layer, _ in found)
    recipe = merged.tree.get("recipe")
    with problems.collecting(where=merged.origin(("recipe",))):
        if isinstance(recipe, str):
            (preset,) = read_preset(recipe, SWEEP_PRESETS, "sweep preset")
            found[:0] = _normal(preset, SWEEP_PRESETS)
    keys = run_kind(trial_kind(of_trial(layer for layer, _ in found))).paths
    return [_anchored(layer, folder, keys) for layer, folder in found]


def trial_kind(layers: Iterable[Layer]) -> str:
    """Return the kind of job that the layers of a trial name."""
    return str(merge(layers).tree.get("kind", DEFAULT))


def _anchored(layer: Layer, folder: Path, keys: PathKeys) -> Layer:
    """The same layer with absolute paths in its trial."""
    tree = layer.tree
    if isinstance(tree.get(TRIAL), dict):
        tree = {**tree, TRIAL: anchor(replace(layer, tree=tree[TRIAL]), folder, keys).tree}
    return replace(layer, tree=tree)


def of_trial(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """What they say of the trial, as layers of a job spec."""
    return tuple(
        Layer(
            layer.source, layer.tree[TRIAL], {path[1:]: line for path, line in layer.lines.items() if path[0] == TRIAL}
        )
        for layer in layers
        if isinstance(layer.tree.get(TRIAL), dict)
    )


def _normal(layer: Layer, folder: Path) -> list[tuple[Layer, Path]]:
    """The same with short forms written out, and the folder that its paths start from.

    Below it is the file that the trial is in, if it is in one.

    Raises:
        SpecError: that file cannot be read.
    """
    tree = dict(layer.tree)
    for section, key in SHORT.items():
        if isinstance(tree.get(section), str):
            tree[section] = {key: tree[section]}
    lines = dict(layer.lines)
    if isinstance(tree.get(SPACE), dict):
        flat = dict(_flat(tree[SPACE], (SPACE,)))
        tree[SPACE] = {".".join(map(str, path[1:])): value for path, value in flat.items()}
        lines = {_renamed(path, flat): line for path, line in lines.items()}
    if not isinstance(tree.get(TRIAL), str):
        return [(Layer(layer.source, tree, lines), folder)]
    path = (folder / Path(tree.pop(TRIAL)).expanduser()).resolve()
    if not path.is_file():
        raise SpecError("no trial", problems=[f"{layer.origin((TRIAL,))}: {TRIAL}: no such file: {path}"])
    inner = read_file(path, shown(path, Path.cwd()))
    below = Layer(inner.source, {TRIAL: inner.tree}, {(TRIAL, *key): line for key, line in inner.lines.items()})
    return [(below, path.parent), (Layer(layer.source, tree, lines), folder)]


def _flat(tree: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Parameters by their paths: `optimizer: {learning_rate: ...}` is `optimizer.learning_rate: ...`."""
    for key, value in tree.items():
        if isinstance(value, dict) and value and not value.keys() & Parameter.model_fields.keys():
            yield from _flat(value, (*path, key))
        else:
            yield (*path, key), value


def _renamed(path: KeyPath, flat: Mapping[KeyPath, Any]) -> KeyPath:
    """Where a line of the space is found once its sections are gone."""
    for length in range(len(path), 1, -1):
        if path[:length] in flat:
            return (SPACE, ".".join(map(str, path[1:length])), *path[length:])
    return path
