"""The interface of a kind of job: one instance for each, found by name in `orchestrator.jobs.registry`.

A kind is looked up to show a run as well as to plan one. Its module therefore loads neither spec nor plan: `lazy` names
them, and they are imported when they are first read. A function that is named so is called without `self`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from orchestrator.support.plugins import lazy

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan
    from orchestrator.runs.status import RunStatus
    from orchestrator.specs.job import JobSpec
    from orchestrator.specs.paths import PathKeys
    from orchestrator.specs.resolved import Resolved
    from orchestrator.specs.site import Rule, Site
    from train_jobs.artifacts.layers import ConfigLayer
    from train_jobs.artifacts.start_model import Merge


class JobKind(ABC):
    """A kind of job. What has a default is for kinds that differ in it."""

    name: str
    """As commands, specs and runs name it."""
    subject: str
    """What its sections are about: kinds of one subject share the defaults of a project."""
    gpus: bool = True
    """Whether it uses GPUs."""
    scored: bool = False
    """Whether its results are scores."""
    makes_store: bool = False
    """Whether its result is a token store."""
    trains: bool = False
    """Whether its runs have curves."""
    report: ClassVar[Any] = lazy("orchestrator.reports.pages.run_report:RunReport")
    """Class of its reports: key figures, charts, and rows of the plan that only this kind has."""
    keys: ClassVar[Mapping[str, str]] = {"--model": "init_from", "--store": "data.store"}
    """Flag of the command line -> key, of flags that stand for different keys in different kinds."""

    @property
    @abstractmethod
    def spec(self) -> type[JobSpec]:
        """Model of its specs."""

    @property
    @abstractmethod
    def recipes(self) -> Path:
        """Folder of its recipes."""

    @abstractmethod
    def plan(self, resolved: Resolved, home: Path, like: Plan | None) -> Plan:
        """Read data and code, and return the plan: see `resolve.make_plan`."""

    @property
    def paths(self) -> PathKeys:
        """Keys of its spec that name files and folders."""
        from orchestrator.specs.paths import PathKeys

        return PathKeys()

    def layers(self, written: Sequence[ConfigLayer], here: Path, site: Site) -> list[ConfigLayer]:
        """Return the layers with short forms written out.

        Args:
            written: what the user wrote, lowest first, with absolute paths.
            here: the folder that paths in messages start from.
            site: where the run is sent.
        """
        return list(written)

    def merge(self, presets: Sequence[ConfigLayer], written: Sequence[ConfigLayer]) -> Merge:
        """Merge presets with what the user wrote, and with what the start of the job decides between them."""
        from train_jobs.artifacts.layers import merge
        from train_jobs.artifacts.start_model import Merge

        return Merge(merge([*presets, *written]))

    def check_shares(  # noqa: B027, for a job without a global batch
        self, spec: Any, world_size: int
    ) -> None:
        """Check that a global batch divides into processes and micro batches.

        Raises:
            SpecError: it does not; the message names the nearest that do.
        """

    def user_code_names(self, spec: Any) -> Mapping[str, str]:
        """Return dotted key -> MODULE:NAME of the user's own classes that a spec names."""
        return {}

    def ignored(self, spec: Any, world_size: int, site: Site) -> Iterable[Rule]:
        """Yield the rules about settings that have no effect because of others."""
        return ()

    def warnings(self, spec: Any, changed: Container[str], site: Site) -> Iterable[str]:
        """Yield other warnings about a spec whose keys `changed` the user wrote."""
        return ()

    def data_flag(self, words: list[str]) -> dict[str, tuple[Any, str]]:
        """Return key -> value and flag, of paths given by --data.

        Raises:
            UsageError: there are more than the kind takes.
        """
        return {"data.text": (words or None, "--data")}

    def title(self, plan: Mapping[str, Any]) -> str:
        """Return what runs with the same title have in common: their figures can be compared."""
        return self.name

    def next_commands(self, status: RunStatus) -> dict[str, str]:
        """Return label -> command for what a completed run has made."""
        return {}


def _missing(kind: JobKind) -> NoReturn:
    raise AssertionError(f"no package registers the kind of job {kind.name}")


_MISSING: Any = property(_missing)


class UnknownKind(JobKind):
    """The kind of a run that no installed package registers: its run can be shown, not planned."""

    subject = ""

    def __init__(self, name: str) -> None:
        self.name = name

    spec = recipes = plan = _MISSING
