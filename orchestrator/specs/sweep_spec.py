"""The spec of a sweep: a job, its search space, the sampling, the objective and the limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from orchestrator.specs.names import Slug
from orchestrator.specs.settings import Settings
from orchestrator.specs.space import Parameter, Space, all_parameters
from orchestrator.support.html import settings_card
from train_jobs.artifacts.layers import KeyPath
from train_jobs.config.fields import NAMED, Config

Positive = Annotated[int, Field(gt=0)]
Hours = Annotated[float, Field(gt=0)]
MAX_TRIALS = 1000  # Azure's limit
POLICY_OF_KEY = {
    "slack_factor": "bandit",
    "slack_amount": "bandit",
    "percentage": "truncation",
    "reduction_factor": "asha",
    "p_value": "wilcoxon",
}  # key of `early_termination` -> the only policy that uses it


OLD_DRIVERS = {"azure": "service"}  # value of `driver` in earlier versions -> its name now; old sweeps still have it


class SamplingSpec(Config):
    """The sampling of the space."""

    name: Literal["random", "sobol", "grid", "bayesian", "tpe", "gp"] = "random"
    """Sampling method. sobol: evenly spread points. grid: every combination, if all parameters are choices. tpe, gp:
    near good earlier trials, by a tree of Parzen estimators or a Gaussian process. bayesian: tpe, or Azure's own."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed. With random and sobol, trial i depends only on space, seed and i; Azure's service draws other points."""


class TerminationSpec(Config):
    """Early termination of trials. Policies count reports: values of the metric that a trial has logged."""

    policy: Literal["none", "bandit", "median", "truncation", "asha", "wilcoxon"] = "none"
    """Trials to stop. bandit: best report outside a slack of the overall best. median: best report worse than the
    median of all running means. truncation: the worst percentage. asha: not in the top of a rung. wilcoxon:
    significantly worse than the best trial over all seeds. Azure's service has only the first three."""
    interval: Positive = 1
    """Number of reports between two evaluations of the policy. asha: number of reports of the first rung."""
    delay: Annotated[int, Field(ge=0)] = 0
    """Minimum number of reports before a trial can be stopped."""
    slack_factor: Annotated[float, Field(gt=0)] | None = None
    """bandit: ratio to the best trial; 0.2 stops below best / 1.2 or, to minimize, above best x 1.2. For metrics that
    are never negative: below 0, Azure's rule stops even the best trial."""
    slack_amount: Annotated[float, Field(gt=0)] | None = None
    """bandit: maximum distance from the best trial, in the unit of the metric."""
    percentage: Annotated[int, Field(ge=1, le=99)] | None = None
    """truncation: percentage of trials to stop, among those with the same number of reports."""
    reduction_factor: Annotated[int, Field(ge=2)] | None = None
    """asha: factor N; the best one in N trials continues to the next rung, which has N times the reports."""
    p_value: Annotated[float, Field(ge=0.001, lt=1)] | None = None
    """wilcoxon: significance level of the one-sided test against the best trial, seed by seed."""

    @model_validator(mode="after")
    def _keys_fit(self) -> TerminationSpec:
        given = [key for key in POLICY_OF_KEY if getattr(self, key) is not None]
        if foreign := [key for key in given if POLICY_OF_KEY[key] != self.policy]:
            raise ValueError(f"policy {self.policy} does not use {', '.join(foreign)}")
        own = [key for key, policy in POLICY_OF_KEY.items() if policy == self.policy]
        if own and len(given) != 1:
            raise ValueError(f"policy {self.policy} needs {' or '.join(own)}{', not both' if given else ''}")
        return self


class LimitsSpec(Config):
    """The limits of a sweep."""

    trials: Annotated[int, Field(gt=0, le=MAX_TRIALS)] | None = None
    """Number of trials; each runs all seeds. None: the whole grid, if the sampling is grid."""
    concurrent: Annotated[int, Field(gt=0, le=100)] = 1
    """Trials that run at the same time."""
    hours: Hours | None = None
    """Hours after which no more trials start, and running ones are cancelled. None: no limit."""
    trial_hours: Hours | None = None
    """Hours after which a trial is cancelled; its reports up to then count. None: no limit."""
    retries: Annotated[int, Field(ge=0)] = 1
    """Retries of a run that failed, unless its input is invalid, each from its last checkpoint. Azure's service does
    not retry."""
    cost: Annotated[float, Field(gt=0)] | None = None
    """Maximum cost of all trials in USD, at the trial's price; above it, as after `hours`. None: no limit."""


class ObjectiveSpec(Config):
    """The objective of a sweep."""

    metric: Annotated[str, Field(min_length=1)] = "validation_loss"
    """Metric that trials are compared by, under the name that the job logs."""
    goal: Literal["minimize", "maximize"] = "minimize"
    """Whether lower or higher values are better."""
    reduction: Literal["best", "last"] = "best"
    """Outcome of a trial: its best report, or its last."""
    over_seeds: Literal["median", "mean"] = "median"
    """Reduction over seeds, for the k-th reports of all seeds."""


class SweepSpec(Config):
    """A sweep."""

    kind: Literal["sweep"] = "sweep"
    """Kind of the spec."""
    recipe: str | None = None
    """Sweep preset; the other keys override its values. None: no preset."""
    name: Slug | None = None
    """First part of the sweep's name, before the hash. None: sweep-KIND-RECIPE of the trial."""
    driver: Literal["auto", "here", "service"] = "auto"
    """What draws points, starts and stops trials. here: a process on this machine, wherever the trials run. service:
    the sweep service of the trial's backend, such as Azure's. auto: service if the backend has one, else here."""
    trial: dict[str, Any] = Field(default={})
    """The job that is varied: a job spec, or the path of one."""
    space: dict[str, Parameter]
    """Dotted setting of the job -> its parameter."""
    sampling: SamplingSpec = SamplingSpec()
    early_termination: TerminationSpec = TerminationSpec()
    limits: LimitsSpec = LimitsSpec()
    objective: ObjectiveSpec = ObjectiveSpec()
    warm_start: list[Annotated[str, Field(min_length=1)]] = Field(default=[])
    """Earlier sweeps of the same job, metric and goal: names, unique prefixes, or @last. tpe and gp start from the
    outcomes of their trials, which are not run again."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field(default=[])
    """Seeds: every trial runs once with each of them, and is judged by all runs. Empty: one run, the trial's seed."""
    keep_best: Positive | Literal["auto", "all"] = "auto"
    """Number of best trials that keep checkpoints and models. The others keep only metrics, logs and records. auto: 3
    on this machine, all elsewhere. all: every trial."""
    trials_per_gpu: Positive = 1
    """Number of trials that share a GPU of this machine. On CPUs, `limits.concurrent` trials share the cores."""

    @field_validator("driver", mode="before")
    @classmethod
    def _rename_driver(cls, written: Any) -> Any:
        return OLD_DRIVERS.get(written, written) if isinstance(written, str) else written

    @field_validator("sampling", mode="before")
    @classmethod
    def _expand_sampling(cls, written: Any) -> Any:
        return {"name": written} if isinstance(written, str) else written

    @field_validator("early_termination", mode="before")
    @classmethod
    def _expand_policy(cls, written: Any) -> Any:
        return {"policy": written} if isinstance(written, str) else written

    @property
    def replicates(self) -> int:
        """Number of runs of each trial."""
        return max(1, len(self.seeds))

    def _repr_html_(self) -> str:
        """Return the written settings as HTML for a notebook."""
        return settings_card(f"sweep {self.name or ''}".rstrip(), self.model_dump(mode="json", exclude_unset=True))


def contradictions(spec: SweepSpec) -> Iterator[tuple[KeyPath, str]]:
    """Yield the contradictions of a spec that do not depend on its trial: key and message."""
    if not spec.space:
        yield ("space",), "no parameters"
    yield from _overlapping_parameters(spec)
    for name, _, parameter in all_parameters(spec.space):
        if parameter.undrawable is not None:
            yield ("space", name.split("[")[0]), parameter.undrawable
    if spec.sampling.name == "grid":
        for name, _, parameter in all_parameters(spec.space):
            if not parameter.finite:
                top = name.split("[")[0]
                yield ("space", top), f"grid sampling needs choices, {name} is a {parameter.kind}"
    elif spec.limits.trials is None:
        yield ("limits", "trials"), f"{spec.sampling.name} sampling needs a number of trials"
    if spec.warm_start and spec.sampling.name in {"random", "sobol", "grid"}:
        yield ("warm_start",), f"{spec.sampling.name} sampling does not use earlier trials; tpe and gp do"
    if len(set(spec.seeds)) < len(spec.seeds):
        yield ("seeds",), "a repeated seed would repeat the same run"
    policy = spec.early_termination
    if policy.policy == "wilcoxon":
        assert policy.p_value is not None
        # The smallest possible p-value of n pairs is 0.5**n: with fewer seeds the policy could never stop a trial.
        if not spec.seeds or 0.5 ** len(spec.seeds) >= policy.p_value:
            need = next(count for count in range(1, 11) if 0.5**count < policy.p_value)
            yield (
                ("early_termination", "policy"),
                f"wilcoxon at p_value {policy.p_value:g} needs at least {need} seeds, there are {len(spec.seeds)}",
            )


def _overlapping_parameters(spec: SweepSpec) -> Iterator[tuple[KeyPath, str]]:
    """Yield the settings that two parameters would both set: key and message."""
    for key, parameter in spec.space.items():
        below = {path for _, path, _ in all_parameters({key: parameter}) if path != key}
        for other in spec.space:
            if other != key and (other in below or other.startswith(f"{key}.")):
                yield ("space", other), f"is also set by {key}"


def as_tree(values: Settings) -> dict[str, Any]:
    """Return dotted settings as nested sections; the short form `optimizer: lamb` becomes `optimizer: {name: lamb}`."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        parts = path.split(".")
        if path in NAMED and isinstance(value, str):
            parts.append("name")
        section = tree
        for part in parts[:-1]:
            section = section.setdefault(part, {})
        section[parts[-1]] = value
    return tree


def size(parameter: Parameter) -> int:
    """Return the number of options of a choice or a randint."""
    return parameter.randint if parameter.randint is not None else len(parameter.options)


def grid_size(space: Space) -> int:
    """Return the number of points of a space's grid."""
    return math.prod(parameter.randint or sum(option_sizes(parameter)) for parameter in space.values())


def trial_count(spec: SweepSpec) -> int:
    """Return the number of trials of a sweep: its limit, at most the points of the grid."""
    limit = spec.limits.trials
    if spec.sampling.name != "grid":
        assert limit is not None, "only a grid is finite"
        return limit
    points = grid_size(spec.space)
    return points if limit is None else min(points, limit)


def option_sizes(parameter: Parameter) -> list[int]:
    """Return the number of grid points for each option of a choice; an option that is a mapping has several."""
    return [1 if option.space is None else grid_size(option.space) for option in parameter.options]
