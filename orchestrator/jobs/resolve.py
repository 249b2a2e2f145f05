"""From what a user wrote, in all the places where one may write, to one validated spec.

The last of these that says something about a key wins:

    default < presets (recipe, compute, environment) < project config < file < ORCHESTRATOR_* < flag < --set

A prediction has the columns that its model was tuned on between presets and project config.
Which presets lie at the bottom is itself decided by the layers above them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from orchestrator.jobs.base import Plan
from orchestrator.jobs.defaults import for_kind
from orchestrator.jobs.kind import JobKind
from orchestrator.jobs.registry import job_kind
from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.ignored import ignored_settings
from orchestrator.specs.job import JobSpec
from orchestrator.specs.paths import anchor, missing_paths
from orchestrator.specs.problem_list import Problems
from orchestrator.specs.resolved import PRESETS, Change, Flag, Resolved, shown
from orchestrator.specs.site import site_of, spec_model
from orchestrator.specs.variables import sections_of, variable_layers
from orchestrator.support.errors import SpecError
from train_jobs.artifacts import layers as load
from train_jobs.artifacts.start_model import is_name
from train_jobs.artifacts.start_phase import KEY as PHASE_FROM

PRESET_KEYS: tuple[tuple[load.KeyPath, str, Path], ...] = (
    (("compute", "preset"), "compute preset", PRESETS / "compute"),
    (("environment", "preset"), "environment preset", PRESETS / "environment"),
)


def resolve_spec(
    kind: str,
    *,
    file: Path | None = None,
    layers: Sequence[load.Layer] = (),
    sets: Iterable[str] = (),
    flags: Mapping[str, Flag] | None = None,
    environ: Mapping[str, str] | None = None,
    project: Path | None = None,
    model_of: Callable[[str], Path] | None = None,
    outputs_of: Callable[[str], Path] | None = None,
) -> Resolved:
    """Lays every source of values over the presets and validates the result.

    Args:
        kind: name of the kind of job.
        file: the spec file. Relative paths start at the folder of the file they are written in, those written
            anywhere else at the current folder.
        layers: the same as `file`, read already, with absolute paths: the lowest first.
        sets: `path.to.key=value`, each value read as YAML.
        flags: dotted path -> value and flag; a mapping as value is laid over what is below it, key by key.
        environ: environment variables: ORCHESTRATOR_* and those that say which GPUs are visible. None: none.
        project: the project config, see `find_project`.
        model_of: finds the folder of an initial model that is named: a run, or a model on the Hugging Face Hub.
        outputs_of: finds the folder of outputs of a run that is named as the earlier phase.

    Raises:
        SpecError: everything that is wrong, each problem with its place and, where there is one, a near name.
        DataError: a folder that is named for a task of the user's own has no table to learn from.
    """
    which, environ, problems = job_kind(kind), environ or {}, Problems()
    written, warnings = _written_layers(which, file, layers, sets, flags or {}, environ, project, problems)
    written = which.layers(written, Path.cwd(), site_of(_backend(load.merge(written))))
    found = load.merge(written)
    presets = _preset_layers(which, found, problems)
    complete = not problems
    model = spec_model(which.spec, [*found.tree, _backend(found)])
    finders = {PHASE_FROM: outputs_of}
    written += [layer for key in which.paths.starts for layer in _found(found, key, finders.get(key, model_of))]
    with_start = which.merge(presets, written)
    merged = with_start.merged
    problems.extend(with_start.problems)
    problems.extend(missing_paths(merged, which.paths, site_of(_backend(merged))))
    with problems.collecting():
        spec = load.build(model, merged)
        compute = _resolve_compute(spec, merged, environ, gpus=which.gpus)
        if complete:  # without a layer, the batch is not the one that was meant
            which.check_shares(spec, compute.world_size)
    problems.raise_all("spec")
    changes = _changes(spec, _unwritten(model, load.merge(presets).tree), merged)
    changes = {path: change for path, change in changes.items() if change.origin != with_start.source}
    site = site_of(spec.backend)
    rules = which.ignored(spec, compute.world_size, site)
    return Resolved(
        spec=spec,
        compute=compute,
        origins={load.dotted(path): str(origin) for path, origin in merged.origins.items()},
        changes=changes,
        warnings=(
            *warnings,
            *ignored_settings(spec, changes, rules, which.own_names(spec)),
            *which.warnings(spec, changes, site),
            *site.warnings(spec),
        ),
    )


def make_plan(resolved: Resolved, *, home: Path, like: Plan | None = None) -> Plan:
    """Read data and code, and return the plan: offline, writing nothing but a cache of content hashes below `home`.

    Args:
        resolved: the spec, validated.
        home: the home folder, for the cache of content hashes.
        like: the plan of another trial of the same sweep, whose code and environment are this one's too: they are not
            read again.

    Raises:
        DataError: the data cannot be read.
        SpecError: the user's code holds what must not be shipped, or lacks what runs; the model does not fit the job.
        ConflictError: the lineage of what the job starts from does not verify, or a file of a checkpoint.
    """
    return job_kind(resolved.spec.kind).plan(resolved, home, like)


def _written_layers(
    kind: JobKind,
    file: Path | None,
    given: Sequence[load.Layer],
    sets: Iterable[str],
    flags: Mapping[str, Flag],
    environ: Mapping[str, str],
    project: Path | None,
    problems: Problems,
) -> tuple[list[load.Layer], list[str]]:
    """The layers that the user wrote, lowest first; a layer that cannot be read is a problem, and left out."""
    layers: list[load.Layer] = []
    warnings: list[str] = []
    here, keys = Path.cwd(), kind.paths
    for path in (project, file):
        with problems.collecting():
            layers += [anchor(load.read_file(path, shown(path, here)), path.absolute().parent, keys)] if path else []
        if path is not None and path == project and layers:
            layers = [for_kind(layers[0], kind)]
    layers += given
    with problems.collecting():
        variables, warnings = variable_layers(spec_model(kind.spec, sections_of(environ)), environ)
        layers += [anchor(layer, here, keys) for layer in variables]
    for key, flag in flags.items():
        tree: dict[str, Any] = {}
        load.assign(tree, tuple(key.split(".")), flag.value)
        layers.append(anchor(load.Layer(flag.name, tree), here, keys))
    with problems.collecting():
        layers.append(anchor(_of_kind(load.read_assignments(sets, "--set"), kind), here, keys))
    return layers, warnings


def _backend(written: load.Merged) -> str:
    """Return the backend that a spec names."""
    return str(written.tree.get("backend", JobSpec.model_fields["backend"].default))


def _preset_layers(kind: JobKind, written: load.Merged, problems: Problems) -> list[load.Layer]:
    """The presets that the written layers choose; one that there is not is a problem, and left out."""
    layers: list[load.Layer] = []
    defaults = _unwritten(kind.spec, {})
    for path, what, folder in ((("recipe",), "recipe", kind.recipes), *PRESET_KEYS):
        name = _value(written.tree, path)
        if name is None:
            name = _value(defaults, path)
        if not isinstance(name, str):
            continue  # validation says so
        with problems.collecting(where=written.origin(path)):
            layers += load.read_preset(name, folder, what)
    return layers


def _found(written: load.Merged, key: str, find: Callable[[str], Path] | None) -> list[load.Layer]:
    """A layer with the folder of what training starts from where the user gave a name, as if it had been written."""
    named = _model_name(written.tree.get(key))
    if find is None or not is_name(named, Path.cwd()):
        return []
    return [load.Layer(str(written.origin((key,))), {key: str(find(str(named)))})]


def _model_name(value: Any) -> Any:
    """What was written for a model: `model: NAME` is `model: {name: NAME}` in layers, for recipes that have such."""
    return value["name"] if isinstance(value, dict) and value.keys() == {"name"} else value


def _of_kind(layer: load.Layer, kind: JobKind) -> load.Layer:
    """Assignments as they were written, where `model` names a model and is no section."""
    named = {key: _model_name(layer.tree[key]) for key in kind.paths.starts if key in layer.tree}
    return load.Layer(layer.source, {**layer.tree, **named}, layer.lines)


def _resolve_compute(spec: JobSpec, merged: load.Merged, environ: Mapping[str, str], *, gpus: bool) -> ResolvedCompute:
    try:
        return site_of(spec.backend).machines(spec.compute, environ, gpus=gpus)
    except SpecError as failure:
        key = str(failure.facts["key"])
        failure.facts["where"] = merged.origin(tuple(key.split(".")))
        raise


def _unwritten(model: type[JobSpec], presets: Mapping[str, Any]) -> dict[str, Any]:
    """A spec that nobody wrote anything of, as JSON has it: presets over defaults, without what must be written."""
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
