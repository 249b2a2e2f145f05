"""From a sweep as it was written to one whose every trial is known to be valid, before anything is submitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.backends import capability_of
from orchestrator.backends.capabilities import SweepsNatively
from orchestrator.jobs.resolve import resolve_spec
from orchestrator.specs.problem_list import Problems
from orchestrator.specs.resolved import Flag, Resolved
from orchestrator.specs.sweep_spec import SweepSpec, contradictions
from orchestrator.sweeps.design.checks import Problem, trial_problems
from orchestrator.sweeps.design.written import TRIAL, of_trial, read_layers, trial_kind
from train_jobs.artifacts.layers import Layer, Merged, build, dotted, merge


class Surroundings(NamedTuple):
    """What of the place where a command is given has a say in a spec; as of `resolve_spec`."""

    environ: Mapping[str, str] | None = None
    project: Path | None = None
    model_of: Callable[[str], Path] | None = None
    outputs_of: Callable[[str], Path] | None = None


@dataclass(frozen=True)
class ResolvedSweep:
    """A validated sweep.

    Attributes:
        spec: what the user wants.
        trial: the job that is varied, with no setting of the space in it.
        tree: all that was written, the sources laid over one another.
    """

    spec: SweepSpec
    trial: Resolved
    tree: dict[str, Any]


def on_service(spec: SweepSpec, backend: str) -> bool:
    """Whether a service of the backend draws points and stops trials, and no process of this machine.

    Args:
        spec: the sweep.
        backend: of its trials.
    """
    return spec.driver != "here" and capability_of(backend, SweepsNatively) is not None


def resolve_sweep(
    *,
    file: Path | None = None,
    sets: Iterable[str] = (),
    flags: Mapping[str, Flag] | None = None,
    around: Surroundings | None = None,
) -> ResolvedSweep:
    """Lays every source of values over the preset and validates the result, with what its trials would be.

    Args:
        file: the sweep. `trial: FILE` stands for what is in FILE, and keys of the job go on top of it.
        sets: `path.to.key=value`; keys of the job are below `trial`.
        flags: dotted path of the job -> value and flag.
        around: environment variables and project config, which are about the job; where named models are.

    Raises:
        SpecError: everything that is wrong, each problem with its place.
    """
    around, flags, problems = around or Surroundings(), flags or {}, Problems()
    written = read_layers(file, sets, problems)
    layers, merged = of_trial(written), merge(written)
    kind = trial_kind(layers)
    spec: SweepSpec | None = None
    trial: Resolved | None = None
    with problems.collecting():
        spec = build(SweepSpec, merged)
    with problems.collecting(where=merged.origin((TRIAL,))):
        trial = _resolve_trial(kind, layers, flags, around)
    if spec is not None:
        wrong = list(contradictions(spec))
        problems.extend(_placed(merged, wrong))
        if trial is not None and not wrong:
            problems.extend(_placed(merged, trial_problems(spec, trial)))
            problems.extend(_placed(merged, _refused_by_driver(spec, trial)))
    problems.raise_all("sweep")
    assert spec is not None
    assert trial is not None
    return ResolvedSweep(spec, trial, merged.tree)


def _resolve_trial(kind: str, layers: tuple[Layer, ...], flags: Mapping[str, Flag], around: Surroundings) -> Resolved:
    return resolve_spec(kind, layers=layers, flags=flags, **around._asdict())


def _refused_by_driver(spec: SweepSpec, trial: Resolved) -> Iterable[Problem]:
    service = capability_of(trial.spec.backend, SweepsNatively)
    if spec.driver == "service" and service is None:
        yield ("driver",), f"backend {trial.spec.backend} of the trial has no sweep service: here"
    elif spec.driver != "here" and service is not None:
        yield from service.refusals(spec, trial.spec)


def _placed(merged: Merged, problems: Iterable[Problem]) -> Iterable[str]:
    for path, what in problems:
        origin = merged.origin(path)
        yield f"{origin}: {dotted(path)}: {what}" if origin else f"{dotted(path)}: {what}"
