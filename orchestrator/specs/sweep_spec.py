"""The spec of a sweep: a job, its search space, the sampling, the objective and the limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from orchestrator.specs.job import Slug
from orchestrator.specs.settings import Settings
from orchestrator.specs.space import Parameter, Space, all_parameters
from orchestrator.support.html import settings_card
from train_jobs.artifacts.layers import KeyPath
from train_jobs.config.fields import NAMED, Config

Positive = Annotated[int, Field(gt=0)]
Hours = Annotated[float, Field(gt=0)]
MAX_TRIALS = 1000  # Azure's limit, and more than a person can review
POLICY_OF_KEY = {
    "slack_factor": "bandit",
    "slack_amount": "bandit",
    "percentage": "truncation",
    "reduction_factor": "asha",
    "p_value": "wilcoxon",
}  # key of `early_termination` that one policy has -> that policy


OLD_DRIVERS = {"azure": "service"}  # word of earlier versions, in files and records -> today's


class SamplingSpec(Config):
    """The sampling of the space."""

    name: Literal["random", "sobol", "grid", "bayesian", "tpe", "gp"] = "random"
    """random; sobol: spread evenly; grid: every combination, of choices alone; tpe, gp: where earlier trials did well,
    by a tree of Parzen estimators or a Gaussian process. bayesian: tpe, and on Azure's service its own."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Trial i of random and sobol is a function of the space, this and i. Azure's service makes other points of it."""


class TerminationSpec(Config):
    """Which trials are stopped early. What counts are reports: the k-th value of the metric that a trial logged."""

    policy: Literal["none", "bandit", "median", "truncation", "asha", "wilcoxon"] = "none"
    """bandit: whose best is not within a slack of the best. median: whose best is worse than the median of running
    means. truncation: the worst percentage. asha: who is not in the top of a rung. wilcoxon: who is worse than the best
    trial over all seeds. The first three are Azure's, exactly; the others are this machine's alone."""
    interval: Positive = 1
    """Reports between two looks. asha: reports of the first rung."""
    delay: Annotated[int, Field(ge=0)] = 0
    """Reports of a trial before it can be stopped."""
    slack_factor: Annotated[float, Field(gt=0)] | None = None
    """bandit: a ratio: to be maximised, 0.2 stops below best / 1.2; to be minimised, above best x 1.2. Above 0 only."""
    slack_amount: Annotated[float, Field(gt=0)] | None = None
    """bandit: largest distance from the best trial, in the unit of the metric."""
    percentage: Annotated[int, Field(ge=1, le=99)] | None = None
    """truncation: percentage of trials to stop, among those with as many reports."""
    reduction_factor: Annotated[int, Field(ge=2)] | None = None
    """asha: factor N: one in N trials continues to the next rung, which takes N times the reports."""
    p_value: Annotated[float, Field(ge=0.001, lt=1)] | None = None
    """wilcoxon: stopped if a difference such as that to the best trial, seed by seed, is less likely than this."""

    @model_validator(mode="after")
    def _keys_fit(self) -> TerminationSpec:
        given = [key for key in POLICY_OF_KEY if getattr(self, key) is not None]
        if foreign := [key for key in given if POLICY_OF_KEY[key] != self.policy]:
            raise ValueError(f"{', '.join(foreign)}: not for policy {self.policy}")
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
    """Hours after which no trial starts, and running ones are cancelled. None: no limit."""
    trial_hours: Hours | None = None
    """Hours after which a trial is cancelled; what it reported until then counts. None: no limit."""
    retries: Annotated[int, Field(ge=0)] = 1
    """Retries of a run that failed for a reason other than its input, each from its last checkpoint. Azure's own
    service does not retry."""
    cost: Annotated[float, Field(gt=0)] | None = None
    """USD that all trials together may cost, by `compute.price_per_hour` of the trial; then as after `hours`."""


class ObjectiveSpec(Config):
    """The objective of a sweep."""

    metric: Annotated[str, Field(min_length=1)] = "validation_loss"
    """Metric that trials are compared by, as the job logs it."""
    goal: Literal["minimize", "maximize"] = "minimize"
    """Whether less or more of it is better."""
    reduction: Literal["best", "last"] = "best"
    """Outcome of a trial: the best of its reports, or the last."""
    over_seeds: Literal["median", "mean"] = "median"
    """Reduction over seeds: the k-th reports of all seeds become one."""


class SweepSpec(Config):
    """A sweep."""

    kind: Literal["sweep"] = "sweep"
    """Which spec this is."""
    recipe: str | None = None
    """Sweep preset that the other keys are laid over. None: none."""
    name: Slug | None = None
    """First part of the sweep's name, before the hash. None: sweep-KIND-RECIPE of the trial."""
    driver: Literal["auto", "here", "service"] = "auto"
    """Who draws points, starts and stops trials. here: a process of this machine, wherever trials run. service: the
    sweep service of the trial's backend, which Azure has. auto: service where the backend has one, else here."""
    trial: dict[str, Any] = Field(default={})
    """The job that is varied: a job spec, or the path of one."""
    space: dict[str, Parameter]
    """Dotted setting of the job -> its parameter."""
    sampling: SamplingSpec = SamplingSpec()
    early_termination: TerminationSpec = TerminationSpec()
    limits: LimitsSpec = LimitsSpec()
    objective: ObjectiveSpec = ObjectiveSpec()
    warm_start: list[Annotated[str, Field(min_length=1)]] = Field(default=[])
    """Earlier sweeps of the same job, metric and goal, by name, its beginning, or @last: tpe and gp start from the
    outcomes of their trials, which are not run again."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field(default=[])
    """Every point is run with each of these and judged by all of them together. Empty: once, with the trial's own."""
    keep_best: Positive | Literal["auto", "all"] = "auto"
    """Number of best trials that keep checkpoints and models; others lose them when they end, and keep metrics, logs
    and records. auto: 3 on this machine, all elsewhere. all: every trial keeps its own."""
    trials_per_gpu: Positive = 1
    """Trials that share a GPU of this machine. On CPUs its cores are shared out over `limits.concurrent`."""

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
        """Runs of each trial."""
        return max(1, len(self.seeds))

    def _repr_html_(self) -> str:
        """Return the written settings as HTML for a notebook."""
        return settings_card(f"sweep {self.name or ''}".rstrip(), self.model_dump(mode="json", exclude_unset=True))


def contradictions(spec: SweepSpec) -> Iterator[tuple[KeyPath, str]]:
    """Yield contradictions that are independent of the trial: key and problem."""
    if not spec.space:
        yield ("space",), "nothing varies"
    yield from _overlapping_parameters(spec)
    if spec.sampling.name == "grid":
        for name, _, parameter in all_parameters(spec.space):
            if not parameter.finite:
                top = name.split("[")[0]
                yield ("space", top), f"grid sampling goes through choices alone, and {name} is a {parameter.kind}"
    elif spec.limits.trials is None:
        yield ("limits", "trials"), f"{spec.sampling.name} sampling needs a number of trials"
    if spec.warm_start and spec.sampling.name in {"random", "sobol", "grid"}:
        yield ("warm_start",), f"{spec.sampling.name} sampling looks at no other trials: sampling tpe or gp does"
    if len(set(spec.seeds)) < len(spec.seeds):
        yield ("seeds",), "a repeated seed would repeat the same run"
    policy = spec.early_termination
    if policy.policy == "wilcoxon":
        assert policy.p_value is not None
        if not spec.seeds or 0.5 ** len(spec.seeds) >= policy.p_value:
            need = next(count for count in range(1, 11) if 0.5**count < policy.p_value)
            yield (
                ("early_termination", "policy"),
                f"wilcoxon at p_value {policy.p_value:g} needs at least {need} seeds, there are {len(spec.seeds)}",
            )


def _overlapping_parameters(spec: SweepSpec) -> Iterator[tuple[KeyPath, str]]:
    """Yield settings that two parameters would both set."""
    for key, parameter in spec.space.items():
        below = {path for _, path, _ in all_parameters({key: parameter}) if path != key}
        for other in spec.space:
            if other != key and (other in below or other.startswith(f"{key}.")):
                yield ("space", other), f"is also decided by {key}"


def as_tree(values: Settings) -> dict[str, Any]:
    """Dotted settings as nested sections; a name that stands for a section is written out, `optimizer.name`."""
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
    """Points of the grid."""
    return math.prod(sum(option_sizes(parameter)) for parameter in space.values())


def trial_count(spec: SweepSpec) -> int:
    """Return the number of trials of a sweep: its limit, at most the points of the grid."""
    limit = spec.limits.trials
    if spec.sampling.name != "grid":
        assert limit is not None, "only a grid is finite"
        return limit
    points = grid_size(spec.space)
    return points if limit is None else min(points, limit)


def option_sizes(parameter: Parameter) -> list[int]:
    """Points of the grid behind each of a parameter's values."""
    if parameter.randint is not None:
        return [1] * parameter.randint
    return [1 if option.space is None else grid_size(option.space) for option in parameter.options]
