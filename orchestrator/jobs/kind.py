"""The interface of a kind of job, with one instance for each kind in `orchestrator.jobs.registry`.

Commands look up a kind to show runs, too. The module of a kind therefore imports neither its spec nor its plan: `lazy`
names them, and imports them on first use. A function that is named by `lazy` is called without `self`.
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
    from orchestrator.specs.compute import ResolvedCompute
    from orchestrator.specs.job import JobSpec
    from orchestrator.specs.paths import PathKeys
    from orchestrator.specs.resolved import Resolved
    from orchestrator.specs.site import Rule, Site
    from train_jobs.artifacts.layers import ConfigLayer
    from train_jobs.artifacts.start_model import Merge


class JobKind(ABC):
    """A kind of job. Attributes and methods with a default are optional."""

    name: str
    """Name in commands, specs and runs."""
    subject: str
    """Subject of its sections; kinds with the same subject share the defaults of a project."""
    gpus: bool = True
    """Whether it uses GPUs."""
    scored: bool = False
    """Whether its results are scores."""
    makes_store: bool = False
    """Whether its result is a token store."""
    trains: bool = False
    """Whether its runs have curves."""
    elastic: bool = False
    """Whether its jobs may run with another number of processes than planned: nothing in them depends on it."""
    report: ClassVar[Any] = lazy("orchestrator.reports.pages.run_report:RunReport")
    """Class of its reports, with the key figures, charts and rows of the plan that only this kind has."""
    keys: ClassVar[Mapping[str, str]] = {"--model": "init_from", "--store": "data.store"}
    """Flag -> key, for flags that set different keys in different kinds."""

    @property
    @abstractmethod
    def spec(self) -> type[JobSpec]:
        """Model of its specs."""

    @property
    @abstractmethod
    def recipes(self) -> Path:
        """Folder of its recipes."""

    @abstractmethod
    def plan(self, resolved: Resolved, home: Path, reuse: Plan | None) -> Plan:
        """Return the plan of a job after reading its data and code; see `resolve.make_plan`."""

    @property
    def paths(self) -> PathKeys:
        """Keys of its spec that name files and folders."""
        from orchestrator.specs.paths import PathKeys

        return PathKeys()

    def layers(self, written: Sequence[ConfigLayer], here: Path, site: Site) -> list[ConfigLayer]:
        """Return the user's layers with short forms expanded.

        Args:
            written: the user's layers, lowest precedence first, with absolute paths.
            here: folder that paths in messages are relative to.
            site: site of the run.
        """
        return list(written)

    def merge(self, presets: Sequence[ConfigLayer], written: Sequence[ConfigLayer]) -> Merge:
        """Merge presets and the user's layers; the model or run that the job starts from may set values between them.

        Args:
            presets: layers of the presets, lowest precedence first.
            written: the user's layers, lowest precedence first.
        """
        from train_jobs.artifacts.layers import merge
        from train_jobs.artifacts.start_model import Merge

        return Merge(merge([*presets, *written]))

    def check_shares(  # noqa: B027, for a job without a global batch
        self, spec: Any, compute: ResolvedCompute
    ) -> None:
        """Check that a global batch divides into processes and micro batches.

        Raises:
            SpecError: it does not; the message names the nearest that do.
        """

    def user_code_names(self, spec: Any) -> Mapping[str, str]:
        """Return dotted key -> MODULE:NAME for the user's own classes in a spec."""
        return {}

    def ignored(self, spec: Any, compute: ResolvedCompute, site: Site) -> Iterable[Rule]:
        """Return the rules about settings that have no effect because of other settings."""
        return ()

    def warnings(self, spec: Any, changed: Container[str], site: Site) -> Iterable[str]:
        """Return other warnings about a spec.

        Args:
            spec: the validated spec.
            changed: dotted keys that the user set.
            site: site of the run.
        """
        return ()

    def data_flag(self, words: list[str]) -> dict[str, tuple[Any, str]]:
        """Return key -> value and flag for the arguments of --data.

        Args:
            words: the arguments.

        Raises:
            UsageError: there are more than the kind accepts.
        """
        return {"data.text": (words or None, "--data")}

    def column_flag(self, words: list[str], texts: Any) -> dict[str, tuple[Any, str]]:
        """Return key -> value and flag for the arguments of --column.

        Args:
            words: the arguments.
            texts: the paths given by --data. None: none.

        Raises:
            UsageError: the kind has no such column.
        """
        from orchestrator.support.errors import UsageError
        from train_jobs.config.errors import in_shell

        role, _, name = words[0].rpartition("=")
        if len(words) > 1 or role not in {"", "text"}:
            raise UsageError(f"invalid --column {words[-1]!r}: texts have one column", fix="--column NAME")
        if not texts:
            raise UsageError(
                "--column needs the files that have the column", fix=f"--data FILE --column {in_shell(name)}"
            )
        return {"data.text": ([{"path": [path], "column": name} for path in texts], "--column")}

    def title(self, plan: Mapping[str, Any]) -> str:
        """Return a title of the job; runs with the same title have figures that can be compared."""
        return self.name

    def next_commands(self, status: RunStatus) -> dict[str, str]:
        """Return label -> command for the results of a completed run."""
        return {}


def columns_by_role(words: list[str], keys: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """Return key -> value and flag for ROLE=NAME arguments of --column.

    Args:
        words: the arguments.
        keys: role -> key.

    Raises:
        UsageError: an argument has another form, or an unknown role.
    """
    from orchestrator.support.errors import UsageError
    from train_jobs.config.errors import did_you_mean, in_shell

    found: dict[str, tuple[Any, str]] = {}
    for word in words:
        role, equals, name = word.partition("=")
        if not equals or not name or role not in keys:
            near = did_you_mean(role, keys) if equals else ""
            roles = ", ".join(f"{one}=NAME" for one in keys)
            raise UsageError(
                f"invalid --column {word!r}{near}: must be {roles}", fix=f"--column text={in_shell(name or word)}"
            )
        found[keys[role]] = (name, "--column")
    return found


def _missing(kind: JobKind) -> NoReturn:
    raise AssertionError(f"no package registers the kind of job {kind.name}")


_MISSING: Any = property(_missing)


class UnknownKind(JobKind):
    """The kind of a run whose package is not installed: the run can be shown, but not planned."""

    subject = ""

    def __init__(self, name: str) -> None:
        self.name = name

    spec = recipes = plan = _MISSING
