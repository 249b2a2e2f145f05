"""Paths in a spec: relative to where they were written, and there. A model may be named by the run that made it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from glob import has_magic, iglob
from pathlib import Path
from typing import Any

from orchestrator.jobs.finetune.spec import DATA_PATHS, TASK_FILES
from orchestrator.specs.site import Site
from train_jobs.artifacts.layers import Layer, Merged
from train_jobs.artifacts.start_model import KEY as INIT_FROM
from train_jobs.artifacts.start_model import is_name
from train_jobs.artifacts.start_phase import KEY as PHASE_FROM

PER_TASK = "per_task"
OF_TEXT = ("vocabulary", "add_tokens", "store")  # keys of `data` that name a file or a folder, beside `text`


def anchor(layer: Layer, folder: Path, starts: Sequence[str] = (INIT_FROM, PHASE_FROM)) -> Layer:
    """The same layer with its relative paths made absolute, starting at `folder`; `~` is the user's home.

    Args:
        layer: values.
        folder: of the file that they were written in, or the current one.
        starts: keys that name a model or a run, or a folder with one.
    """
    for key in ("store", "output"):
        if key in layer.tree:
            layer = replace(layer, tree={**layer.tree, key: _absolute(layer.tree[key], folder)})
    if "input" in layer.tree:
        layer = replace(layer, tree={**layer.tree, "input": _all_absolute(layer.tree["input"], folder)})
    code = layer.tree.get("code")
    if isinstance(code, dict) and "folder" in code:
        layer = replace(layer, tree={**layer.tree, "code": {**code, "folder": _absolute(code["folder"], folder)}})
    for key in starts:
        if key in layer.tree and not is_name(layer.tree[key], folder):
            layer = replace(layer, tree={**layer.tree, key: _absolute(layer.tree[key], folder)})
    task, tasks, data = (layer.tree.get(key) for key in ("task", PER_TASK, "data"))
    if isinstance(task, str) and task.endswith(TASK_FILES):
        layer = replace(layer, tree={**layer.tree, "task": _absolute(task, folder)})
    if isinstance(tasks, dict):
        anchored = {name: _anchored_task(tree, folder) for name, tree in tasks.items()}
        layer = replace(layer, tree={**layer.tree, PER_TASK: anchored})
    if not isinstance(data, dict):
        return replace(layer, tree={**layer.tree, "data": _absolute(data, folder)}) if data else layer
    anchored = dict(data)
    if isinstance(data.get("text"), list):
        anchored["text"] = [_anchored_source(item, folder) for item in data["text"]]
    anchored |= {key: _absolute(data[key], folder) for key in (*OF_TEXT, *DATA_PATHS) if key in data}
    if isinstance(named := data.get("dataset"), str) and (folder / named).is_dir():  # else it is a name on the Hub
        anchored["dataset"] = _absolute(named, folder)
    return replace(layer, tree={**layer.tree, "data": anchored})


def missing_paths(merged: Merged, site: Site) -> list[str]:
    """Return a problem for each path that does not exist, with the place that it was written at.

    Args:
        merged: what was written.
        site: where the run is sent; names of data there are no paths.
    """
    problems = []
    data, code = merged.tree.get("data"), merged.tree.get("code")
    if isinstance(code, dict) and isinstance(code.get("folder"), str) and not Path(code["folder"]).is_dir():
        problems.append(f"{merged.origin(('code', 'folder'))}: code.folder: no such folder: {code['folder']}")
    for key in (INIT_FROM, PHASE_FROM):
        start = merged.tree.get(key)
        if isinstance(start, str) and not Path(start).is_dir():
            problems.append(f"{merged.origin((key,))}: {key}: no such folder: {start}")
    if not isinstance(data, dict):
        return problems  # not a section at all: validation says so
    text, vocabulary = data.get("text"), data.get("vocabulary")
    for index, item in enumerate(text if isinstance(text, list) else []):
        for path in _paths(item):
            if not Path(path).exists() and not (has_magic(path) and next(iglob(path, recursive=True), None)):  # noqa: PTH207
                what = "no file matches" if has_magic(path) else "no such file or folder:"
                problems.append(f"{merged.origin(('data', 'text', index))}: data.text.{index}: {what} {path}")
    store = data.get("store")
    if isinstance(store, str | Path) and not Path(store).is_dir():
        problems.append(f"{merged.origin(('data', 'store'))}: data.store: no such folder: {store}")
    if isinstance(vocabulary, str | Path) and not Path(vocabulary).is_file():
        problems.append(f"{merged.origin(('data', 'vocabulary'))}: data.vocabulary: no such file: {vocabulary}")
    problems += [
        f"{merged.origin(('data', key))}: data.{key}: no such file or folder: {data[key]}"
        for key in DATA_PATHS
        if isinstance(data.get(key), str) and not site.is_remote(data[key]) and not Path(data[key]).exists()
    ]
    return problems


def _anchored_task(tree: Any, folder: Path) -> Any:
    """What is otherwise for one task, with absolute paths."""
    return anchor(Layer("", tree), folder).tree if isinstance(tree, dict) else tree


def _anchored_source(source: Any, folder: Path) -> Any:
    """A source of text, which is a path or has one or more."""
    if not isinstance(source, dict):
        return _absolute(source, folder)
    path = source.get("path")
    if isinstance(path, list):
        return {**source, "path": [_absolute(item, folder) for item in path]}
    return {**source, "path": _absolute(path, folder)} if "path" in source else source


def _paths(source: Any) -> list[str]:
    """The paths of a source."""
    found = source.get("path") if isinstance(source, dict) else source
    return [str(path) for path in (found if isinstance(found, list) else [found]) if isinstance(path, str | Path)]


def _all_absolute(value: Any, folder: Path) -> Any:
    return [_absolute(item, folder) for item in value] if isinstance(value, list) else _absolute(value, folder)


def _absolute(value: Any, folder: Path) -> Any:
    if not isinstance(value, str | Path):
        return value  # of the wrong type: validation says so, with the value as it was written
    return str((folder / Path(value).expanduser()).resolve())
