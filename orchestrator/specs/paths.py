"""Paths in a spec: make them absolute, and check that they exist. Each kind of job lists its keys that hold paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from glob import has_magic, iglob
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from orchestrator.specs.site import Site
from train_jobs.artifacts.layers import ConfigLayer, KeyPath, assign
from train_jobs.artifacts.start_model import is_name
from train_jobs.config.prepare import dataset_name
from train_jobs.config.urls import is_url

CODE = "code.folder"


class PathKeys(NamedTuple):
    """Dotted keys of a spec that hold paths, except for `code.folder`, which every spec has."""

    starts: tuple[str, ...] = ()
    """Names of runs or models, or their folders."""
    folders: tuple[str, ...] = ()
    """Folders that must exist."""
    files: tuple[str, ...] = ()
    """Files that must exist."""
    either: tuple[str, ...] = ()
    """Files or folders that must exist."""
    unchecked: tuple[str, ...] = ()
    """Paths that the job writes, or that its plan checks."""
    lists: tuple[str, ...] = ()
    """A path or a list of paths, which the plan checks."""
    sources: tuple[str, ...] = ()
    """Lists of text sources that must exist: each a path, a glob, or a mapping with `path`."""
    sometimes: Mapping[str, Callable[[Any, Path], bool]] = MappingProxyType({})
    """Keys whose values may be paths -> function of value and folder that decides."""
    nested: tuple[str, ...] = ()
    """Mappings with free keys, whose values are sections with these same keys."""

    def within(self, tree: Mapping[str, Any]) -> PathKeys:
        """Return these keys with those of the nested sections that a tree has."""
        parts = [f"{key}.{name}." for key in self.nested if isinstance(found := tree.get(key), dict) for name in found]
        starts, folders, files, either = (
            (*keys, *(f"{part}{key}" for part in parts for key in keys))
            for keys in (self.starts, self.folders, self.files, self.either)
        )
        return self._replace(starts=starts, folders=folders, files=files, either=either)

    def is_path(self, key: str, value: Any, folder: Path) -> bool:
        """Return whether the value of a key is a path.

        Args:
            key: the dotted key.
            value: its value.
            folder: folder that a relative path would start from.
        """
        if key in self.starts:
            return not is_name(value, folder)
        if key in self.sometimes:
            return self.sometimes[key](value, folder)
        return key in (CODE, *self.folders, *self.files, *self.either, *self.unchecked)


def anchor(layer: ConfigLayer, folder: Path, keys: PathKeys) -> ConfigLayer:
    """Return a layer with absolute paths in place of relative ones and of `~`.

    This happens before layers are merged: afterwards, the folder that a path was relative to would be lost.

    Args:
        layer: the values.
        folder: folder of the file that contains them; for flags and variables, the current folder.
        keys: the keys that hold paths.
    """
    return replace(layer, tree=_anchored(layer.tree, folder, keys))


def anchor_setting(key: str, value: Any, folder: Path, keys: PathKeys) -> Any:
    """Return the value of a dotted key with absolute paths; see `anchor`."""
    parts, tree = key.split("."), dict[str, Any]()
    assign(tree, tuple(parts), value)
    return reduce(lambda section, part: section[part], parts, _anchored(tree, folder, keys))


def _anchored(tree: Mapping[str, Any], folder: Path, keys: PathKeys, above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{above}{key}"
        if isinstance(value, dict):
            inner = "" if above.removesuffix(".") in keys.nested else f"{path}."
            found[key] = _anchored(value, folder, keys, inner)
        elif path in (*keys.sources, *keys.lists):
            found[key] = [_source(one, folder) for one in value] if isinstance(value, list) else _source(value, folder)
        else:
            follow = path in keys.unchecked  # an output is written through its link, which stays
            found[key] = _absolute(value, folder, follow=follow) if keys.is_path(path, value, folder) else value
    return found


def missing_paths(tree: Mapping[str, Any], keys: PathKeys, site: Site) -> Iterator[tuple[KeyPath, str]]:
    """Yield key and problem of each path that does not exist.

    Args:
        tree: the merged values.
        keys: the keys that hold paths.
        site: site of the run; names of its remote data are not checked.
    """
    keys = keys.within(tree)
    checks: list[tuple[str, str, Callable[[Path], bool]]] = [
        *((key, "no such folder", Path.is_dir) for key in (CODE, *keys.folders)),
        *((key, "no such file", Path.is_file) for key in keys.files),
        *((key, "no such file or folder", Path.exists) for key in keys.either),
    ]
    for key in keys.sources:
        sources = _value(tree, key)
        for index, source in enumerate(sources if isinstance(sources, list) else []):
            for what in _missing_source(source, site):
                yield (*key.split("."), index), what
    for key, what, exists in checks:
        value = _value(tree, key)
        if isinstance(value, str | Path) and not site.is_remote(str(value)) and not exists(Path(value)):
            yield tuple(key.split(".")), f"{what}: {value}"


def _missing_source(source: Any, site: Site) -> Iterator[str]:
    """Yield a problem for each missing path of a source of text."""
    found = source.get("path") if isinstance(source, dict) else source
    dataset = dataset_name(str(source.get("dataset") or "")) if isinstance(source, dict) else ""
    if dataset.startswith((".", "~", "/")) and not Path(dataset).is_dir():
        yield f"no such folder: {dataset}"
    for path in found if isinstance(found, list) else [found]:
        if not isinstance(path, str | Path) or is_url(path) or Path(path).exists():
            continue  # the plan asks the service of a URL
        if (problem := site.address_problem(str(path))) is not None:
            yield problem
            continue
        if not has_magic(str(path)):
            yield f"no such file or folder: {path}"
        elif next(iglob(str(path), recursive=True), None) is None:  # noqa: PTH207
            yield f"no file matches {path}"


def _value(tree: Mapping[str, Any], key: str) -> Any:
    value: Any = tree
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _source(source: Any, folder: Path) -> Any:
    """Return a source of text with absolute paths."""
    if not isinstance(source, dict):
        return _absolute(source, folder)
    found = dict(source)
    if isinstance(path := source.get("path"), list):
        found["path"] = [_absolute(item, folder) for item in path]
    elif "path" in source:
        found["path"] = _absolute(path, folder)
    if isinstance(dataset := source.get("dataset"), str):
        name = dataset_name(dataset)
        if (folder / Path(name).expanduser()).is_dir():  # else it is on the Hub
            found["dataset"] = f"{_absolute(name, folder)}{dataset.removeprefix(name)}"
    return found


def _absolute(value: Any, folder: Path, *, follow: bool = False) -> Any:
    """Return an absolute path; a file keeps the name of its link unless `follow` is set.

    The suffix of the name gives the format: caches of Hugging Face, DVC and git-annex link `train.csv` to a hash.
    """
    if not isinstance(value, str | Path) or is_url(value):
        return value  # of the wrong type: validation reports it with the original value
    path = folder / Path(value).expanduser()
    real = path.resolve()
    is_folder = path.name == ".." or os.path.isdir(real)  # noqa: PTH112  # `Path.is_dir` raises if access is denied
    return str(real if follow or is_folder else path.parent.resolve() / path.name)
