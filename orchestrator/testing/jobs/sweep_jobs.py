"""Run a sweep job as the service does: draw points, run each as a command job, stop trials that fall behind.

Points are drawn from the wire form of a search space: `{"lr": ["loguniform", [-9.2, -2.3]], ...}`.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

from orchestrator.specs.sweep_spec import ObjectiveSpec, TerminationSpec
from orchestrator.sweeps.design.points import MAX_DIMENSIONS, quantiles, uniform
from orchestrator.sweeps.policy.termination import best, judge
from orchestrator.testing.cloud_state import Document
from orchestrator.testing.jobs.job_table import (
    CANCEL_REQUESTED,
    CANCELED,
    COMPLETED,
    ENDED,
    FAILED,
    CloudJob,
    Jobs,
    seconds,
)

POLL_SECONDS = 0.03
MAX_TRIALS, DAYS = 1000, 60  # limits of a sweep that sets none
BINDING = re.compile(r"\${{\s*search_space\.(?P<name>\w+)\s*}}")
TRIAL_KEYS = ("codeId", "environmentId", "distribution", "environmentVariables", "resources")
SWEEP_KEYS = ("computeId", "experimentName", "identity", "inputs")
HYPERPARAMETERS = "hyperparameters"  # tag of a trial
BAYESIAN_KINDS = ("choice", "uniform", "quniform")  # distributions that the service accepts with bayesian sampling
TAIL = 1e-9  # quantiles closer to 0 or 1 are clipped: those of 0 and 1 are infinite
DISTRIBUTIONS: Mapping[str, Callable[[float, float, float], float]] = {
    "uniform": lambda unit, low, high: low + (high - low) * unit,
    "loguniform": lambda unit, low, high: math.exp(low + (high - low) * unit),
    "normal": lambda unit, mean, deviation: NormalDist(mean, deviation).inv_cdf(min(max(unit, TAIL), 1 - TAIL)),
    "lognormal": lambda unit, mean, deviation: math.exp(DISTRIBUTIONS["normal"](unit, mean, deviation)),
}
"""Distribution -> its quantile function, of two numbers; of `loguniform` they are logarithms of the bounds."""


def problems(sweep: Document) -> list[str]:
    """Return the reasons for which the service refuses a sweep, beyond its schema."""
    space, policy = sweep["searchSpace"], sweep.get("earlyTermination") or {}
    reasons = [*_space_problems(space, _algorithm(sweep))]
    if policy.get("policyType") == "Bandit" and bool(policy.get("slackFactor")) == bool(policy.get("slackAmount")):
        reasons.append("A bandit policy needs either slackFactor or slackAmount.")
    unknown = {binding["name"] for binding in BINDING.finditer(sweep["trial"]["command"])} - {*space}
    return [*reasons, *(f"The command names {name}, which is not in the search space." for name in unknown)]


def _space_problems(space: Document, algorithm: str) -> Iterator[str]:
    if not space:
        yield "The search space is empty."
    for name, distribution in space.items():
        kind = _kind(distribution)
        if kind is None:
            yield f"The search space of {name} is invalid: {json.dumps(distribution)}"
        elif algorithm == "grid" and kind != "choice":
            yield f"Grid sampling supports choice only, and {name} is {kind}."
        elif algorithm == "bayesian" and kind not in BAYESIAN_KINDS:
            yield f"Bayesian sampling supports {', '.join(BAYESIAN_KINDS)} only, and {name} is {kind}."
    if algorithm == "sobol" and len(space) > MAX_DIMENSIONS:
        yield f"The double draws Sobol's sequence in at most {MAX_DIMENSIONS} dimensions."


def draw(sweep: Document, index: int) -> dict[str, Any]:
    """Return point `index` (0, 1, ...), always the same. Bayesian sampling is drawn at random.

    Args:
        sweep: the properties of the job.
        index: number of the trial; of a grid, less than its number of points.
    """
    space, seed = sweep["searchSpace"], sweep["samplingAlgorithm"].get("seed") or 0
    if _algorithm(sweep) == "grid":
        return _grid_point(space, index)
    units = quantiles(_algorithm(sweep), seed, index, [*space])
    return {
        name: _value(
            distribution,
            units[name],
            lambda inner, name=name: uniform(seed, index, f"{name}.{inner}"),  # type: ignore[misc]
        )
        for name, distribution in space.items()
    }


def _algorithm(sweep: Document) -> str:
    """Return grid, bayesian, random or sobol."""
    sampling = sweep["samplingAlgorithm"]
    named = str(sampling["samplingAlgorithmType"]).lower()
    return str(sampling.get("rule") or named).lower() if named == "random" else named


def _kind(distribution: Any) -> str | None:
    """Return the name of a distribution, None if it is unknown or its numbers are invalid."""
    if not (
        isinstance(distribution, list)
        and len(distribution) == 2
        and isinstance(distribution[0], str)
        and isinstance(distribution[1], list)
    ):
        return None
    name, numbers = distribution
    if name == "choice":
        return name if len(numbers) == 1 and isinstance(numbers[0], list) and numbers[0] else None
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
        return None
    if name == "randint":
        return name if len(numbers) == 1 and isinstance(numbers[0], int) and numbers[0] > 0 else None
    if name in DISTRIBUTIONS:
        return name if len(numbers) == 2 else None
    return name if name[:1] == "q" and name[1:] in DISTRIBUTIONS and len(numbers) == 3 and numbers[2] > 0 else None


def _value(distribution: Any, unit: float, more: Callable[[str], float]) -> Any:
    """Return the value at a quantile of a distribution.

    Args:
        distribution: its wire form.
        unit: the quantile, 0 <= unit < 1.
        more: quantiles of the parameters below an option that is a mapping.
    """
    name, numbers = distribution
    if name == "choice":
        option = numbers[0][int(unit * len(numbers[0]))]
        if not isinstance(option, dict):
            return option
        return {
            key: _value(inner, more(key), lambda below, key=key: more(f"{key}.{below}"))  # type: ignore[misc]
            if _kind(inner) is not None
            else inner
            for key, inner in option.items()
        }
    if name == "randint":
        return int(unit * numbers[0])
    if name in DISTRIBUTIONS:
        return DISTRIBUTIONS[name](unit, *numbers)
    number = round(DISTRIBUTIONS[name[1:]](unit, *numbers[:2]) / numbers[2]) * numbers[2]
    return number if isinstance(number, int) else float(f"{number:.12g}")


def _grid_point(space: Document, index: int) -> dict[str, Any]:
    """Return a point of a grid; the last parameter changes fastest."""
    point = {}
    for name, (_, (options,)) in reversed(space.items()):
        index, number = divmod(index, len(options))
        point[name] = options[number]
    return {name: point[name] for name in space}


class SweepJob:
    """A running sweep, in the thread of its job.

    Args:
        job: the sweep.
        jobs: runs its trials.
        reports: returns what a trial has logged of a metric so far.
    """

    def __init__(self, job: CloudJob, jobs: Jobs, reports: Callable[[str, str], Sequence[float]]) -> None:
        self._job, self._jobs, self._reports = job, jobs, reports
        sweep, limits = job.properties, job.properties.get("limits") or {}
        self._metric = sweep["objective"]["primaryMetric"]
        self._objective = ObjectiveSpec(metric=self._metric, goal=sweep["objective"]["goal"].lower())
        self._policy = _policy(sweep.get("earlyTermination") or {})
        points = MAX_TRIALS
        if _algorithm(sweep) == "grid":
            points = math.prod(len(options) for _, (options,) in sweep["searchSpace"].values())
        self._total = min(limits.get("maxTotalTrials") or MAX_TRIALS, points)
        self._concurrent = limits.get("maxConcurrentTrials") or self._total
        self._ends = time.monotonic() + (seconds(limits.get("timeout")) or DAYS * 86400)
        self._trials: list[CloudJob] = []
        self._histories: dict[int, list[float]] = {}

    def run(self) -> tuple[str, Document | None]:
        """Run the sweep to its end; return its last status and error."""
        while not self._jobs.closing:
            running = [trial for trial in self._trials if trial.status not in ENDED]
            self._judge()
            if self._job.status == CANCEL_REQUESTED or time.monotonic() > self._ends:
                for trial in running:
                    self._jobs.cancel(trial)
                if not running:
                    break
            elif len(running) < self._concurrent and len(self._trials) < self._total:
                self._start()
                continue
            elif not running:
                if all(trial.status == FAILED for trial in self._trials):
                    return FAILED, {"code": "UserError", "message": "All trials of the sweep have failed."}
                return COMPLETED, None
            self._jobs.pause(POLL_SECONDS)
        return CANCELED, None

    def _judge(self) -> None:
        """Judge each new report, and note the best trial so far in the sweep's properties."""
        for number, trial in enumerate(self._trials):
            history, reports = self._histories[number], self._reports(trial.name, self._metric)
            while len(history) < len(reports):
                history.append(reports[len(history)])
                # report by report, also when several arrived since the last look: the decision must not depend on the
                # speed of this machine
                if self._falls_behind(number) and trial.status not in ENDED:
                    self._jobs.cancel(trial)
        maximize = self._objective.goal == "maximize"
        scores = {
            trial.name: score
            for number, trial in enumerate(self._trials)
            if trial.status != FAILED and math.isfinite(score := best(self._histories[number], maximize=maximize))
        }
        if scores:
            # these two properties are how clients find the best trial, such as `jobs.download`
            top = (max if maximize else min)(scores, key=lambda name: scores[name])
            before = self._job.properties.get("properties") or {}
            self._job.properties["properties"] = {**before, "best_child_run_id": top, "score": str(scores[top])}

    def _falls_behind(self, number: int) -> bool:
        """Return whether the policy stops a trial at its last report; values that are not finite count for none."""
        if not math.isfinite(self._histories[number][-1]):
            return False
        decision = judge(self._policy, self._objective, self._histories, number)
        return decision is not None and decision.stop

    def _start(self) -> None:
        number = len(self._trials)
        name = f"{self._job.name}_{number}"
        properties = _trial(self._job.properties, name, draw(self._job.properties, number))
        self._histories[number] = []
        self._trials.append(self._jobs.submit(name, properties, parent=self._job.name))


def _trial(sweep: Document, name: str, point: Mapping[str, Any]) -> Document:
    """Return the command job of a point."""
    trial, limit = sweep["trial"], (sweep.get("limits") or {}).get("trialTimeout")
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in point.items()}
    variables = {f"AZUREML_SWEEP_{key}": value for key, value in values.items()}
    outputs = {key: dict(output) for key, output in (sweep.get("outputs") or {}).items()}
    for output in outputs.values():
        if output.get("uri") is not None:  # `${{name}}` in its path is the trial's own name
            output["uri"] = re.sub(r"\${{\s*name\s*}}", name, output["uri"])
    return {
        **{key: sweep[key] for key in SWEEP_KEYS if key in sweep},
        **{key: trial[key] for key in TRIAL_KEYS if key in trial},
        "jobType": "Command",
        "displayName": name,
        "command": BINDING.sub(lambda binding: values[binding["name"]], trial["command"]),
        "environmentVariables": {**(trial.get("environmentVariables") or {}), **variables},
        "outputs": outputs,
        "tags": {HYPERPARAMETERS: json.dumps(point)},
        "properties": {},
        **({"limits": {"jobLimitsType": "Command", "timeout": limit}} if limit else {}),
    }


def _policy(wire: Document) -> TerminationSpec:
    """Return the policy of a wire form; an interval of 0, which azure-ai-ml sends if none is given, counts as 1."""
    if not wire:
        return TerminationSpec()
    numbers = {"interval": wire.get("evaluationInterval") or 1, "delay": wire.get("delayEvaluation") or 0}
    if wire["policyType"] == "Bandit":
        factor = {"slack_factor": wire["slackFactor"]} if wire.get("slackFactor") else {}
        return TerminationSpec(policy="bandit", **(factor or {"slack_amount": wire["slackAmount"]}), **numbers)
    if wire["policyType"] == "TruncationSelection":
        return TerminationSpec(policy="truncation", percentage=wire["truncationPercentage"], **numbers)
    return TerminationSpec(policy="median", **numbers)
