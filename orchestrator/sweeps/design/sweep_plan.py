"""Read a sweep from its sources, and validate it with its trial before anything is submitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.backends import capability_of
from orchestrator.backends.capabilities import SweepsNatively
from orchestrator.jobs.phases import require_start
from orchestrator.jobs.registry import DEFAULT, all_kinds, job_kind, run_kind
from orchestrator.jobs.resolve import declared_secrets_in, resolve_spec, start_folder_layers
from orchestrator.specs.paths import anchor, anchor_setting
from orchestrator.specs.resolved import PRESETS, Flag, Resolved, SpecProblems, display_path
from orchestrator.specs.settings import seeds_of
from orchestrator.specs.space import Parameter, map_options
from orchestrator.specs.sweep_spec import SweepSpec, contradictions
from orchestrator.support.errors import SpecError
from orchestrator.sweeps.design.checks import trial_problems
from train_jobs.artifacts.layers import (
    ConfigLayer,
    KeyPath,
    Merged,
    build,
    dotted,
    merge,
    read_assignments,
    read_file,
    read_preset,
    with_texts,
)

SWEEP_PRESETS = PRESETS / "sweep"
TRIAL, SPACE, SEEDS = "trial", "space", "seeds"
SHORT_FORMS = {"sampling": "name", "early_termination": "policy"}
"""Section -> its key that a plain string stands for: `sampling: tpe` is `sampling: {name: tpe}`."""


class SpecContext(NamedTuple):
    """Inputs of a spec other than its files and flags; see `resolve_spec`."""

    environ: Mapping[str, str] | None = None
    project: Path | None = None
    model_of: Callable[..., Path] | None = None
    outputs_of: Callable[[str], Path] | None = None


@dataclass(frozen=True)
class ResolvedSweep:
    """A validated sweep."""

    spec: SweepSpec
    trial: Resolved
    """The job that is varied, before the settings of the space are applied."""
    tree: dict[str, Any]
    """The merged sources, as written, but with several seeds of the trial as those of the sweep."""


def on_service(spec: SweepSpec, backend: str) -> bool:
    """Return whether a service of the trials' backend drives a sweep, rather than a process of this machine."""
    return spec.driver != "here" and capability_of(backend, SweepsNatively) is not None


def resolve_sweep(
    *,
    file: Path | None = None,
    sets: Iterable[str] = (),
    flags: Mapping[str, Flag] | None = None,
    context: SpecContext | None = None,
) -> ResolvedSweep:
    """Merge all sources over the preset, and validate the sweep and its trials.

    Args:
        file: the spec of the sweep. `trial: FILE` includes a spec of the job; keys of the job override it.
        sets: `path.to.key=value`; keys of the job are below `trial`.
        flags: dotted path of the job -> value and flag.
        context: environment variables, project config and finders of models, which apply to the job.

    Raises:
        SpecError: the spec is invalid; all problems together, each with its place.
    """
    problems, context = SpecProblems(), context or SpecContext()
    inherited = context._asdict()
    written = _read_layers(file, sets, problems)
    layers, merged = _trial_layers(written), merge(written)
    if (kind := str(merged.tree.get("kind"))) in all_kinds():  # then the keys of the job are in the wrong place too
        line = f"{merged.origin(('kind',))}: kind: {kind} is the kind of a trial, and this is the file of a sweep"
        raise SpecError(
            "a sweep has the kind of its trials", problems=[line], fix=f"remove it, and write trial: {{kind: {kind}}}"
        )
    spec: SweepSpec | None = None
    trial: Resolved | None = None
    moved: dict[str, list[int]] = {}
    with problems.collecting():
        spec = build(SweepSpec, merged)
    with problems.collecting(where=merged.origin((TRIAL,))):
        kind, given = _trial_kind(layers), dict(flags or {})
        trial = resolve_spec(kind, layers=layers, flags=given, **inherited)
        if len(several := seeds_of(trial.spec)) > 1:
            # One job with all of them would report each seed once, and the luckiest seed would be its outcome.
            moved = {SEEDS: several} if spec is not None and not spec.seeds else {}
            given[SEEDS] = Flag(several[:1], "seeds of the sweep")
            trial = resolve_spec(kind, layers=layers, flags=given, **inherited)
        require_start(trial)
    if spec is not None and trial is not None:
        with problems.collecting(where=merged.origin((SPACE,))):
            merged = replace(merged, tree=with_texts(type(trial.spec), merged, _setting_of))
            merged = _with_start_folders(merged, trial, context)
            spec = build(SweepSpec, merged)
    spec = spec.model_copy(update=moved) if spec is not None else None
    wrong = list(contradictions(spec)) if spec is not None else []
    if spec is not None and trial is not None and not wrong:
        wrong = [*trial_problems(spec, trial), *_driver_problems(spec, trial, moved)]
    if trial is not None:
        own = {key: value for key, value in merged.tree.items() if key != TRIAL}
        problems.extend(declared_secrets_in(own, trial.spec, merged))
    for path, what in wrong:
        origin = merged.origin(path)
        problems.extend([f"{origin}: {dotted(path)}: {what}" if origin else f"{dotted(path)}: {what}"])
    problems.raise_all("sweep")
    assert spec is not None
    assert trial is not None
    return ResolvedSweep(spec, trial, {**merged.tree, **moved})


def _setting_of(path: KeyPath) -> KeyPath:
    """Return the setting of an option of the space, given its path in the file of the sweep; else an empty path.

    An index directly below a name is that of an option; further ones are inside of its value.
    """
    if path[0] != SPACE:
        return ()
    inner = [part for part in path[1:] if part != "choice"]
    index_of_option = [isinstance(part, int) and isinstance(inner[at - 1], str) for at, part in enumerate(inner)]
    kept = [part for part, is_option in zip(inner, index_of_option, strict=True) if not is_option]
    return tuple(name for part in kept for name in (part.split(".") if isinstance(part, str) else [part]))


def _with_start_folders(merged: Merged, trial: Resolved, context: SpecContext) -> Merged:
    """Return a sweep whose options have folders in place of names of runs and models, as its trial has."""
    kind, tracking = job_kind(trial.spec.kind), {"tracking": {"uri": trial.spec.tracking.uri}}

    def folder_of(path: str, value: Any) -> Any:
        if path not in kind.paths.starts:
            return value
        named = merge([ConfigLayer(SPACE, {**tracking, path: value})])
        found = start_folder_layers(named, kind, context.model_of, context.outputs_of)
        return found[0].tree[path] if found else value

    return replace(merged, tree={**merged.tree, SPACE: map_options(merged.tree[SPACE], folder_of)})


def _driver_problems(spec: SweepSpec, trial: Resolved, moved: Mapping[str, list[int]]) -> Iterable[tuple[KeyPath, str]]:
    service = capability_of(trial.spec.backend, SweepsNatively)
    if spec.driver == "service" and service is None:
        yield ("driver",), f"backend {trial.spec.backend} of the trial has no sweep service: set driver to here"
    elif spec.driver != "here" and service is not None:
        for path, what in service.refusals(spec, trial.spec):
            if moved and path == (SEEDS,):
                one = f"{service.sweep_service} judges every run by itself: seeds: {moved[SEEDS][:1]}"
                yield (TRIAL, SEEDS), f"{one}, or --set driver=here"
            else:
                yield path, what


def _read_layers(file: Path | None, sets: Iterable[str], problems: SpecProblems) -> list[ConfigLayer]:
    """Return the sources of a sweep with absolute paths, lowest precedence first; report those that cannot be read."""
    sources: list[tuple[ConfigLayer, Path]] = []
    with problems.collecting():
        if file is not None:
            sources += _expanded(read_file(file, display_path(file, Path.cwd())), file.absolute().parent)
    with problems.collecting():
        sources += _expanded(read_assignments(sets, "--set"), Path.cwd())
    merged = merge(layer for layer, _ in sources)
    recipe = merged.tree.get("recipe")
    with problems.collecting(where=merged.origin(("recipe",))):
        if isinstance(recipe, str):
            (preset,) = read_preset(recipe, SWEEP_PRESETS, "sweep preset")
            sources[:0] = _expanded(preset, SWEEP_PRESETS)
    # Which keys hold paths depends on the kind of the trial, which any source may set: so paths are resolved last.
    keys = run_kind(_trial_kind(_trial_layers(layer for layer, _ in sources))).paths
    layers = []
    for layer, folder in sources:
        tree = dict(layer.tree)
        if isinstance(tree.get(TRIAL), dict):
            tree[TRIAL] = anchor(replace(layer, tree=tree[TRIAL]), folder, keys).tree
        if isinstance(tree.get(SPACE), dict):
            tree[SPACE] = map_options(tree[SPACE], partial(anchor_setting, folder=folder, keys=keys))
        layers.append(replace(layer, tree=tree))
    return layers


def _trial_kind(layers: Iterable[ConfigLayer]) -> str:
    return str(merge(layers).tree.get("kind", DEFAULT))


def _trial_layers(layers: Iterable[ConfigLayer]) -> tuple[ConfigLayer, ...]:
    """Return the layers of the trial's spec in the layers of a sweep."""
    return tuple(
        ConfigLayer(
            layer.source, layer.tree[TRIAL], {path[1:]: line for path, line in layer.lines.items() if path[0] == TRIAL}
        )
        for layer in layers
        if isinstance(layer.tree.get(TRIAL), dict)
    )


def _expanded(layer: ConfigLayer, folder: Path) -> list[tuple[ConfigLayer, Path]]:
    """Expand short forms in a layer; return it with the folder of its relative paths, after the trial's own file.

    Raises:
        SpecError: the trial's file cannot be read.
    """
    tree, lines = dict(layer.tree), dict(layer.lines)
    for section, key in SHORT_FORMS.items():
        if isinstance(tree.get(section), str):
            tree[section] = {key: tree[section]}
    if isinstance(tree.get(SPACE), dict):
        flat = dict(_flat(tree[SPACE], (SPACE,)))
        tree[SPACE] = {".".join(map(str, path[1:])): value for path, value in flat.items()}
        lines = {_renamed(path, flat): line for path, line in lines.items()}
    if not isinstance(tree.get(TRIAL), str):
        return [(ConfigLayer(layer.source, tree, lines), folder)]
    path = (folder / Path(tree.pop(TRIAL)).expanduser()).resolve()
    if not path.is_file():
        raise SpecError("cannot read the trial", problems=[f"{layer.origin((TRIAL,))}: {TRIAL}: no such file: {path}"])
    inner = read_file(path, display_path(path, Path.cwd()))
    below = ConfigLayer(inner.source, {TRIAL: inner.tree}, {(TRIAL, *key): line for key, line in inner.lines.items()})
    return [(below, path.parent), (ConfigLayer(layer.source, tree, lines), folder)]


def _flat(tree: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield path -> parameter: `optimizer: {learning_rate: ...}` is `optimizer.learning_rate: ...`."""
    for key, value in tree.items():
        if isinstance(value, dict) and value and not value.keys() & Parameter.model_fields.keys():
            yield from _flat(value, (*path, key))
        else:
            yield (*path, key), value


def _renamed(path: KeyPath, flat: Mapping[KeyPath, Any]) -> KeyPath:
    """Return the path of a line of the space once its sections are joined into dotted names."""
    for length in range(len(path), 1, -1):
        if path[:length] in flat:
            return (SPACE, ".".join(map(str, path[1:length])), *path[length:])
    return path
