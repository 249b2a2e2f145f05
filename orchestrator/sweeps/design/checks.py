"""Whether every trial of a sweep is one that can run: settings exist, values are valid, the metric is reported."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from pydantic import ValidationError

from orchestrator.jobs.registry import job_kind
from orchestrator.specs.job import JobSpec
from orchestrator.specs.resolved import Resolved
from orchestrator.specs.settings import is_section, seed_setting, setting_type
from orchestrator.specs.space import Parameter, all_parameters
from orchestrator.specs.sweep_spec import MOST_TRIALS, SamplingSpec, Settings, SweepSpec, as_tree, size, trials
from orchestrator.support.errors import SpecError
from orchestrator.sweeps.design.points import draw, latent, value
from orchestrator.sweeps.design.sobol import MOST_DIMENSIONS
from train_jobs.artifacts.layers import KeyPath, Layer, leaves, merge
from train_jobs.config.names import did_you_mean
from train_jobs.config.reported import reported_metrics

MOST_DRAWN = 256  # points that are tried beforehand
NORMAL_TAIL = 3e-5  # four standard deviations: what of a normal distribution has to be valid
Problem = tuple[KeyPath, str]


def trial_problems(spec: SweepSpec, trial: Resolved) -> Iterator[Problem]:
    """What is wrong with a sweep of this trial: where it stands, and what."""
    job = trial.spec
    unknown = dict(_unknown_settings(spec, job))
    yield from ((_where(name), what) for name, what in unknown.items())
    if spec.seeds and seed_setting(job, 0) is None:
        yield ("seeds",), f"a {job.kind} job has no seed"
    if spec.sampling.name == "sobol" and (count := len(list(all_parameters(spec.space)))) > MOST_DIMENSIONS:
        yield ("sampling",), f"sobol is for at most {MOST_DIMENSIONS} parameters, and there are {count}"
    if (count := trials(spec)) > MOST_TRIALS:
        yield ("limits", "trials"), f"the grid has {count} points, and a sweep at most {MOST_TRIALS} trials"
    yield from _metric_problems(spec, job)
    wrong = list(_wrong_values(spec, job, unknown))
    yield from wrong
    if not unknown and not wrong:
        yield from _wrong_points(spec, trial)


def _unknown_settings(spec: SweepSpec, job: JobSpec) -> Iterator[tuple[str, str]]:
    """Parameters, by name, of what a trial does not take, and why."""
    seeds = seed_setting(job, 0) or {}
    config, no_section = type(job.job_config()).model_fields, "["  # of which no name begins with
    for name, path, parameter in all_parameters(spec.space):
        if name.startswith(no_section):
            continue
        if any(option.space is not None for option in parameter.choice or ()):
            if not is_section(type(job), path):
                no_section = f"{name}["
                yield name, f"{path} is no section of a {job.kind} job: an option of it is no mapping"
            continue
        found = setting_type(type(job), path)
        if path in seeds:
            yield name, "a seed is nothing to choose by: seeds: [1, 2, 3] repeats every point with each"
        elif path.split(".")[0] not in config and found is not None:
            yield name, f"{path} is not read by the job itself, and can't vary"
        elif found is None:
            known = [".".join(map(str, key)) for key, _ in leaves(job.job_config().model_dump())]
            yield name, f"a {job.kind} job has no setting {path}{did_you_mean(path, known)}"


def _metric_problems(spec: SweepSpec, job: JobSpec) -> Iterator[Problem]:
    metric = spec.objective.metric
    if job.code.entry != type(job).model_fields["code"].default.entry:
        return  # only the user's own module knows
    known = reported_metrics(job.job_config())
    if known is None or any(metric == name or (name[-1] == "*" and metric.startswith(name[:-1])) for name in known):
        return
    hint = did_you_mean(metric, known) or f" (known: {', '.join(known)})"
    yield ("objective", "metric"), f"this {job.kind} job does not report {metric}{hint}"


def _wrong_values(spec: SweepSpec, job: JobSpec, left_out: Container[str]) -> Iterator[Problem]:
    """Values at the ends of a range, in its middle, and of every option, that their setting does not take."""
    base = job.model_dump()
    for name, path, parameter in all_parameters(spec.space):
        if name in left_out:
            continue
        said = set()
        for candidate in _candidates(parameter):
            for error in _errors(type(job), base, {path: candidate}):
                place = ".".join(str(part) for part in error["loc"])
                message = _message(error)
                if (place == path or place.startswith(f"{path}.")) and message not in said:
                    said.add(message)
                    yield _where(name), f"{path} can't be {candidate!r}: {message}{_hint(parameter, message)}"


def _wrong_points(spec: SweepSpec, trial: Resolved) -> Iterator[Problem]:
    """Combinations that a job does not take, among those that will be drawn, or of bayesian sampling might be."""
    job, base = trial.spec, trial.spec.model_dump()
    known = spec.sampling.name in {"random", "sobol", "grid"}
    count = min(trials(spec), MOST_DRAWN) if known else MOST_DRAWN // 4
    stand_in = spec if known else spec.model_copy(update={"sampling": SamplingSpec(seed=spec.sampling.seed)})
    wrong: list[tuple[int, Settings, str]] = []
    for index in range(count):
        point = draw(stand_in, index)
        if (message := _refused(type(job), base, point, trial.compute.world_size)) is not None:
            wrong.append((index, point, message))
    if wrong:
        index, point, message = wrong[0]
        told = ", ".join(f"{path}={setting}" for path, setting in point.items())
        yield ("space",), f"{len(wrong)} of {count} trials can't run, the first with {told}: {message}"


def _refused(model: type[JobSpec], base: dict[str, Any], point: Settings, world_size: int) -> str | None:
    """Why a job with these settings is refused; None if it is not."""
    try:
        found = model.model_validate(_with(base, point))
        job_kind(found.kind).check_shares(found, world_size)
    except ValidationError as failure:
        return _message(dict(failure.errors()[0]))
    except SpecError as failure:
        return failure.message
    return None


def _errors(model: type[JobSpec], base: dict[str, Any], settings: Settings) -> list[dict[str, Any]]:
    try:
        model.model_validate(_with(base, settings))
    except ValidationError as failure:
        return [dict(error) for error in failure.errors()]
    return []


def _with(base: dict[str, Any], settings: Settings) -> dict[str, Any]:
    return merge([Layer("trial", base), Layer("space", as_tree(settings))]).tree


def _message(error: dict[str, Any]) -> str:
    text = str(error["msg"]).removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def _hint(parameter: Parameter, message: str) -> str:
    whole = parameter.kind in {"range", "normal"} and "integer" in message
    return "; q: 1 makes whole numbers" if whole else ""


def _candidates(parameter: Parameter) -> list[Any]:
    if parameter.kind == "choice":
        return [option.value for option in parameter.options if option.space is None]
    if parameter.kind == "randint":
        return [0, size(parameter) - 1]
    ends = (NORMAL_TAIL, 1 - NORMAL_TAIL) if parameter.kind == "normal" else (0.0, 1.0)
    return [value(parameter, latent(parameter, unit)) for unit in (*ends, 0.381966)]


def _where(name: str) -> KeyPath:
    """Where a parameter is written: its top-level one."""
    return ("space", name.split("[")[0])
