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

from orchestrator.jobs.defaults import for_kind
from orchestrator.jobs.finetune.spec import FinetuneSpec, check_batch, written_out
from orchestrator.jobs.pretrain.spec import PretrainSpec
from orchestrator.jobs.registry import KINDS
from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.ignored import ignored_settings
from orchestrator.specs.job import MODEL, JobSpec, Kind
from orchestrator.specs.paths import anchor, missing_paths
from orchestrator.specs.problem_list import Problems
from orchestrator.specs.resolved import PRESETS, Change, Flag, Resolved, shown
from orchestrator.specs.site import Site, site_of
from orchestrator.specs.variables import variable_layers
from orchestrator.support.errors import SpecError
from train_jobs.artifacts import layers as load
from train_jobs.artifacts.start_model import KEY as INIT_FROM
from train_jobs.artifacts.start_model import is_name
from train_jobs.artifacts.start_phase import KEY as PHASE_FROM
from train_jobs.artifacts.start_phase import merge_with_start
from train_jobs.artifacts.tuned_columns import tuned_columns
from train_jobs.config.names import did_you_mean

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
        kind: which job: "pretrain", "prepare", "finetune", "evaluate", "predict".
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
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS)
        raise SpecError(f"unknown kind of job {kind!r}{hint}", facts={"known": ", ".join(KINDS)})
    which, environ, problems = KINDS[kind], environ or {}, Problems()
    model = which.spec
    written, warnings = _written_layers(which, file, layers, sets, flags or {}, environ, project, problems)
    if model is FinetuneSpec:
        written = written_out(written, Path.cwd(), _written_site(written))
    found = load.merge(written)
    presets = _preset_layers(which, found, problems)
    complete = not problems
    source = None
    finders = {INIT_FROM: model_of, PHASE_FROM: outputs_of, MODEL: model_of}
    written += [layer for key in which.starts for layer in _found(found, key, finders[key])]
    if MODEL in which.starts:
        written = [*tuned_columns(load.merge(written).tree), *written]
    if model is PretrainSpec:
        with_start = merge_with_start(presets, written)
        merged, source = with_start.merged, with_start.source
        problems.extend(with_start.problems)
    else:
        merged = load.merge([*presets, *written])
    problems.extend(missing_paths(merged, _written_site(written)))
    with problems.collecting():
        spec = load.build(model, merged)
        compute = _resolve_compute(spec, merged, environ, gpus=which.gpus)
        if complete:  # without a layer, the batch is not the one that was meant
            check_shares(spec, compute.world_size)
    problems.raise_all("spec")
    changes = _changes(spec, _unwritten(model, load.merge(presets).tree), merged)
    changes = {path: change for path, change in changes.items() if change.origin != source}
    return Resolved(
        spec=spec,
        compute=compute,
        origins={load.dotted(path): str(origin) for path, origin in merged.origins.items()},
        changes=changes,
        warnings=(*warnings, *ignored_settings(spec, changes, world_size=compute.world_size)),
    )


def _written_layers(
    kind: Kind,
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
    here, model = Path.cwd(), kind.spec
    starts = kind.starts or (INIT_FROM, PHASE_FROM)
    for path in (project, file):
        with problems.collecting():
            layers += [anchor(load.read_file(path, shown(path, here)), path.absolute().parent, starts)] if path else []
        if path is not None and path == project and layers:
            layers = [for_kind(layers[0], model)]
    layers += given
    with problems.collecting():
        variables, warnings = variable_layers(model, environ)
        layers += [anchor(layer, here, starts) for layer in variables]
    for key, flag in flags.items():
        tree: dict[str, Any] = {}
        load.assign(tree, tuple(key.split(".")), flag.value)
        layers.append(anchor(load.Layer(flag.name, tree), here, starts))
    with problems.collecting():
        layers.append(anchor(_of_kind(load.read_assignments(sets, "--set"), kind), here, starts))
    return layers, warnings


def _written_site(written: Sequence[load.Layer]) -> Site:
    """The site of the backend that the layers name."""
    return site_of(str(load.merge(written).tree.get("backend", JobSpec.model_fields["backend"].default)))


def _preset_layers(kind: Kind, written: load.Merged, problems: Problems) -> list[load.Layer]:
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
            layers.append(load.read_preset(name, folder, what))
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


def _of_kind(layer: load.Layer, kind: Kind) -> load.Layer:
    """Assignments as they were written, where `model` is no section."""
    if MODEL not in kind.starts or MODEL not in layer.tree:
        return layer
    return load.Layer(layer.source, {**layer.tree, MODEL: _model_name(layer.tree[MODEL])}, layer.lines)


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


def check_shares(spec: JobSpec, world_size: int) -> None:
    """Sees to it that a global batch, of a job that has one, divides into processes and micro batches.

    Raises:
        SpecError: it does not; the message names the nearest that do.
    """
    if isinstance(spec, PretrainSpec):
        spec.train.accumulation_steps(world_size)
    if isinstance(spec, FinetuneSpec):
        check_batch(spec.train, world_size)
