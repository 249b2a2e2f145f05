"""A validated spec with the origin of each value; the problems of one that is not valid; settings without effect."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.job import JobSpec
from orchestrator.specs.site import Rule, Site, site_of
from orchestrator.support.errors import SpecError
from train_jobs.config import TextConfig
from train_jobs.config.fields import Config, is_user_code
from train_jobs.config.pretrain import OptimizerConfig, ScheduleConfig

PROJECT_FILE = "orchestrator.yaml"
PRESETS = Path(__file__).resolve().parent.parent / "presets"


class Flag(NamedTuple):
    """A value given by a flag of the command line or an argument of the SDK, and its name in messages."""

    value: Any
    name: str


class Change(Config, populate_by_name=True):
    """A value that differs from preset and default, and its origin."""

    value: Any
    """In the form of JSON."""
    origin: str = Field(alias="from")
    """`FILE:LINE`, a flag, a variable, or the model that a prediction is made by."""


@dataclass(frozen=True)
class Resolved:
    """A validated spec with the origin of its values.

    Attributes:
        spec: what the user wants.
        compute: `spec.compute` with every `auto` decided for this machine.
        origins: dotted path -> where the value was written (preset, file, variable, flag); defaults are not in it.
        changes: dotted path -> value and origin of what differs from the chosen presets and the defaults.
        warnings: settings without effect, unknown variables.
    """

    spec: JobSpec
    compute: ResolvedCompute
    origins: dict[str, str]
    changes: dict[str, Change]
    warnings: tuple[str, ...]

    @property
    def site(self) -> Site:
        """Site of the run's backend."""
        return site_of(self.spec.backend)


def find_project(folder: Path) -> Path | None:
    """Return the project config of `folder`: orchestrator.yaml in it or in the nearest parent that has one."""
    here = folder.absolute()
    return next((path for parent in (here, *here.parents) if (path := parent / PROJECT_FILE).is_file()), None)


def shown(path: Path, here: Path) -> str:
    """Return a path for messages: relative if it is inside the current folder."""
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


class SpecProblems:
    """The `SpecError`s met so far."""

    def __init__(self) -> None:
        self._failures: list[SpecError] = []

    def __bool__(self) -> bool:
        return bool(self._failures)

    def extend(self, problems: Iterable[str]) -> None:
        """Add problems whose text contains their place."""
        self._failures += [SpecError(problem, problems=[problem]) for problem in problems]

    @contextmanager
    def collecting(self, where: object = None) -> Iterator[None]:
        """Collect a `SpecError` raised inside the block; `where` is its place, unless it names one itself."""
        try:
            yield
        except SpecError as failure:
            if where is not None:
                failure.facts.setdefault("where", where)
            self._failures.append(failure)

    def raise_all(self, what: str) -> None:
        """Raise the collected failures: a single one unchanged, several as one."""
        if len(self._failures) == 1 and not self._failures[0].problems:
            raise self._failures[0]
        lines = [line for failure in self._failures for line in failure.problems or [_one_line(failure)]]
        if lines:
            raise SpecError(f"the {what} has {len(lines)} problem{'s' if len(lines) > 1 else ''}", problems=lines)


def _one_line(failure: SpecError) -> str:
    where = f"{failure.facts['where']}: " if "where" in failure.facts else ""
    known = f" (known: {failure.facts['known']})" if "known" in failure.facts else ""
    fix = f"; fix: {failure.fix}" if failure.fix else ""
    return f"{where}{failure.message}{known}{fix}"


DECAYS = (
    ("power", "polynomial"),
    ("continuous", "polynomial"),
    ("decay_rate", "exponential"),
    ("decay_steps", "exponential"),
)  # keys of `schedule` that one of its shapes has
OF_FOLDER = ("largest_file_mb", "largest_total_mb", "allow_secrets")  # keys of `code` that are about `code.folder`


def ignored_settings(
    job: JobSpec, changed: Container[str], rules: Iterable[Rule], own: Collection[str] = ()
) -> list[str]:
    """Return a warning for each key that the user changed and that `job` does not use in full.

    Args:
        job: the spec.
        changed: dotted paths that the user wrote.
        rules: of the kind of job.
        own: keys that name a class of the user's own.
    """
    code = job.code
    ours = code.entry.startswith("train_jobs.") and not own
    site = site_of(job.backend)
    shared = [
        *site.ignored(job),
        *_of_other_sites(job, site),
        ("code.folder", ours, f"{code.entry} runs, and no section names a class of it"),
        *((f"code.{key}", code.folder is None, "code.folder is not set") for key in OF_FOLDER),
    ]
    return [f"{key} has no effect: {why}" for key, applies, why in [*rules, *shared] if applies and key in changed]


def engine_rules(optimizer: OptimizerConfig, schedule: ScheduleConfig, world_size: int) -> list[Rule]:
    """Return the rules about settings of training that depend on each other."""
    return [
        ("optimizer.sharded", world_size == 1, "there is one process"),
        ("optimizer.trust_ratio", optimizer.name == "adamw", "adamw has none"),
        *(
            (
                f"schedule.{key}",
                schedule.name != shape and not is_user_code(schedule.name),
                f"it is of {shape} decay, schedule.name is {schedule.name}",
            )
            for key, shape in DECAYS
        ),
    ]


def vocabulary_rule(data: TextConfig) -> Rule:
    """Return the rule about the size of a vocabulary that is not trained."""
    return ("data.vocab_size", data.vocabulary is not None, "data.vocabulary has its own size")


def _of_other_sites(job: JobSpec, site: Site) -> Iterator[Rule]:
    """Yield keys that other sites than the job's have."""
    for other in (site_of(name) for name in job.sections if name != job.backend):
        keys = [f"compute.{key}" for key in other.compute_keys if key not in site.compute_keys]
        keys += [f"{other.name}.{key}" for key in type(getattr(job, other.name)).model_fields]
        why = f"it is for the {other.name} backend, and the run goes to {job.backend}"
        yield from ((key, True, why) for key in keys)
