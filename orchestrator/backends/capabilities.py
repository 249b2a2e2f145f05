"""What only some backends can do. Ask for it by `orchestrator.backends.require`, never by the name of a backend.

A backend has a capability by deriving from its class, beside `Backend`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from orchestrator.backends.base import Request
    from orchestrator.runs.status import Handle, RunState, RunStatus
    from orchestrator.specs.job import JobSpec
    from orchestrator.specs.sweep_spec import Settings, SweepSpec
    from orchestrator.support.finding import Finding
    from train_jobs.artifacts.layers import KeyPath


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


class NativeTrial(NamedTuple):
    """One trial of a sweep that a service drives."""

    number: int
    """From 0, in the order of their start."""
    settings: Settings
    """What the service chose for it."""
    status: RunStatus
    """Of its run."""
    reports: Sequence[tuple[int, float]]
    """Step and objective, in the order of the reports."""


class SweepsNatively(Capability):
    """Drives sweeps by a service of its own, which goes on when this machine is off."""

    verb = "drive a sweep by its own service"

    @abstractmethod
    def refusals(self, spec: SweepSpec, job: JobSpec) -> Iterator[tuple[KeyPath, str]]:
        """Yield what the service would refuse: the key, and what works instead."""

    @abstractmethod
    def prepare_sweep(self, spec: SweepSpec, trial: Request) -> Request:
        """Return the request for a sweep, made from that for a trial without settings: pure, offline."""

    @abstractmethod
    def submit_sweep(self, submission: Request) -> Handle:
        """Send a sweep."""

    @abstractmethod
    def sweep_state(self, name: str) -> RunState:
        """Return the state of a sweep."""

    @abstractmethod
    def sweep_trials(self, name: str, spec: SweepSpec) -> Iterator[NativeTrial]:
        """Yield the trials that have begun, in the order of their numbers."""

    @abstractmethod
    def cancel_sweep(self, name: str) -> None:
        """Ask the service to end a sweep and its trials."""

    @abstractmethod
    def adopt_sweep(self, place: str, name: str) -> Mapping[str, str] | None:
        """Return the documents of a sweep that was submitted from another machine, by name; None: no such sweep."""
