"""What only some backends can do. Ask for it by `orchestrator.backends.require`, never by the name of a backend.

A backend has a capability by deriving from its class, beside `Backend`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from orchestrator.support.errors import ServiceError

if TYPE_CHECKING:
    from orchestrator.backends.base import Submission
    from orchestrator.runs.status import Handle, RunState, RunStatus
    from orchestrator.specs.job import JobSpec
    from orchestrator.specs.sweep_spec import Settings, SweepSpec
    from orchestrator.support.finding import Finding
    from train_jobs.artifacts.layers import KeyPath


class UnknownError(ServiceError):
    """It is unknown whether a service accepted a submission: its record stays, and the next status settles it."""


class Capability(ABC):
    """Something that a backend may be able to do."""

    verb: ClassVar[str]
    """What a user cannot do without it: `resume a run`."""


class Resumes(Capability):
    """Starts runs again that ended before they completed."""

    verb = "resume a run"

    @abstractmethod
    def resume(self, run: str, *, processes: int | None = None) -> Handle:
        """Start a run that did not complete again, from its newest checkpoint.

        Args:
            run: its name.
            processes: on each node, from now on. None: as many as before.

        Raises:
            ConflictError: it completed, or is still running.
            UsageError: there cannot be that many processes.
        """

    def tend(self, run: str, max_restarts: int | None = None) -> bool:
        """Restart a run that failed or was preempted; called while it is followed. Needed without a supervisor.

        Args:
            run: its name.
            max_restarts: how often it may be restarted; None: as it was submitted.

        Returns:
            Whether it was restarted, or will be when this is called again.
        """
        return False


class Preempts(Capability):
    """Simulates that the machine of a run is taken away."""

    verb = "preempt a run"

    @abstractmethod
    def preempt(self, run: str) -> None:
        """Take the run's machine away; its `max_restarts` may start it again.

        Raises:
            ConflictError: the run is not running.
        """


class ClusterChange(NamedTuple):
    """A change to a cluster, not made yet."""

    shape: str
    """Size and scale of the cluster afterwards, for humans."""
    warnings: tuple[str, ...]
    """What the user should know before."""
    apply: Callable[[], str]
    """Make the change; returns what was done, in one line."""


class Clusters(ABC):
    """The clusters of one place, such as a workspace. A row has name, size, tier, nodes and prices of a cluster."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return all clusters."""

    @abstractmethod
    def row(self, name: str) -> dict[str, Any]:
        """Return one cluster.

        Raises:
            NotFoundError: it does not exist.
        """

    @abstractmethod
    def created(
        self, name: str, *, sku: str, tier: str, min_nodes: int, max_nodes: int, idle_seconds: int
    ) -> ClusterChange:
        """Return what makes a cluster, or changes one to fit.

        Raises:
            SpecError: the name or the size is not valid.
        """

    @abstractmethod
    def scaled(
        self, name: str, min_nodes: int | None, max_nodes: int | None, idle_seconds: int | None
    ) -> ClusterChange:
        """Return what changes the scale of a cluster; None: as it is.

        Raises:
            NotFoundError: it does not exist.
            UsageError: it would keep more machines than it may have.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a cluster with its machines; jobs on it end."""


class Provisions(Capability):
    """Has clusters that users create and delete."""

    verb = "manage clusters"

    @abstractmethod
    def clusters(self, place: Mapping[str, str | None]) -> Clusters:
        """Return the clusters of a place; None as a value: as the environment or a file of the project has it."""


class Inspects(Capability):
    """Looks inside the processes of a run."""

    verb = "show each rank's Python stack"

    @abstractmethod
    def stacks(self, run: str) -> dict[int, str]:
        """Return the Python stacks of all threads of each rank of a live run, by rank.

        Raises:
            ConflictError: the run is not running.
        """


class Examines(Capability):
    """Checks its own prerequisites, for `orchestrator doctor`."""

    verb = "check its prerequisites"

    @abstractmethod
    def examine(self, project: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
        """Yield one finding for each prerequisite, without creating anything.

        Args:
            project: folder of the user's project.
            environ: environment variables.
        """


class Deletes(Capability):
    """Deletes runs."""

    verb = "delete a run"

    @abstractmethod
    def delete(self, run: str) -> None:
        """Delete a run that has ended, with all that it wrote; MLflow's record of it stays.

        Raises:
            ConflictError: it has not ended.
            StorageError: it cannot be deleted.
        """

    def leftovers(self) -> Sequence[Path]:
        """Return folders on this machine that interrupted submissions and deletions left behind."""
        return ()


class DeletesWeights(Capability):
    """Deletes the weights of runs and keeps the rest."""

    verb = "delete the weights of a run"

    @abstractmethod
    def delete_weights(self, run: str, why: str) -> bool:
        """Delete the checkpoints and models of a run that has ended; metrics, logs and records stay.

        Args:
            run: its name.
            why: shown by its status from now on.

        Returns:
            False if another process still holds the run: call again later.

        Raises:
            StorageError: they cannot be deleted.
        """


class Registers(Capability):
    """Puts models of runs into a registry and behind an endpoint."""

    verb = "register or deploy a model"

    deploys_here: ClassVar[bool] = True
    """Whether endpoints are processes of this machine."""

    @abstractmethod
    def register_model(self, run: str, model: str | None = None) -> dict[str, Any]:
        """Register the model of a completed run: {name, version, uri, tags}. A second call changes nothing.

        Args:
            run: its name.
            model: the model's name; None: the first part of the run's.

        Raises:
            ConflictError: the run has no model.
        """

    @abstractmethod
    def deploy_model(self, run: str, endpoint: str, *, sku: str | None = None) -> dict[str, Any]:
        """Serve the model of a completed run: {endpoint, uri}.

        Args:
            run: its name.
            endpoint: the name of the endpoint.
            sku: size of its machine, where it has one of its own.

        Raises:
            ConflictError: the run has no model, or the endpoint exists.
        """

    @abstractmethod
    def delete_endpoint(self, endpoint: str) -> None:
        """Delete an endpoint.

        Raises:
            NotFoundError: there is none of that name.
        """


class Discovers(Capability):
    """Finds runs that were submitted from other machines."""

    verb = "find runs of other machines"

    @abstractmethod
    def discover(self) -> None:
        """Put such runs on record here."""


class ReadsJobFiles(Capability):
    """Takes job files of another program as they are."""

    verb = "submit a job file"

    @abstractmethod
    def accepts(self, path: Path) -> bool:
        """Whether the name of a file is that of a job file; the file is not read."""

    @abstractmethod
    def prepare_file(self, path: Path) -> Submission:
        """Return all that is sent for a job file: pure, offline.

        Raises:
            SpecError: all that is wrong with it, each with its line.
        """


class NativeTrial(NamedTuple):
    """One trial of a sweep that a service drives."""

    number: int
    """From 0, in the order of their start."""
    settings: Settings
    """What the service chose for it."""
    status: RunStatus
    """Of its run."""
    reports: Sequence[float]
    """Values of the objective, in the order of the reports."""


class NativeSweep(NamedTuple):
    """A sweep as the service that drives it reports it."""

    state: RunState
    """Of the sweep."""
    reason: str | None
    """Error that the service gives for its end."""
    ended: float | None
    """Seconds since the epoch; None while it runs."""
    cancelled: bool
    """Whether anyone cancelled it."""
    best: int | None
    """Number of the trial that the service calls the best."""
    mlflow_run_id: str | None
    """Parent of the trials' runs in MLflow."""
    trials: Sequence[NativeTrial]
    """Trials that have begun and were not known before, in the order of their numbers."""


class SweepsNatively(Capability):
    """Drives sweeps by a service of its own, which works while this machine is off.

    A sweep is known by its documents, name -> text, which `stage_sweep` or `adopt_sweep` returned and its folder keeps.
    """

    verb = "drive a sweep by its own service"

    sweep_service: ClassVar[str]
    """Name of the service in messages."""

    @classmethod
    @abstractmethod
    def refusals(cls, spec: SweepSpec, job: JobSpec) -> Iterator[tuple[KeyPath, str]]:
        """Yield what the service would refuse: the key, and what works instead."""

    @abstractmethod
    def prepare_sweep(self, spec: SweepSpec, trial: Submission) -> Submission:
        """Return all that is sent for a sweep, made from a trial without settings: pure, offline."""

    @abstractmethod
    def stage_sweep(self, submission: Submission, documents: Mapping[str, str]) -> dict[str, str]:
        """Create and upload what the trials need; return the documents to keep.

        Args:
            submission: of the sweep.
            documents: to keep with the service, for other machines that attach.

        Raises:
            ConflictError: the service has a job of that name.
            UserError: the service refused.
        """

    @abstractmethod
    def submit_sweep(self, documents: Mapping[str, str]) -> None:
        """Submit a sweep that is staged and on record.

        Raises:
            UnknownError: it is unknown whether the service accepted it.
            UserError: the service refused it.
        """

    @abstractmethod
    def describe_sweep(
        self, documents: Mapping[str, str], spec: SweepSpec, known: Container[int]
    ) -> NativeSweep | None:
        """Return the state of a sweep with its trials; None if the service has no such sweep.

        Args:
            documents: of the sweep.
            spec: of the sweep.
            known: numbers of trials to leave out: they have ended, and are on record.
        """

    @abstractmethod
    def cancel_sweep(self, documents: Mapping[str, str]) -> None:
        """Ask the service to end a sweep and its trials."""

    @abstractmethod
    def adopt_sweep(self, place: str, name: str) -> dict[str, str] | None:
        """Return the documents of a sweep that was submitted from another machine; None if there is none.

        Raises:
            NotFoundError: its files are gone.
        """
