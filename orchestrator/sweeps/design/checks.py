"""Check that every trial of a sweep can run: its settings exist, their values are valid, the metric is reported."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from pydantic import ValidationError

from orchestrator.jobs.registry import job_kind
from orchestrator.specs.job import JobSpec
from orchestrator.specs.paths import missing_paths
from orchestrator.specs.resolved import Resolved
from orchestrator.specs.settings import Settings, is_section, seed_setting, setting_type
from orchestrator.specs.space import Parameter, all_parameters
from orchestrator.specs.sweep_spec import MAX_TRIALS, SamplingSpec, SweepSpec, as_tree, size, trial_count
from orchestrator.support.errors import SpecError
from orchestrator.sweeps.design.points import MAX_DIMENSIONS, draw, latent, value
from train_jobs.artifacts.layers import ConfigLayer, KeyPath, leaves, merge, plain_message
from train_jobs.config.errors import did_you_mean
from train_jobs.config.reported import may_be_negative, reported_metrics

MAX_VALIDATED_POINTS = 256  # points that are validated before the submission
# Probability beyond four standard deviations: values of a normal distribution within them must be valid. A normal
# distribution has no ends to check, and its extreme tails would make any setting with a bound invalid.
NORMAL_TAIL = 3e-5
GOLDEN = 0.381966  # a quantile inside the range whose value is not round: finds settings that accept only integers
Problem = tuple[KeyPath, str]


def trial_problems(spec: SweepSpec, trial: Resolved) -> Iterator[Problem]:
    """Yield the problems of a sweep of this trial: key and message."""
    job = trial.spec
    unknown = dict(_unknown_settings(spec, job))
    yield from ((_key(name), what) for name, what in unknown.items())
    if spec.seeds and seed_setting(job, 0) is None:
        yield ("seeds",), f"a {job.kind} job has no seed"
    if spec.sampling.name == "sobol" and (count := len(list(all_parameters(spec.space)))) > MAX_DIMENSIONS:
        yield ("sampling",), f"sobol supports at most {MAX_DIMENSIONS} parameters, the space has {count}"
    if (count := trial_count(spec)) > MAX_TRIALS:
        yield ("limits", "trials"), f"the grid has {count} points, a sweep can have at most {MAX_TRIALS} trials"
    yield from _metric_problems(spec, job)
    invalid = [*_invalid_values(spec, job, unknown), *_missing_options(spec, trial)]
    yield from invalid
    # Whole points only if each value alone is valid: otherwise every point repeats the problem that is listed already.
    if not unknown and not invalid:
        yield from _invalid_points(spec, trial)


def policy_warnings(spec: SweepSpec, job: JobSpec) -> list[str]:
    """Return a warning if Azure's bandit makes no sense for the objective: a ratio of values that can be negative."""
    if spec.early_termination.slack_factor is None:
        return []
    metric = spec.objective.metric
    own_module = job.code.entry != type(job).model_fields["code"].default.entry
    negative = None if own_module else may_be_negative(job.job_config(), metric)
    if negative is False:
        return []
    subject = f"{metric} can be negative" if negative else f"if {metric} can be negative"
    return [
        f"early_termination.slack_factor: {subject}{':' if negative else ','} while the best trial is below 0, Azure's"
        " ratio stops every trial that it judges, even the best one: use slack_amount, or policy asha with driver here"
    ]


def _unknown_settings(spec: SweepSpec, job: JobSpec) -> Iterator[tuple[str, str]]:
    """Yield the parameters that do not name a setting of the trial's job: name and message."""
    seeds = seed_setting(job, 0) or {}
    config, not_a_section = type(job.job_config()).model_fields, "["  # no name begins with it
    for name, path, parameter in all_parameters(spec.space):
        if name.startswith(not_a_section):
            continue
        if any(option.space is not None for option in parameter.choice or ()):
            if not is_section(type(job), path):
                not_a_section = f"{name}["
                yield name, f"{path} is not a section of a {job.kind} job: its options cannot be mappings"
            continue
        known_type = setting_type(type(job), path)
        if path in seeds:
            # The best of many seeds is an overfit of the validation data, not a better setting.
            yield name, "a seed cannot be a parameter: seeds: [1, 2, 3] repeats every point with each seed"
        elif path.split(".")[0] not in config and known_type is not None:
            yield name, f"cannot vary {path}: the job does not read it"
        elif known_type is None:
            known = [".".join(map(str, key)) for key, _ in leaves(job.job_config().model_dump())]
            yield name, f"a {job.kind} job has no setting {path}{did_you_mean(path, known)}"


def _metric_problems(spec: SweepSpec, job: JobSpec) -> Iterator[Problem]:
    metric = spec.objective.metric
    if job.code.entry != type(job).model_fields["code"].default.entry:
        return  # metrics of the user's own module are unknown
    known = reported_metrics(job.job_config())
    if known is None or any(metric == name or (name[-1] == "*" and metric.startswith(name[:-1])) for name in known):
        return
    hint = did_you_mean(metric, known) or f" (known: {', '.join(known)})"
    yield ("objective", "metric"), f"this {job.kind} job does not report {metric}{hint}"


def _invalid_values(spec: SweepSpec, job: JobSpec, unknown: Container[str]) -> Iterator[Problem]:
    """Yield invalid values among the options, the ends of each range, and a point in its middle."""
    base = job.model_dump()
    for name, path, parameter in all_parameters(spec.space):
        if name in unknown:
            continue
        messages = set()
        for candidate in _candidates(parameter):
            for error in _errors(type(job), base, {path: candidate}):
                place, message = ".".join(str(part) for part in error["loc"]), plain_message(error)
                if (place == path or place.startswith(f"{path}.")) and message not in messages:
                    messages.add(message)
                    whole = parameter.kind in {"range", "normal"} and error["type"].startswith("int")
                    hint = "; q: 1 draws whole numbers" if whole else ""
                    yield _key(name), f"{path} cannot be {candidate!r}: {message}{hint}"


def _missing_options(spec: SweepSpec, trial: Resolved) -> Iterator[Problem]:
    """Yield the options that are paths and do not exist."""
    keys = job_kind(trial.spec.kind).paths
    for name, path, parameter in all_parameters(spec.space):
        for option in parameter.choice or ():
            yield from (
                (_key(name), what) for _, what in missing_paths(as_tree({path: option.value}), keys, trial.site)
            )


def _candidates(parameter: Parameter) -> list[Any]:
    if parameter.kind == "choice":
        return [option.value for option in parameter.options if option.space is None]
    if parameter.kind == "randint":
        return [0, size(parameter) - 1]
    ends = (NORMAL_TAIL, 1 - NORMAL_TAIL) if parameter.kind == "normal" else (0.0, 1.0)
    return [value(parameter, latent(parameter, unit)) for unit in (*ends, GOLDEN)]


def _errors(model: type[JobSpec], base: dict[str, Any], settings: Settings) -> list[dict[str, Any]]:
    try:
        _validated(model, base, settings)
    except ValidationError as failure:
        return [dict(error) for error in failure.errors()]
    return []


def _validated(model: type[JobSpec], base: dict[str, Any], settings: Settings) -> JobSpec:
    return model.model_validate(merge([ConfigLayer("trial", base), ConfigLayer("space", as_tree(settings))]).tree)


def _invalid_points(spec: SweepSpec, trial: Resolved) -> Iterator[Problem]:
    """Yield the invalid combinations of values among the points that will be drawn.

    Model-based samplers choose points from results, so a smaller number of random points of the space is checked.
    """
    job, base = trial.spec, trial.spec.model_dump()
    known = spec.sampling.name in {"random", "sobol", "grid"}
    count = min(trial_count(spec), MAX_VALIDATED_POINTS) if known else MAX_VALIDATED_POINTS // 4
    drawn = spec if known else spec.model_copy(update={"sampling": SamplingSpec(seed=spec.sampling.seed)})
    invalid: list[str] = []
    for index in range(count):
        point = draw(drawn, index)
        message = None
        try:
            spec_of_point = _validated(type(job), base, point)
            job_kind(spec_of_point.kind).check_shares(spec_of_point, trial.compute)
        except ValidationError as failure:
            message = plain_message(failure.errors()[0])
        except SpecError as failure:
            message = failure.message
        if message is not None:
            invalid.append(f"{', '.join(f'{path}={setting}' for path, setting in point.items())}: {message}")
    if invalid:
        yield ("space",), f"{len(invalid)} of {count} trials cannot run, the first with {invalid[0]}"


def _key(name: str) -> KeyPath:
    """Return the key of a parameter's top-level parameter, whose line in the file is known."""
    return ("space", name.split("[")[0])
