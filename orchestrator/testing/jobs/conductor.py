"""Conducts a sweep job as the service does: draws points, runs each as a command job, stops those that fall behind."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Sequence

from orchestrator.specs.sweep_spec import ObjectiveSpec, TerminationSpec
from orchestrator.sweeps.policy.termination import best, judge
from orchestrator.testing.cloud_state import Document
from orchestrator.testing.jobs import drawn_points
from orchestrator.testing.jobs.drawn_points import Point
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

LOOK_SECONDS = 0.03
MOST_TRIALS, DAYS = 1000, 60
BINDING = re.compile(r"\${{\s*search_space\.(?P<name>\w+)\s*}}")
OF_THE_TRIAL = ("codeId", "environmentId", "distribution", "environmentVariables", "resources")
OF_THE_SWEEP = ("computeId", "experimentName", "identity", "inputs")
HYPERPARAMETERS = "hyperparameters"  # tag of a child
Reports = Callable[[str, str], Sequence[float]]


def problems(sweep: Document) -> list[str]:
    """What the service refuses of a sweep beyond its schema."""
    found = list(drawn_points.problems(sweep))
    policy = sweep.get("earlyTermination") or {}
    if policy.get("policyType") == "Bandit" and bool(policy.get("slackFactor")) == bool(policy.get("slackAmount")):
        found.append("A bandit policy needs either slackFactor or slackAmount.")
    known = {binding["name"] for binding in BINDING.finditer(sweep["trial"]["command"])}
    found += [
        f"The command names {name}, which is not in the search space." for name in known - {*sweep["searchSpace"]}
    ]
    return found


class Conductor:
    """Conducts sweeps.

    Args:
        jobs: where children are submitted.
        reports: what a child has logged of a metric so far, in the order in which it did.
    """

    def __init__(self, jobs: Jobs, reports: Reports) -> None:
        self._jobs = jobs
        self._reports = reports

    def __call__(self, job: CloudJob) -> tuple[str, Document | None]:
        """Conducts a sweep to its end; returns its last status, and the error that goes with it."""
        return _Sweep(job, self._jobs, self._reports).conduct()


class _Sweep:
    def __init__(self, job: CloudJob, jobs: Jobs, reports: Reports) -> None:
        self._job, self._jobs, self._reports = job, jobs, reports
        sweep, limits = job.properties, job.properties.get("limits") or {}
        self._metric = sweep["objective"]["primaryMetric"]
        self._objective = ObjectiveSpec(metric=self._metric, goal=sweep["objective"]["goal"].lower())
        self._policy = _policy(sweep.get("earlyTermination"))
        self._total = min(limits.get("maxTotalTrials") or MOST_TRIALS, drawn_points.count(sweep) or MOST_TRIALS)
        self._concurrent = limits.get("maxConcurrentTrials") or self._total
        self._ends = time.monotonic() + (seconds(limits.get("timeout")) or DAYS * 86400)
        self._children: list[CloudJob] = []
        self._histories: dict[int, list[float]] = {}

    def conduct(self) -> tuple[str, Document | None]:
        while not self._jobs.closing:
            going = [child for child in self._children if child.status not in ENDED]
            self._look()
            if self._job.status == CANCEL_REQUESTED or time.monotonic() > self._ends:
                for child in going:
                    self._jobs.cancel(child)
                if not going:
                    return CANCELED, None
            elif len(going) < self._concurrent and len(self._children) < self._total:
                self._begin()
                continue
            elif not going:
                return self._outcome()
            self._jobs.pause(LOOK_SECONDS)
        return CANCELED, None

    def _look(self) -> None:
        """Judges each report that is new, and says which child is the best so far."""
        for number, child in enumerate(self._children):
            history, reports = self._histories[number], self._reports(child.name, self._metric)
            while len(history) < len(reports):
                history.append(reports[len(history)])
                if self._falls_behind(number, history[-1]) and child.status not in ENDED:
                    self._jobs.cancel(child)
        maximize = self._objective.goal == "maximize"
        scores = {
            child.name: score
            for number, child in enumerate(self._children)
            if child.status != FAILED and math.isfinite(score := best(self._histories[number], maximize=maximize))
        }
        if scores:
            top = (max if maximize else min)(scores, key=lambda name: scores[name])
            told = {
                **(self._job.properties.get("properties") or {}),
                "best_child_run_id": top,
                "score": str(scores[top]),
            }
            self._job.properties["properties"] = told

    def _falls_behind(self, number: int, value: float) -> bool:
        """What the policy says of a child's last report; of one that is no number the service says nothing."""
        if not math.isfinite(value):
            return False
        decision = judge(self._policy, self._objective, self._histories, number)
        return decision is not None and decision.stop

    def _begin(self) -> None:
        number = len(self._children)
        name, point = f"{self._job.name}_{number}", drawn_points.draw(self._job.properties, number)
        self._histories[number] = []
        self._children.append(self._jobs.submit(name, _child(self._job, name, point), parent=self._job.name))

    def _outcome(self) -> tuple[str, Document | None]:
        if all(child.status == FAILED for child in self._children):
            return FAILED, {"code": "UserError", "message": "All trials of the sweep have failed."}
        return COMPLETED, None


def _child(sweep: CloudJob, name: str, point: Point) -> Document:
    """The command job of a point."""
    properties, trial = sweep.properties, sweep.properties["trial"]
    values = {key: drawn_points.text(value) for key, value in point.items()}
    variables = {f"AZUREML_SWEEP_{key}": value for key, value in values.items()}
    limit = (properties.get("limits") or {}).get("trialTimeout")
    return {
        **{field: properties[field] for field in OF_THE_SWEEP if field in properties},
        **{field: trial[field] for field in OF_THE_TRIAL if field in trial},
        "jobType": "Command",
        "displayName": name,
        "command": BINDING.sub(lambda found: values[found["name"]], trial["command"]),
        "environmentVariables": {**(trial.get("environmentVariables") or {}), **variables},
        "outputs": {key: _named(output, name) for key, output in (properties.get("outputs") or {}).items()},
        "tags": {HYPERPARAMETERS: json.dumps(point)},
        "properties": {},
        **({"limits": {"jobLimitsType": "Command", "timeout": limit}} if limit else {}),
    }


def _named(output: Document, name: str) -> Document:
    """An output with the job's own name in the place of `${{name}}` of its path."""
    uri = output.get("uri")
    return output if uri is None else {**output, "uri": re.sub(r"\${{\s*name\s*}}", name, uri)}


def _policy(wire: Document | None) -> TerminationSpec:
    """A policy of the wire; an interval of 0, which azure-ai-ml sends for none given, is taken for 1."""
    if not wire:
        return TerminationSpec()
    told = {"interval": wire.get("evaluationInterval") or 1, "delay": wire.get("delayEvaluation") or 0}
    if wire["policyType"] == "Bandit":
        factor = {"slack_factor": wire["slackFactor"]} if wire.get("slackFactor") else {}
        return TerminationSpec(policy="bandit", **(factor or {"slack_amount": wire["slackAmount"]}), **told)
    if wire["policyType"] == "TruncationSelection":
        return TerminationSpec(policy="truncation", percentage=wire["truncationPercentage"], **told)
    return TerminationSpec(policy="median", **told)
