"""A sweep for Azure's own sweep service: one SweepJob, built through `.sweep()`, and what the service can't do refused.

On the wire a search space is flat, its names have no dots, and the logarithm of a range is that of its bounds:

    optimizer.learning_rate: {low: 1e-6, high: 1e-4, log: true}
    "optimizer__learning_rate": ["loguniform", [-13.8, -9.2]]

A value is put into the command of a trial as text, so what is no number goes as JSON, which `--set` reads as YAML.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import StringIO
from typing import TYPE_CHECKING, Any

import yaml

from orchestrator.backends.azure.assets import places
from orchestrator.backends.azure.runs.az_yaml import job_file
from orchestrator.specs.settings import names_files
from orchestrator.specs.space import Option, Parameter, Space, all_parameters, join
from orchestrator.specs.sweep_spec import Settings, SweepSpec, TerminationSpec, as_tree, trials
from orchestrator.support.quiet_tqdm import load_quietly
from train_jobs.artifacts.layers import KeyPath

if TYPE_CHECKING:
    from orchestrator.backends.azure.submission import AzureRequest
    from orchestrator.specs.job import JobSpec

HERE = "or --set driver=here: this machine drives the same trials on the same cluster"
CLASSES = {
    ("range", False): "Uniform",
    ("range", True): "LogUniform",
    ("normal", False): "Normal",
    ("normal", True): "LogNormal",
}
SECONDS = 3600
SHORTEST = 60  # seconds: Azure takes less for a minute
TAGS_OF_RUNS = ("orchestrator.run", "orchestrator.handle", "orchestrator.attempt", "orchestrator.request")


def refusals(spec: SweepSpec, job: JobSpec) -> Iterator[tuple[KeyPath, str]]:
    """What the service would refuse or take for something else: where it stands, why, and what does work."""
    if spec.early_termination.policy in {"asha", "wilcoxon"}:
        what = f"Azure has no policy {spec.early_termination.policy}"
        yield ("early_termination", "policy"), f"{what}: bandit, median or truncation, {HERE}"
    if spec.sampling.name in {"tpe", "gp"}:
        yield ("sampling", "name"), f"Azure has no sampling {spec.sampling.name}: bayesian, {HERE}"
    if spec.sampling.name == "bayesian" and spec.early_termination.policy != "none":
        yield ("early_termination", "policy"), f"Azure stops no trial early with bayesian sampling: none, {HERE}"
    if spec.seeds:
        yield ("seeds",), f"Azure judges every run by itself: seeds: [], {HERE}"
    if spec.objective.reduction == "last":
        yield ("objective", "reduction"), f"Azure takes the best of a trial's reports: best, {HERE}"
    if spec.limits.cost is not None:
        yield ("limits", "cost"), f"Azure knows no limit of money: hours, {HERE}"
    if spec.warm_start:
        yield ("warm_start",), f"Azure's sampling takes no trials of other sweeps: [], {HERE}"
    if isinstance(spec.keep_best, int):
        yield ("keep_best",), "Azure keeps what every trial has written: all"
    if spec.trials_per_gpu > 1:
        yield ("trials_per_gpu",), "a trial on Azure has its machines to itself: 1"
    if job.max_restarts:
        yield ("trial", "max_restarts"), f"Azure starts no trial again: 0, {HERE}"
    for key, parameter in spec.space.items():
        yield from ((("space", key), what) for what in _refused(spec, job, key, parameter))


def _refused(spec: SweepSpec, job: JobSpec, path: str, parameter: Parameter) -> Iterator[str]:
    if any(names_files(type(job), inner) for _, inner, _ in all_parameters({path: parameter})):
        yield f"{path} is copied to Azure once for all trials, and can't vary: a sweep for each, {HERE}"
    if spec.sampling.name == "bayesian" and not parameter.finite and (parameter.log or parameter.kind != "range"):
        what = "a logarithmic range" if parameter.kind == "range" else f"a {parameter.kind} distribution"
        yield f"Azure's bayesian sampling takes choices and plain ranges, not {what}: sampling random, {HERE}"
    for option in parameter.choice or ():
        if option.space is not None and any(not _is_fixed(inner) for inner in option.space.values()):
            yield f"an option of Azure's is a value, and can't vary itself: a sweep for each option, {HERE}"
            return


def _is_fixed(parameter: Parameter) -> bool:
    return parameter.kind == "choice" and len(parameter.options) == 1 and parameter.options[0].space is None


def alias(path: str) -> str:
    """What a setting is called on Azure."""
    return path.replace(".", "__")


def distribution(parameter: Parameter, *, as_choices: bool = False) -> Any:
    """A parameter as Azure's SDK has it.

    Args:
        parameter: which.
        as_choices: of a randint the choice among its numbers, for sampling that takes no randint.
    """
    from azure.ai.ml import sweep

    if parameter.kind == "choice":
        return sweep.Choice([encoded(option) for option in parameter.options])
    if parameter.randint is not None:
        return sweep.Choice(list(range(parameter.randint))) if as_choices else sweep.Randint(parameter.randint)
    numbers = parameter.bounds
    if parameter.kind == "range" and parameter.log:
        numbers = math.log(numbers[0]), math.log(numbers[1])
    name = CLASSES[parameter.kind, parameter.log]
    if parameter.q is None:
        return getattr(sweep, name)(*numbers)
    return getattr(sweep, f"Q{name}")(*numbers, int(parameter.q) if parameter.q.is_integer() else parameter.q)


def encoded(option: Option) -> Any:
    """An option as it goes over the wire: a number as it is, else text that `--set` reads as the option again."""
    if option.space is not None:
        return _json(as_tree({path: inner.options[0].value for path, inner in option.space.items()}))
    value = option.value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if yaml.safe_load(str(value)) == value else yaml.safe_dump(value).split()[0]
    if isinstance(value, str) and yaml.safe_load(value) == value and "'" not in value:
        return value
    return _json(value)


def _json(value: Any) -> str:
    """JSON that may stand between a shell's single quotes."""
    return json.dumps(value).replace("'", "\\u0027")


def sweep_job(spec: SweepSpec, request: AzureRequest) -> Any:
    """The job as Azure's SDK has it.

    Args:
        spec: the sweep, nothing of which is refused.
        request: of its trial, under the sweep's name.
    """
    load_quietly()
    from azure.ai.ml import load_job
    from azure.ai.ml.entities import JobResourceConfiguration

    names = {key: alias(key) for key in spec.space}
    file = _trial_file(request, names)
    node: Any = load_job(StringIO(json.dumps(file)))
    as_choices = spec.sampling.name in {"grid", "bayesian"}
    varied = {names[key]: distribution(parameter, as_choices=as_choices) for key, parameter in spec.space.items()}
    job = node(**varied).sweep(
        sampling_algorithm=_sampling(spec),
        primary_metric=spec.objective.metric,
        goal=spec.objective.goal,
    )
    job.name = job.display_name = request.name
    job.experiment_name = node.experiment_name
    job.compute = node.compute
    job.trial.resources = JobResourceConfiguration(**file["resources"])  # as a mapping they would be left out
    tags = {key: value for key, value in file["tags"].items() if key not in TAGS_OF_RUNS}
    job.tags = {**tags, "orchestrator.sweep": request.name}
    job.early_termination = _policy(spec.early_termination)
    job.set_limits(
        max_total_trials=trials(spec),
        max_concurrent_trials=min(spec.limits.concurrent, trials(spec)),
        timeout=_seconds(spec.limits.hours),
        trial_timeout=_seconds(_trial_hours(spec, request)),
    )
    return job


def sweep_body(job: Any, request: AzureRequest) -> dict[str, Any]:
    """What Azure's SDK sends for it: its names of assets are ids here, as the workspace makes of them.

    Args:
        job: of `sweep_job`.
        request: that it was made of.
    """
    from azure.ai.ml.entities._job.to_rest_functions import to_rest_job_object

    found, own = to_rest_job_object(job).as_dict()["properties"], request.job["properties"]
    found |= {"computeId": own["computeId"], "inputs": own["inputs"]}
    found["trial"] |= {key: own[key] for key in ("codeId", "environmentId")}
    digest = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
    found["tags"] = {**found["tags"], "orchestrator.request": digest[: places.DIGITS]}
    return {"properties": found}


def sweep_request(spec: SweepSpec, request: AzureRequest) -> AzureRequest:
    """Return the request of a sweep: its trial's, with the sweep in the place of the job."""
    body = sweep_body(sweep_job(spec, request), request)
    return request.model_copy(update={"job": body, "max_restarts": 0})


def settings_of(space: Space, told: Mapping[str, Any]) -> Settings:
    """Settings that the service gave a trial: dotted path -> value, of the type that the job reads.

    Args:
        space: of the sweep.
        told: Azure's name -> value, as it went over the wire or as text.
    """
    found: Settings = {}
    for path, parameter in space.items():
        if (name := alias(path)) in told:
            found |= _setting(path, parameter, told[name])
    return found


def _setting(path: str, parameter: Parameter, told: Any) -> Settings:
    if parameter.kind != "choice":
        whole = parameter.randint is not None or (parameter.q is not None and parameter.q.is_integer())
        return {path: round(float(told)) if whole else float(told)}
    fitting = (option for option in parameter.options if _text(encoded(option)) == _text(told))
    option = next(fitting, Option(value=told))
    if option.space is None:
        return {path: option.value}
    return {join(path, key): inner.options[0].value for key, inner in option.space.items()}


def _text(value: Any) -> str:
    """A value of the wire as text; of numbers one for all ways to write them."""
    with suppress(ValueError, TypeError):
        return repr(float(value))
    return str(value)


def _trial_file(request: AzureRequest, names: Mapping[str, str]) -> dict[str, Any]:
    """The trial's job with an input for each setting, and outputs of its own."""
    file = job_file(request.name, request.job)
    sets = " ".join(f"--set '{path}=${{{{inputs.{name}}}}}'" for path, name in names.items())
    folder = places.datastore_uri(request.datastore, places.outputs_folder("${{name}}"))
    return {
        **file,
        "command": f"{file['command']} {sets}",
        "inputs": {**file["inputs"], **dict.fromkeys(names.values(), "")},
        "outputs": {**file["outputs"], "run": {**file["outputs"]["run"], "path": folder}},
    }


def _sampling(spec: SweepSpec) -> Any:
    from azure.ai.ml.sweep import RandomSamplingAlgorithm

    if spec.sampling.name in {"grid", "bayesian"}:
        return spec.sampling.name
    return RandomSamplingAlgorithm(rule=spec.sampling.name, seed=spec.sampling.seed)


def _policy(policy: TerminationSpec) -> Any:
    """Azure's object: of the names it would take by themselves two are refused by its SDK."""
    from azure.ai.ml.sweep import BanditPolicy, MedianStoppingPolicy, TruncationSelectionPolicy

    when = {"evaluation_interval": policy.interval, "delay_evaluation": policy.delay}
    if policy.policy == "bandit":
        return BanditPolicy(slack_factor=policy.slack_factor or 0, slack_amount=policy.slack_amount or 0, **when)
    if policy.policy == "median":
        return MedianStoppingPolicy(**when)
    if policy.policy == "truncation":
        assert policy.percentage is not None
        return TruncationSelectionPolicy(truncation_percentage=policy.percentage, **when)
    return None


def _trial_hours(spec: SweepSpec, request: AzureRequest) -> float | None:
    """The shorter of the sweep's limit and the job's own, which a sweep would drop."""
    own = job_file(request.name, request.job).get("limits", {}).get("timeout")
    given = [hours for hours in (spec.limits.trial_hours, own / SECONDS if own else None) if hours is not None]
    return min(given, default=None)


def _seconds(hours: float | None) -> int | None:
    """Whole seconds: of any other number Azure's SDK makes no limit at all."""
    return None if hours is None else max(SHORTEST, round(hours * SECONDS))
