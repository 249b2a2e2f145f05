"""Merge all sources of values into one validated spec.

The last source that sets a key wins:

    default < presets (recipe, compute, environment) < project config < file < ORCHESTRATOR_* < flag < --set

For a prediction, the columns that its model was tuned on are between presets and project config.
The layers above the presets select the presets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from orchestrator.jobs.base import Plan
from orchestrator.jobs.kind import JobKind
from orchestrator.jobs.registry import DEFAULT, all_kinds, job_kind
from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.job import JobSpec
from orchestrator.specs.paths import anchor, missing_paths
from orchestrator.specs.resolved import PRESETS, Change, Flag, Resolved, SpecProblems, display_path, ignored_settings
from orchestrator.specs.settings import section_of, sections_of, variable_layers
from orchestrator.specs.site import site_of, spec_model
from orchestrator.specs.tiers import old_tier_warning
from orchestrator.support.errors import NotFoundError, SpecError
from orchestrator.support.redact import looks_secret, named_secret, redact
from orchestrator.support.secret_sources import distinctive_forms
from train_jobs.artifacts import layers as load
from train_jobs.artifacts.hub import is_hub_name
from train_jobs.artifacts.layers import ConfigLayer, preset_names
from train_jobs.artifacts.start_model import CONFIG, is_name
from train_jobs.artifacts.start_model import KEY as INIT_FROM
from train_jobs.artifacts.start_phase import KEY as PHASE_FROM
from train_jobs.artifacts.tracking.model_registry import is_registry_name

PRESET_KEYS: tuple[tuple[load.KeyPath, str, Path], ...] = (
    (("compute", "preset"), "compute preset", PRESETS / "compute"),
    (("environment", "preset"), "environment preset", PRESETS / "environment"),
)

VARIABLES, REFERENCES = ("environment", "variables"), ("environment", "secrets")
_FLAGS = {INIT_FROM: "--model RUN", "model": "--model RUN", "input": "--input FILE", "command": "-- COMMAND"}
REQUIRED_FLAGS = {f"{key}: {load.PLAIN['missing']}": flag for key, flag in _FLAGS.items()}
"""Problem of a missing key -> flag that gives it."""


def resolve_spec(
    kind: str,
    *,
    file: Path | None = None,
    layers: Sequence[load.ConfigLayer] = (),
    sets: Iterable[str] = (),
    flags: Mapping[str, Flag] | None = None,
    environ: Mapping[str, str] | None = None,
    project: Path | None = None,
    model_of: Callable[..., Path] | None = None,
    outputs_of: Callable[[str], Path] | None = None,
) -> Resolved:
    """Merge every source of values over the presets, and validate the result.

    Args:
        kind: name of the kind of job.
        file: the spec file. Relative paths start at the folder of their file, all others at the current folder.
        layers: spec files that are already read, with absolute paths, lowest precedence first.
        sets: `path.to.key=value`, each value read as YAML.
        flags: dotted path -> value and flag; a mapping as value is merged key by key.
        environ: environment variables: ORCHESTRATOR_* and those that select the visible GPUs. None: none.
        project: the project config, see `find_project`.
        model_of: function that returns the folder of a model, given the name of a run or of a model on the Hub; of a
            model in MLflow's registry, also `tracking_uri` of the spec.
        outputs_of: function that returns the folder of outputs of an earlier phase, given the name of its run.

    Raises:
        SpecError: the spec is invalid; all problems together, with their places and suggestions of similar names.
        DataError: a folder for a task of the user's own has no training table.
    """
    which, environ, problems = job_kind(kind), environ or {}, SpecProblems()
    written, warnings = _written_layers(which, file, layers, sets, flags or {}, environ, project, problems)
    written = which.layers(written, Path.cwd(), site_of(_backend(load.merge(written))))
    found = load.merge(written)
    presets = _preset_layers(which, found, problems)
    complete = not problems  # every layer could be read
    model = spec_model(which.spec, [*found.tree, _backend(found)])
    written += start_folder_layers(found, which, model_of, outputs_of)
    with_start = which.merge(presets, written)
    merged = with_start.merged
    problems.extend(with_start.problems)
    problems.extend(
        f"{merged.origin(path)}: {load.dotted(path)}: {what}"
        for path, what in missing_paths(merged.tree, which.paths, site_of(_backend(merged)))
    )
    with problems.collecting():
        given = load.build(model, merged)
        problems.extend(_exposed_secrets(given, merged))
        problems.extend(declared_secrets_in(given.model_dump(mode="json"), given, merged))
        problems.extend(_undecodable_names(given, merged))
        spec, compute = _resolve_compute(given, merged, environ, gpus=which.gpus)
        if complete:  # an unreadable layer may set the batch: checking without it would report a false problem
            which.check_shares(spec, compute)
    problems.raise_all("spec", REQUIRED_FLAGS)
    changes = _changes(given, _preset_values(model, load.merge(presets).tree), merged)
    changes = {path: change for path, change in changes.items() if change.origin != with_start.source}
    return Resolved(
        spec=spec,
        compute=compute,
        origins={load.dotted(path): str(origin) for path, origin in merged.origins.items()},
        changes=changes,
        warnings=(*warnings, *_old_names(merged), *_warnings(which, spec, compute, changes)),
    )


def _exposed_secrets(spec: JobSpec, merged: load.Merged) -> Iterator[str]:
    """Yield a problem for each value that looks like a secret: plans, requests and the run's folder contain it."""
    for path, value in load.leaves(spec.model_dump(mode="json")):
        texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
        variable, name = path[:2] == VARIABLES, str(path[-1])
        tag = path[:1] == ("tags",)
        exposed = [
            text
            for text in texts
            if (looks_secret(name, text) if variable else redact(text) != text or (tag and named_secret(name, text)))
        ]
        if exposed and path[:2] != REFERENCES:
            way = f"--env {name} without a value takes it" if variable else "pass it in a variable: --env NAME takes it"
            yield (
                f"{merged.origin(path)}: {load.dotted(path)}: looks like a secret, and a spec is stored in clear:"
                f" {way} from your environment at each start, --env-file FILE from a file"
            )


def declared_secrets_in(tree: Mapping[str, Any], spec: JobSpec, merged: load.Merged) -> Iterator[str]:
    """Yield a problem for each value, or name of a key, that contains the value of a secret which the spec declares.

    Args:
        tree: settings that are stored in clear.
        spec: the spec that declares the secrets.
        merged: the origins of the settings.
    """
    forms = distinctive_forms(spec.environment.secrets, os.environ)
    for path, value in load.leaves(tree) if forms else ():
        if path[:2] == REFERENCES:
            continue
        text = "\0".join((*map(str, path), *_texts(value))).encode(errors="surrogateescape")
        for name in (name for name in forms if any(form in text for form in forms[name])):
            way = f"replace it by --env {path[-1]} without a value" if path[:2] == VARIABLES else "remove it there"
            yield (
                f"{merged.origin(path)}: {load.dotted(path)}: contains the value of the declared secret {name}, and a"
                f" spec is stored in clear: {way}; the job finds the value in its environment, as {name}"
            )


def _texts(value: Any) -> Iterator[str]:
    """Yield the plain values and the keys in a value that may be nested, as text."""
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if not isinstance(value, list):
        yield str(value)
        return
    for one in value:
        yield from _texts(one)


def _undecodable_names(spec: JobSpec, merged: load.Merged) -> Iterator[str]:
    """Yield a problem for each path that is not UTF-8: the text files of a run contain it."""
    for path, value in load.leaves(spec.model_dump(mode="json")):
        if (text := json.dumps(value, ensure_ascii=False)) != text.encode(errors="ignore").decode():
            yield f"{merged.origin(path)}: {load.dotted(path)}: a name that is not UTF-8; rename the file or folder"


def _old_names(merged: load.Merged) -> Iterator[str]:
    if (warning := old_tier_warning(_value(merged.tree, ("compute", "tier")))) is not None:
        yield warning


def _warnings(which: JobKind, spec: JobSpec, compute: ResolvedCompute, changes: Mapping[str, Change]) -> Iterator[str]:
    """Yield the warnings about a valid spec: settings without effect, those of its kind and of its site."""
    site = site_of(spec.backend)
    rules = which.ignored(spec, compute, site)
    yield from ignored_settings(spec, changes, rules, which.user_code_names(spec))
    yield from which.warnings(spec, changes, site)
    yield from site.warnings(spec)


def make_plan(resolved: Resolved, *, home: Path, reuse: Plan | None = None) -> Plan:
    """Return the plan of a job after reading its data and code.

    Works offline, and writes only a cache of content hashes.

    Args:
        resolved: the validated spec.
        home: the home folder, for the cache of content hashes.
        reuse: a plan of the same sweep whose code and environment to reuse, as all trials must have the same. None:
            read both.

    Raises:
        DataError: the data cannot be read.
        SpecError: the user's code contains a file that must not be packaged, or lacks the entry module; or the model
            does not fit the job.
        ConflictError: the lineage of the initial model does not verify, or a file of a checkpoint does not.
    """
    return job_kind(resolved.spec.kind).plan(resolved, home, reuse)


def _written_layers(
    kind: JobKind,
    file: Path | None,
    given: Sequence[load.ConfigLayer],
    sets: Iterable[str],
    flags: Mapping[str, Flag],
    environ: Mapping[str, str],
    project: Path | None,
    problems: SpecProblems,
) -> tuple[list[load.ConfigLayer], list[str]]:
    """Return the user's layers, lowest precedence first, and warnings; report layers that cannot be read."""
    layers: list[load.ConfigLayer] = []
    warnings: list[str] = []
    here, keys = Path.cwd(), kind.paths
    for path in (project, file):
        with problems.collecting():
            layers += (
                [
                    anchor(
                        _with_start(load.read_file(path, display_path(path, here)), kind), path.absolute().parent, keys
                    )
                ]
                if path
                else []
            )
        if path is not None and path == project and layers:
            layers = [project_defaults_for(layers[0], kind)]
    layers += [_with_start(layer, kind) for layer in given]
    with problems.collecting():
        variables, warnings = variable_layers(spec_model(kind.spec, sections_of(environ)), environ)
        layers += [anchor(layer, here, keys) for layer in variables]
    for key, flag in flags.items():
        tree: dict[str, Any] = {}
        load.assign(tree, tuple(key.split(".")), flag.value)
        layers.append(anchor(load.ConfigLayer(flag.name, tree), here, keys))
    with problems.collecting():
        assigned = _with_start(load.read_assignments(sets, "--set"), kind)
        layers.append(anchor(_with_plain_model_names(assigned, kind), here, keys))
    return layers, warnings


def _backend(written: load.Merged) -> str:
    """Return the backend that a spec names."""
    return str(written.tree.get("backend", JobSpec.model_fields["backend"].default))


def _preset_layers(kind: JobKind, written: load.Merged, problems: SpecProblems) -> list[load.ConfigLayer]:
    """Return the presets that the user's layers select; report those that do not exist."""
    layers: list[load.ConfigLayer] = []
    defaults = _preset_values(kind.spec, {})
    for path, what, folder in ((("recipe",), "recipe", kind.recipes), *PRESET_KEYS):
        name = _value(written.tree, path)
        if name is None:
            name = _value(defaults, path)
        if not isinstance(name, str):
            continue  # validation reports it
        with problems.collecting(where=written.origin(path)):
            layers += load.read_preset(name, folder, what)
    return layers


def start_folder_layers(
    written: load.Merged, kind: JobKind, model_of: Callable[..., Path] | None, outputs_of: Callable[..., Path] | None
) -> list[load.ConfigLayer]:
    """Return a layer for each run or model that is named, with the folder that it resolves to.

    Args:
        written: the merged layers of the user.
        kind: kind of the job.
        model_of, outputs_of: see `resolve_spec`.
    """
    finders = {PHASE_FROM: outputs_of}
    return [
        layer
        for key in kind.paths.within(written.tree).starts
        for layer in _start_folder_layers(written, key, finders.get(key, model_of))
    ]


def _start_folder_layers(written: load.Merged, key: str, find: Callable[..., Path] | None) -> list[load.ConfigLayer]:
    """Return a layer with the folder that a run or a model resolves to, with the origin of its name."""
    path = tuple(key.split("."))
    named, source = _model_name(_value(written.tree, path)), str(written.origin(path))
    if find is None:
        return []
    if not is_name(named, Path.cwd()):
        return _run_beside_folder(named, source, key, find)
    # only MLflow's registry depends on another key, where the run itself is tracked
    more = {"tracking_uri": _value(written.tree, ("tracking", "uri"))} if is_registry_name(named) else {}
    return [_folder_layer(source, key, find(str(named), **more))]


def _run_beside_folder(named: Any, source: str, key: str, find: Callable[..., Path]) -> list[load.ConfigLayer]:
    """Return a layer with the folder of a run's model, where a folder of that name is no model, such as its text."""
    if not isinstance(named, str) or not Path(named).is_dir() or (Path(named) / CONFIG).exists() or key == PHASE_FROM:
        return []
    name = Path(named).name
    if is_hub_name(name):
        return []
    try:
        return [_folder_layer(source, key, find(name))]
    except NotFoundError:
        return []


def _folder_layer(source: str, key: str, folder: Path) -> load.ConfigLayer:
    """Return a layer with a folder under a dotted key."""
    tree: dict[str, Any] = {}
    load.assign(tree, tuple(key.split(".")), str(folder))
    return load.ConfigLayer(source, tree)


def _model_name(value: Any) -> Any:
    """Return the name or folder of a model; layers hold `model: NAME` as `model: {name: NAME}`."""
    return value["name"] if isinstance(value, dict) and value.keys() == {"name"} else value


def _with_start(layer: load.ConfigLayer, kind: JobKind) -> load.ConfigLayer:
    """Return a layer with `model: NAME` as `init_from: NAME`, in kinds whose section `model` has no name."""
    named = layer.tree.get("model")
    section = section_of(kind.spec, "model") if "model" in kind.spec.model_fields else None
    if section is None or "name" in section.model_fields or INIT_FROM not in kind.paths.starts:
        return layer
    if isinstance(named, str):
        named = {"name": named}
    if not isinstance(named, dict) or named.keys() != {"name"} or INIT_FROM in layer.tree:
        return layer
    tree = {key: value for key, value in layer.tree.items() if key != "model"} | {INIT_FROM: named["name"]}
    lines = {(INIT_FROM,) if path[:1] == ("model",) else path: line for path, line in layer.lines.items()}
    return load.ConfigLayer(layer.source, tree, lines)


def _with_plain_model_names(layer: load.ConfigLayer, kind: JobKind) -> load.ConfigLayer:
    """Return assignments unchanged, except that `model` names a model in kinds where it is not a section."""
    named = {key: _model_name(layer.tree[key]) for key in kind.paths.starts if key in layer.tree}
    return load.ConfigLayer(layer.source, {**layer.tree, **named}, layer.lines)


def _resolve_compute(
    spec: JobSpec, merged: load.Merged, environ: Mapping[str, str], *, gpus: bool
) -> tuple[JobSpec, ResolvedCompute]:
    """Return the spec with the tier of its machines, and the machines."""
    site = site_of(spec.backend)
    try:
        found = site.completed(spec, environ, gpus=gpus)
        # the size stays out of the spec, where it would mean a cluster to create or change
        compute = spec.compute.model_copy(update={"tier": found.tier})
        return spec.model_copy(update={"compute": compute}), site.machines(found, environ, gpus=gpus)
    except SpecError as failure:
        key = str(failure.facts["key"])
        failure.facts["where"] = merged.origin(tuple(key.split(".")))
        raise


def _preset_values(model: type[JobSpec], presets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of presets and defaults as JSON, without required keys."""
    found = {}
    for key, field in model.model_fields.items():
        if key in presets or not field.is_required():
            adapter = TypeAdapter[Any](field.rebuild_annotation())
            value = adapter.validate_python(presets[key]) if key in presets else field.get_default()
            found[key] = adapter.dump_python(value, mode="json")
    return found


def _changes(spec: JobSpec, base: Mapping[str, Any], merged: load.Merged) -> dict[str, Change]:
    before = dict(load.leaves(base))
    after = load.leaves(spec.model_dump(mode="json"))
    return {
        load.dotted(path): Change(value=value, origin=str(merged.origin(path)))
        for path, value in after
        if path not in before or before[path] != value
    }


def _value(tree: Any, path: load.KeyPath) -> Any:
    for part in path:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def project_defaults_for(layer: ConfigLayer, kind: JobKind) -> ConfigLayer:
    """Return the project's defaults without keys that only other kinds of jobs have.

    One orchestrator.yaml serves all kinds of jobs. Keys that no kind has are kept, so that validation reports them.

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
    tree = _keys_of_kind(tree, kind.spec, specs)
    foreign = {name for other in others for name in preset_names(other.recipes)} - {*preset_names(kind.recipes)}
    if tree.get("recipe") in foreign or tree.get("kind") in {other.name for other in others}:
        tree = {key: value for key, value in tree.items() if key not in {"recipe", "kind"}}
    return replace(layer, tree=tree)


def _subject(tree: dict[str, Any]) -> str:
    """Return the subject of a project's defaults, by its kind or else by its recipe."""
    for name, kind in all_kinds().items():
        if tree.get("kind") == name or ("kind" not in tree and tree.get("recipe") in preset_names(kind.recipes)):
            return kind.subject
    return job_kind(DEFAULT).subject


def _keys_of_kind(tree: dict[str, Any], model: type[BaseModel], others: Sequence[type[BaseModel]]) -> dict[str, Any]:
    """Return the keys that `model` has, and those that no model has."""
    found = {}
    for key, value in tree.items():
        elsewhere = [other for other in others if key in other.model_fields]
        if key not in model.model_fields:
            if not elsewhere:
                found[key] = value
            continue
        section = section_of(model, key)
        sections = [part for other in elsewhere if (part := section_of(other, key)) is not None]
        nested = isinstance(value, dict) and section is not None
        found[key] = _keys_of_kind(value, section, sections) if nested and section else value
    return found
