"""Sweeps that Azure's own service drives: what it allows, the SweepJob that is sent, and its report of the trials.

On the wire a search space is flat, its names have no dots, and the logarithm of a range is that of its bounds:

    optimizer.learning_rate: {low: 1e-6, high: 1e-4, log: true}
    "optimizer__learning_rate": ["loguniform", [-13.8, -9.2]]

A value is put into the command of a trial as text, so anything but a number is sent as JSON, which `--set` reads as
YAML.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import yaml

from orchestrator.backends.azure import places
from orchestrator.backends.azure.options import AZURE, Workspace, find_workspace
from orchestrator.backends.azure.plan_notes import plan_submission
from orchestrator.backends.azure.runs import observer
from orchestrator.backends.azure.runs.endings import error_text, seconds, state_of
from orchestrator.backends.azure.runs.record import RecordFolder
from orchestrator.backends.azure.serverless import exported_file, sweep_sections
from orchestrator.backends.azure.submission import AzureRequest, body_digest, with_secrets
from orchestrator.backends.azure.wire.blobs import Files
from orchestrator.backends.azure.wire.control_plane import Body, Wire, rest_body
from orchestrator.backends.base import PLAN, REQUEST, Backend, Submission
from orchestrator.backends.capabilities import SweepsNatively
from orchestrator.backends.run_progress import metric_values
from orchestrator.backends.sweep_service import NativeSweep, NativeTrial
from orchestrator.runs.status import SWEEP_TAG
from orchestrator.specs.job import JobSpec
from orchestrator.specs.settings import Settings, names_files
from orchestrator.specs.space import Option, Parameter, Space, all_parameters, join
from orchestrator.specs.sweep_spec import SweepSpec, TerminationSpec, as_tree, trial_count
from orchestrator.support.errors import SpecError
from orchestrator.support.quiet_tqdm import load_quietly
from train_jobs.artifacts.layers import KeyPath
from train_jobs.artifacts.yaml_values import EXPONENT, read_yaml

SWEEP = "sweep.json"
HYPERPARAMETERS = "hyperparameters"  # tag of a trial
BEST = "best_child_run_id"  # property of the sweep
CANCELLED = {"CancelRequested", "Canceled"}
OR_DRIVE_HERE = "or --set driver=here: this machine drives the same trials on the same cluster"
CLASSES = {
    ("range", False): "Uniform",
    ("range", True): "LogUniform",
    ("normal", False): "Normal",
    ("normal", True): "LogNormal",
}
LISTED = {"grid", "bayesian"}  # sampling methods to which the service allows no randint, only a choice of its numbers
MAX_LISTED = 100_000  # values of a choice, about a megabyte of a request
HOUR = 3600
PAIR = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")  # of JSON: one character
SHORTEST = 60  # seconds: azure-ai-ml silently raises a shorter limit to a minute
TAGS_OF_RUNS = ("orchestrator.run", "orchestrator.handle", "orchestrator.attempt", "orchestrator.request")


class AzureSweeps(Backend, SweepsNatively):
    """Sweeps of Azure's own service, and the connections to workspaces.

    Args:
        home: the user's orchestrator folder.
        environ: environment variables; None: those of this process.
    """

    sweep_service = "Azure's sweep service"

    def __init__(self, home: Path, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(home)
        self._runs = home / AZURE
        self._environ = os.environ if environ is None else environ
        self._wires: dict[Workspace, Wire] = {}

    @property
    def arrival_seconds(self) -> float:
        """The same period as for a run."""
        return observer.GRACE_SECONDS

    def workspace(self, given: Mapping[str, str | None], name: str | None = None) -> Workspace:
        """Return the workspace that names, variables and config.json give, see `find_workspace`."""
        return find_workspace(given, self._environ, Path.cwd(), name=name)

    def wire_to(self, workspace: Workspace) -> Wire:
        """Return the connection to a workspace, always the same one: it keeps the token and the datastores' keys."""
        return self._wires.setdefault(workspace, Wire(workspace))

    @classmethod
    def refusals(cls, spec: SweepSpec, job: JobSpec) -> Iterator[tuple[KeyPath, str]]:
        """Yield the settings that the service would refuse or misunderstand."""
        return _refusals(spec, job)

    def prepare_sweep(self, spec: SweepSpec, trial: Submission) -> Submission:
        """Return the trial's submission with the sweep in the place of the job."""
        assert trial.plan is not None
        return plan_submission(trial.plan, sweep_request(spec, trial.request), self._home)

    def stage_sweep(self, submission: Submission, documents: Mapping[str, str]) -> dict[str, str]:
        """Create the cluster and the assets, upload the documents."""
        from orchestrator.backends.azure.runs.dispatch import stage

        stage(self.wire_to(submission.request.workspace.require()), submission, self._home, documents)
        return {name: submission.documents[name] for name in (PLAN, REQUEST)}

    def submit_sweep(self, documents: Mapping[str, str]) -> None:
        """Send the job until Azure has it or has refused it.

        Raises:
            UnknownError: it is unknown whether Azure has it.
            UserError: Azure refused it.
        """
        from orchestrator.backends.azure.runs.dispatch import put

        wire, request = self._request(documents)
        put(wire, request["name"], with_secrets(request["job"], request.get("secrets", {})))

    def describe_sweep(
        self, documents: Mapping[str, str], spec: SweepSpec, known: Container[int]
    ) -> NativeSweep | None:
        """Return the job's state and its child runs; each new one is recorded as a run on this machine.

        Args:
            documents: of the sweep.
            spec: of the sweep.
            known: numbers of trials to leave out: finished ones on record.
        """
        wire, request = self._request(documents)
        name = str(request["name"])
        job = wire.job(name)
        if job is None:
            return None
        properties = job["properties"]
        state = state_of(str(properties.get("status")))
        details = wire.details(name) if state.terminal else {}
        top = places.trial_of(str((properties.get("properties") or {}).get(BEST)))
        children = self._children(wire, name, known, properties.get("tags") or {})
        return NativeSweep(
            state=state,
            reason=error_text(details),
            ended=seconds(details.get("endTimeUtc")) or time.time() if state.terminal else None,
            cancelled=properties.get("status") in CANCELLED,
            best=top[1] if top else None,
            mlflow_run_id=name,
            trials=[self._trial(number, child, documents, spec) for number, child in sorted(children.items())],
        )

    def cancel_sweep(self, documents: Mapping[str, str]) -> None:
        """Cancel the job, which cancels its child runs."""
        wire, request = self._request(documents)
        wire.cancel_job(request["name"])

    def adopt_sweep(self, place: str, name: str) -> dict[str, str] | None:
        """Read the documents from the datastore of the workspace."""
        wire = self.wire_to(self.workspace({}, place).require())
        wire.location()
        tags = ((wire.job(name) or {}).get("properties") or {}).get("tags") or {}
        if tags.get(SWEEP_TAG) != name:
            return None
        files, folder = Files(wire, tags["orchestrator.datastore"]), places.job_folder(name)
        return {document: files.read(folder + document).decode() for document in (PLAN, REQUEST, SWEEP)}

    def _request(self, documents: Mapping[str, str]) -> tuple[Wire, Body]:
        request = json.loads(documents[REQUEST])
        return self.wire_to(Workspace.model_validate(request["workspace"])), request

    def _children(self, wire: Wire, name: str, known: Container[int], tags: Mapping[str, str]) -> dict[int, Body]:
        """Return the child runs that are not known yet by number, each with the values that the service gave it.

        The service keeps these values in a tag of the child, or of the sweep under the child's name.
        """
        found: dict[int, Body] = {}
        for child in wire.children(name):
            run = str(child["runId"])
            trial = places.trial_of(run)
            if trial is not None and trial[0] == name and trial[1] not in known:
                given = (child.get("tags") or {}).get(HYPERPARAMETERS) or tags.get(run) or "{}"
                found[trial[1]] = {"run": run, "given": json.loads(given), "created": child.get("createdUtc")}
        return found

    def _trial(self, number: int, child: Body, documents: Mapping[str, str], spec: SweepSpec) -> NativeTrial:
        run, settings = child["run"], settings_of(spec.space, child["given"])
        plan, request = (json.loads(documents[document]) for document in (PLAN, REQUEST))
        observer.adopt_trial(
            RecordFolder(self._runs / run), plan, request, settings, seconds(child["created"]) or time.time()
        )
        status = self.describe(run)  # before the reports, so that those of a finished run are complete
        return NativeTrial(number, settings, status, metric_values(self.metrics(run), spec.objective.metric))


def _refusals(spec: SweepSpec, job: JobSpec) -> Iterator[tuple[KeyPath, str]]:
    policy, sampling = spec.early_termination.policy, spec.sampling.name
    rules: tuple[tuple[object, str, str], ...] = (
        (
            policy in {"asha", "wilcoxon"},
            "early_termination.policy",
            f"Azure has no policy {policy}: bandit, median or truncation, {OR_DRIVE_HERE}",
        ),
        (sampling in {"tpe", "gp"}, "sampling.name", f"Azure has no sampling {sampling}: bayesian, {OR_DRIVE_HERE}"),
        (
            sampling == "bayesian" and policy != "none",
            "early_termination.policy",
            f"Azure stops no trial early with bayesian sampling: none, {OR_DRIVE_HERE}",
        ),
        (
            len(job.compute.sizes) * len(job.compute.regions) > 1,
            "trial.compute.sku",
            f"Azure runs all trials on one size in one region: one of them, {OR_DRIVE_HERE}",
        ),
        (spec.seeds, "seeds", f"Azure judges every run by itself: seeds: [], {OR_DRIVE_HERE}"),
        (
            spec.objective.reduction == "last",
            "objective.reduction",
            f"Azure takes the best of a trial's reports: best, {OR_DRIVE_HERE}",
        ),
        (spec.limits.cost is not None, "limits.cost", f"Azure has no limit of cost: hours, {OR_DRIVE_HERE}"),
        (spec.warm_start, "warm_start", f"Azure's sampling uses no trials of other sweeps: [], {OR_DRIVE_HERE}"),
        (isinstance(spec.keep_best, int), "keep_best", "Azure keeps the files of every trial: all"),
        (spec.trials_per_gpu > 1, "trials_per_gpu", "a trial on Azure has its machines to itself: 1"),
        (job.max_restarts, "trial.max_restarts", f"Azure restarts no trial: 0, {OR_DRIVE_HERE}"),
        (job.max_preemptions, "trial.max_preemptions", f"Azure restarts no trial: 0, {OR_DRIVE_HERE}"),
    )
    yield from ((tuple(key.split(".")), what) for applies, key, what in rules if applies)
    for path, parameter in spec.space.items():
        yield from ((("space", path), what) for what in _refused(spec, job, path, parameter))


def _refused(spec: SweepSpec, job: JobSpec, path: str, parameter: Parameter) -> Iterator[str]:
    if any(names_files(type(job), inner) for _, inner, _ in all_parameters({path: parameter})):
        yield f"{path} is uploaded once for all trials and cannot vary: one sweep for each value, {OR_DRIVE_HERE}"
    if spec.sampling.name == "bayesian" and not parameter.finite and (parameter.log or parameter.kind != "range"):
        what = "a logarithmic range" if parameter.kind == "range" else f"a {parameter.kind} distribution"
        yield f"Azure's bayesian sampling allows choices and plain ranges, not {what}: sampling random, {OR_DRIVE_HERE}"
    if spec.sampling.name in LISTED and (parameter.randint or 0) > MAX_LISTED:
        what = f"Azure's {spec.sampling.name} sampling gets a list of the values of {path}, at most {MAX_LISTED:,}"
        yield f"{what}: sampling random, {OR_DRIVE_HERE}"
    for option in parameter.choice or ():
        if option.space is not None and any(not _is_fixed(inner) for inner in option.space.values()):
            yield f"an option on Azure is a fixed value and cannot vary: one sweep for each option, {OR_DRIVE_HERE}"
            return


def _is_fixed(parameter: Parameter) -> bool:
    return parameter.kind == "choice" and len(parameter.options) == 1 and parameter.options[0].space is None


def alias(path: str) -> str:
    """Return Azure's name of a setting; Azure allows letters, digits and underscores, but no dots."""
    return path.replace(".", "__")


def distribution(parameter: Parameter, *, as_choices: bool = False) -> Any:
    """Return a parameter as an object of Azure's SDK.

    Args:
        parameter: the parameter.
        as_choices: return the choice among its numbers for a randint, for sampling that allows no randint.
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
    """Return an option as it is sent: a number as it is, else text that `--set` reads as the option again."""
    if option.space is not None:
        return _json(as_tree({path: inner.options[0].value for path, inner in option.space.items()}))
    value = option.value
    if isinstance(value, int | float) and not isinstance(value, bool):
        # YAML 1.1 reads Python's 1e-05 as a string, because it has no dot: then send YAML's own form of the number
        return value if yaml.safe_load(str(value)) == value else yaml.safe_dump(value).split()[0]
    if isinstance(value, str) and "'" not in value and not EXPONENT.match(value) and _reads_as_itself(value):
        return value
    return _json(value)


def _reads_as_itself(text: str) -> bool:
    """Return whether the job reads a text without quotes as that text: `[x` is not YAML, `no` is false."""
    with suppress(SpecError):
        return bool(read_yaml(text, "the value").tree == text)
    return False


def _json(value: Any) -> str:
    """Return JSON that is safe between a shell's single quotes: the service pastes it into the command as text."""
    text = json.dumps(value).replace("'", "\\u0027")
    # JSON writes a character such as an emoji as two escapes, which YAML would read as two characters
    return PAIR.sub(lambda pair: str(json.loads(f'"{pair[0]}"')), text)


def sweep_job(spec: SweepSpec, request: AzureRequest) -> Any:
    """Return the job as an object of Azure's SDK.

    Args:
        spec: the sweep, without `refusals`.
        request: of its trial, under the sweep's name.
    """
    load_quietly()
    from azure.ai.ml import load_job
    from azure.ai.ml.entities import JobResourceConfiguration

    names = {key: alias(key) for key in spec.space}
    file = _trial_file(request, names)
    node: Any = load_job(StringIO(json.dumps(file)))
    as_choices = spec.sampling.name in LISTED
    varied = {names[key]: distribution(parameter, as_choices=as_choices) for key, parameter in spec.space.items()}
    job = node(**varied).sweep(
        sampling_algorithm=_sampling(spec),
        primary_metric=spec.objective.metric,
        goal=spec.objective.goal,
    )
    # the SDK would draw random words for the name, and take the experiment from the current folder
    job.name = job.display_name = request.name
    job.experiment_name = node.experiment_name
    job.compute = node.compute
    job.trial.resources = JobResourceConfiguration(**file["resources"])  # the SDK would leave out a mapping
    tags = {key: value for key, value in file["tags"].items() if key not in TAGS_OF_RUNS}
    job.tags = {**tags, "orchestrator.sweep": request.name}
    job.early_termination = _policy(spec.early_termination)
    job.set_limits(
        max_total_trials=trial_count(spec),
        max_concurrent_trials=min(spec.limits.concurrent, trial_count(spec)),
        timeout=_seconds(spec.limits.hours),
        trial_timeout=_seconds(_trial_hours(spec, request)),
    )
    return job


def sweep_request(spec: SweepSpec, request: AzureRequest) -> AzureRequest:
    """Return the request of a sweep: its trial's, with the sweep in the place of the job."""
    own = request.job["properties"]
    found = rest_body(sweep_job(spec, request))["properties"]
    # The SDK would resolve names of assets by requests to the workspace, and a dry run makes none: take the ids of the
    # trial's own request.
    identity = {"identity": own["identity"]} if "identity" in own else {}
    found |= {**sweep_sections(own), **identity, "inputs": own["inputs"]}
    shared = ("codeId", "environmentId", *(() if "computeId" in own else ("resources",)))
    found["trial"] |= {key: own[key] for key in shared}
    found["tags"] = {**found["tags"], "orchestrator.request": body_digest(found)}
    return request.model_copy(
        update={"job": {"properties": found}, "max_restarts": 0, "alternatives": (), "supervisor": None}
    )


def settings_of(space: Space, given: Mapping[str, Any]) -> Settings:
    """Return the settings that the service gave a trial: dotted path -> value, of the type that the job reads.

    Args:
        space: of the sweep.
        given: Azure's name -> value, as it was sent or as text.
    """
    found: Settings = {}
    for path, parameter in space.items():
        if (name := alias(path)) in given:
            found |= _setting(path, parameter, given[name])
    return found


def _setting(path: str, parameter: Parameter, given: Any) -> Settings:
    if parameter.kind != "choice":
        whole = parameter.randint is not None or (parameter.q is not None and parameter.q.is_integer())
        return {path: round(float(given)) if whole else float(given)}
    matching = (option for option in parameter.options if _text(encoded(option)) == _text(given))
    option = next(matching, Option(value=given))
    if option.space is None:
        return {path: option.value}
    return {join(path, key): inner.options[0].value for key, inner in option.space.items()}


def _text(value: Any) -> str:
    """Return a sent value as text; equal numbers give equal text."""
    with suppress(ValueError, TypeError):
        return repr(float(value))
    return str(value)


def _trial_file(request: AzureRequest, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the trial's job with an input for each setting, and outputs of its own."""
    file = exported_file(request.name, request.job)
    sets = " ".join(f"--set '{path}=${{{{inputs.{name}}}}}'" for path, name in names.items())
    # the service replaces ${{name}} by the name of the trial: trials with one folder would overwrite each other
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
    """Return the policy as an object of Azure's SDK, which refuses two of the policies by name."""
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
    """Return the shorter of the sweep's limit and the job's own, which a sweep would ignore."""
    own = exported_file(request.name, request.job).get("limits", {}).get("timeout")
    given = [hours for hours in (spec.limits.trial_hours, own / HOUR if own else None) if hours is not None]
    return min(given, default=None)


def _seconds(hours: float | None) -> int | None:
    """Return whole seconds: Azure's SDK ignores a limit that is not an integer."""
    return None if hours is None else max(SHORTEST, round(hours * HOUR))
