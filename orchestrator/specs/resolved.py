"""A validated spec with the origin of each value, the problems of an invalid one, and settings without effect."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.job import JobSpec
from orchestrator.specs.site import Rule, Site, site_of
from orchestrator.support.errors import SpecError
from orchestrator.support.formatting import counted
from orchestrator.support.redact import redact
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
    """The value as JSON."""
    origin: str = Field(alias="from")
    """Where it was set: `FILE:LINE`, a flag, a variable, or the model of a prediction."""


@dataclass(frozen=True)
class Resolved:
    """A validated spec with the origin of its values.

    Attributes:
        spec: the validated spec.
        compute: `spec.compute` with every `auto` resolved.
        origins: dotted path -> where the value was set (preset, file, variable, flag); without defaults.
        changes: dotted path -> value and origin of the values that differ from presets and defaults.
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
    """Return orchestrator.yaml in a folder or in its nearest parent that has one; None: not found."""
    here = folder.absolute()
    return next((path for parent in (here, *here.parents) if (path := parent / PROJECT_FILE).is_file()), None)


def display_path(path: Path, here: Path) -> str:
    """Return a path for messages: relative if it is inside the folder `here`, else unchanged."""
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


class SpecProblems:
    """Collector of the problems of a spec, so that users see all of them in one error instead of one per attempt."""

    def __init__(self) -> None:
        self._failures: list[SpecError] = []

    def __bool__(self) -> bool:
        return bool(self._failures)

    def extend(self, problems: Iterable[str]) -> None:
        """Add problems as text, each with its place in it."""
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

    def raise_all(self, what: str, fixes: Mapping[str, str] | None = None) -> None:
        """Raise the collected problems, if there are any.

        Args:
            what: name of the invalid thing in the message, such as `spec`.
            fixes: problem -> flag that fixes it; shown together if they fix all problems.

        Raises:
            SpecError: the only problem unchanged, or one error that lists several.
        """
        if len(self._failures) == 1 and not self._failures[0].problems:
            raise self._failures[0]
        # redacted: a refused value may be an address with a signature, or a token in the wrong place
        lines = [redact(line) for failure in self._failures for line in failure.problems or [_one_line(failure)]]
        if lines:
            flags = [(fixes or {}).get(line, "") for line in lines]
            fix = " ".join(flags) if all(flags) else None
            raise SpecError(f"the {what} has {counted(len(lines), 'problem')}", problems=lines, fix=fix)


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
)  # key of `schedule` -> the only shape that uses it
FOLDER_KEYS = ("largest_file_mb", "largest_total_mb", "allow_secrets")  # keys of `code` that need `code.folder`


def ignored_settings(
    job: JobSpec, changed: Container[str], rules: Iterable[Rule], own: Collection[str] = ()
) -> list[str]:
    """Return a warning for each key that the user set but that has no effect in this spec.

    Args:
        job: the spec.
        changed: dotted keys that the user set.
        rules: rules of the kind of job.
        own: keys that name a class of the user's own.
    """
    code = job.code
    ours = code.entry.startswith("train_jobs.") and not own
    site = site_of(job.backend)
    shared = [
        *site.ignored(job),
        *_of_other_sites(job, site),
        ("code.folder", ours, f"{code.entry} runs, and no section uses a class of the folder"),
        *((f"code.{key}", code.folder is None, "code.folder is not set") for key in FOLDER_KEYS),
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
                f"it belongs to {shape} decay, schedule.name is {schedule.name}",
            )
            for key, shape in DECAYS
        ),
    ]


def vocabulary_rule(data: TextConfig) -> Rule:
    """Return the rule about the size of a vocabulary that is not trained."""
    return ("data.vocab_size", data.vocabulary is not None, "data.vocabulary has its own size")


def _of_other_sites(job: JobSpec, site: Site) -> Iterator[Rule]:
    """Yield the rules about keys of other backends."""
    for other in (site_of(name) for name in job.sections if name != job.backend):
        keys = [f"compute.{key}" for key in other.compute_keys if key not in site.compute_keys]
        keys += [f"{other.name}.{key}" for key in type(getattr(job, other.name)).model_fields]
        why = f"it belongs to the {other.name} backend, the run uses {job.backend}"
        yield from ((key, True, why) for key in keys)
