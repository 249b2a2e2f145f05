"""Capabilities of only some backends. Ask for one by `orchestrator.backends.require`, never by a backend's name.

A backend has a capability by deriving from its class in addition to `Backend`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from orchestrator.support.errors import ConflictError, ServiceError, UsageError

if TYPE_CHECKING:
    from orchestrator.backends.base import Submission
    from orchestrator.backends.sweep_service import NativeSweep
    from orchestrator.jobs.base import Plan
    from orchestrator.runs.status import Handle, RunStatus
    from orchestrator.runs.tracked_run import Synced
    from orchestrator.specs.job import JobSpec
    from orchestrator.specs.sweep_spec import SweepSpec
    from orchestrator.support.finding import Finding
    from train_jobs.artifacts.layers import KeyPath

RUN_TAG = "orchestrator.run"  # of a registered model version: the run that made it
MODEL_TAG = "orchestrator.logged_model"  # of a version with an MLmodel file: the id of the logged model
ENDPOINT_NAME = re.compile(r"[a-z][a-z0-9-]{1,30}[a-z0-9]")  # Azure's rule, so that a name is valid everywhere


class UnknownError(ServiceError):
    """A submission whose acceptance is unknown: its record stays, and the next status request settles it."""


class Capability(ABC):
    """Capability of a backend."""

    verb: ClassVar[str]
    """The user's action that needs it: `resume a run`."""


class Resumes(Capability):
    """Resumes runs that ended before they completed."""

    verb = "resume a run"

    @abstractmethod
    def resume(self, run: str, *, processes: int | None = None) -> Handle:
        """Resume a run from its newest checkpoint.

        Args:
            run: its name.
            processes: new number of processes on each node. None: as before.

        Raises:
            ConflictError: it completed, or is still running.
            UsageError: the number of processes cannot change, or not to this one.
        """

    def restart_if_needed(self, run: str, max_restarts: int | None = None, max_preemptions: int | None = None) -> bool:
        """Restart a run that failed or was preempted, if it has restarts left; called by every process that follows it.

        Only backends whose runs have no supervisor override this.

        Args:
            run: its name.
            max_restarts: highest number of restarts after errors; None: as submitted.
            max_preemptions: highest number of restarts after preemptions; None: as submitted.

        Returns:
            Whether it was restarted, or will be by a later call: after a pause, or an outage.

        Raises:
            UserError: the restart was refused, or the service was unreachable for too long.
        """
        return False


class Preempts(Capability):
    """Simulates preemptions."""

    verb = "preempt a run"

    @abstractmethod
    def preempt(self, run: str) -> None:
        """Preempt a run; its `max_restarts` may restart it.

        Raises:
            ConflictError: the run is not running.
        """


class ClusterChange(NamedTuple):
    """Planned change of a cluster."""

    shape: str
    """Size and scale of the cluster afterwards, for humans."""
    warnings: tuple[str, ...]
    """Warnings for the user before the change."""
    apply: Callable[[], str]
    """Make the change; returns a one-line report."""


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
        """Return the change that creates a cluster, or makes an existing one fit. Nothing is sent before its `apply`.

        Args:
            name: name of the cluster.
            sku: machine size, such as Standard_NC4as_T4_v3.
            tier: dedicated or spot.
            min_nodes: machines that stay on, and cost money, without a job.
            max_nodes: highest number of machines.
            idle_seconds: time without a job after which a machine is released.

        Raises:
            SpecError: the name or the size is not valid.
        """

    @abstractmethod
    def scaled(
        self, name: str, min_nodes: int | None, max_nodes: int | None, idle_seconds: int | None
    ) -> ClusterChange:
        """Return the change of a cluster's scale. Nothing is sent before its `apply`.

        Args:
            name: name of the cluster.
            min_nodes: machines that stay on without a job. None: as before.
            max_nodes: highest number of machines. None: as before.
            idle_seconds: time without a job after which a machine is released. None: as before.

        Raises:
            NotFoundError: it does not exist.
            UsageError: the minimum is above the maximum.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a cluster with its machines; jobs on it end.

        Raises:
            UserError: the service refused.
        """


class Provisions(Capability):
    """Has clusters that users create and delete."""

    verb = "manage clusters"

    @abstractmethod
    def clusters(self, place: Mapping[str, str | None]) -> Clusters:
        """Return the clusters of a place; a value of None comes from the environment or a file of the project."""


class Endpoints(ABC):
    """The endpoints of one place, such as a workspace.

    A row is {endpoint, uri, state, deployments: [{name, traffic, model, version, size, state}]}, traffic in percent.
    """

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return all endpoints."""

    @abstractmethod
    def shift(self, name: str, traffic: Mapping[str, int]) -> dict[str, Any]:
        """Divide the traffic of an endpoint between its deployments; returns its row.

        Args:
            name: of the endpoint.
            traffic: deployment -> percent; those left out get none.

        Raises:
            ConflictError: a deployment that would get traffic is not ready.
            NotFoundError: the endpoint, or a deployment, does not exist.
            UsageError: the sum is not 100.
        """

    @abstractmethod
    def roll_back(self, name: str, *, delete: bool = False) -> dict[str, Any]:
        """Give all traffic to the deployment from before the last one; returns the endpoint's row.

        Args:
            name: of the endpoint.
            delete: also delete the last deployment, with its machine.

        Raises:
            ConflictError: there is no former deployment, or it is not ready.
            NotFoundError: the endpoint does not exist.
        """


class SupervisesSweeps(Capability):
    """Takes sweeps on by a schedule, without a process of the user's machine."""

    verb = "supervise a sweep"

    @abstractmethod
    def supervision(self, plan: Plan) -> str | None:
        """Return the text about the supervision and its cost, if the spec of the trial asks for it; else None."""

    @abstractmethod
    def needs_this_machine(self, trial: Submission) -> str | None:
        """Return what a trial needs of this machine, so that no schedule could plan it; None: nothing."""

    @abstractmethod
    def unsupervised(self, trial: Mapping[str, Any]) -> dict[str, Any]:
        """Return the spec of a trial without a supervision of its own."""

    @abstractmethod
    def stage_sweep_supervision(self, trial: Submission) -> tuple[str, dict[str, Any]]:
        """Create machines and assets; return the place of the sweep, as in handles, and the body of its schedule."""

    @abstractmethod
    def start_sweep_supervision(self, place: str, name: str, body: Mapping[str, Any]) -> None:
        """Create the schedule of a sweep."""

    @abstractmethod
    def end_sweep_supervision(self, place: str, name: str) -> None:
        """Delete the schedule of a sweep; without an error if it does not exist."""

    @abstractmethod
    def supervises_sweep(self, place: str, name: str) -> bool:
        """Return whether a sweep has a schedule."""

    @abstractmethod
    def read_sweep(self, place: str, name: str) -> tuple[bytes, str]:
        """Return the archive of a sweep's folder and its version.

        Raises:
            NotFoundError: it does not exist.
        """

    @abstractmethod
    def write_sweep(self, place: str, name: str, content: bytes, version: str | None) -> str:
        """Replace the archive of a sweep's folder; return its new version.

        Args:
            place: of the sweep.
            name: of the sweep.
            content: the archive.
            version: the one that it replaces; None: there must be none.

        Raises:
            ConflictError: it has another version.
        """

    @abstractmethod
    def delete_sweep(self, place: str, name: str) -> None:
        """Delete the archive of a sweep's folder; without an error if it does not exist."""


class RoutesTraffic(Capability):
    """Has endpoints with several deployments."""

    verb = "divide the traffic of an endpoint"

    @abstractmethod
    def endpoints(self) -> Endpoints:
        """Return the endpoints."""


class Inspects(Capability):
    """Inspects the processes of a run."""

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
        """Delete a finished run with all its files; MLflow's record of it stays.

        Raises:
            ConflictError: it has not finished.
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
        """Delete the checkpoints and models of a finished run; metrics, logs and records stay.

        Args:
            run: its name.
            why: reason that its status shows afterwards.

        Returns:
            False if another process still holds the run: call again later.

        Raises:
            StorageError: they cannot be deleted.
        """


class CopiesToMlflow(Capability):
    """Copies runs to an MLflow store that is not its own."""

    verb = "sync a run with MLflow"

    @abstractmethod
    def sync_mlflow(self, run: str, to: str | None = None) -> Synced:
        """Make the MLflow run of a run equal to its records; a second call changes nothing.

        Args:
            run: its name.
            to: tracking URI. None: the run's own.

        Raises:
            ServiceError: MLflow or its store refused.
        """

    @abstractmethod
    def behind(self, known: Callable[[str], frozenset[str] | None]) -> Iterator[str]:
        """Yield the names of ended runs that MLflow does not have in full.

        Args:
            known: returns the ids of the MLflow runs in a store; None: unknown.
        """


class Registers(Capability):
    """Registers models of runs and serves them at endpoints."""

    verb = "register or deploy a model"

    deploys_here: ClassVar[bool] = True
    """Whether endpoints are processes of this machine."""

    @abstractmethod
    def register_model(
        self, run: str, model: str | None = None, *, alias: str | None = None, checkpoints: bool = False
    ) -> dict[str, Any]:
        """Register the model of a completed run: {name, version, uri, tags}. A second call makes no second version.

        Args:
            run: its name.
            model: the model's name; None: the first part of the run's.
            alias: alias to give to the version, which another version loses. None: none.
            checkpoints: whether each kept checkpoint becomes a logged model of MLflow too.

        Raises:
            ConflictError: the run has no model.
            UsageError: the registry has no aliases, or no logged models.
        """

    @abstractmethod
    def deploy_model(
        self, run: str, endpoint: str, *, sku: str | None = None, traffic: int | None = None, key: Path | None = None
    ) -> dict[str, Any]:
        """Serve the model of a completed run: {endpoint, uri}.

        Args:
            run: its name.
            endpoint: the name of the endpoint.
            sku: size of its machine, where it has one of its own.
            traffic: percent for a second deployment of an existing endpoint. None: a new endpoint.
            key: public key that must have signed the model. None: a signature is not required.

        Raises:
            ConflictError: the run has no model, or the endpoint exists and no `traffic` was given.
            DataError: the signature is missing or invalid.
            UsageError: endpoints have only one deployment, and `traffic` is given; or they check no signature.
        """

    @abstractmethod
    def delete_endpoint(self, endpoint: str) -> None:
        """Delete an endpoint.

        Raises:
            NotFoundError: it does not exist.
        """


def check_endpoint(endpoint: str) -> None:
    """Check the name of an endpoint.

    Raises:
        UsageError: no endpoint can have this name.
    """
    if not ENDPOINT_NAME.fullmatch(endpoint):
        rule = {"rule": "3 to 32 lower-case letters, digits and hyphens, with a letter first"}
        raise UsageError(f"invalid endpoint name {endpoint!r}", facts=rule, fix="use a name such as masked-words")


def require_model(status: RunStatus) -> None:
    """Check that a run has completed: only then is its model final.

    Raises:
        ConflictError: the run is still running, or ended before it completed.
    """
    if status.state.terminal and not status.state.resumable:
        return
    raise ConflictError(
        f"cannot register or deploy the model of run {status.name}: it is {status.state}",
        fix=f"orchestrator {'resume' if status.state.resumable else 'wait'} {status.name}",
    )


def model_name(status: RunStatus, model: str | None) -> str:
    """Return the name to register a model under: the given one, or the first part of the run's."""
    return model or status.name.removesuffix(f"-{status.run_hash}")


def model_tags(status: RunStatus, plan: Mapping[str, Any], lineage: str | None) -> dict[str, str]:
    """Return the tags of a registered model, which name its run, recipe, data and scores.

    Args:
        status: of the run.
        plan: of the run, as `Plan.as_dict` gave it.
        lineage: hash of the model's lineage; None: it has none.
    """
    found = {
        RUN_TAG: status.name,
        "orchestrator.handle": status.handle,
        "orchestrator.run_hash": status.run_hash,
        "orchestrator.recipe": str(plan.get("spec", {}).get("recipe")),
        "orchestrator.data": str(plan.get("data", {}).get("sha256")),
        "orchestrator.step": str(status.step),
    }
    if status.results is not None:
        found |= {f"score.{name}": figure.text for one in status.results.scores for name, figure in one.metrics.items()}
    if "validation_mlm_loss" in status.metrics:
        found["validation_mlm_loss"] = f"{status.metrics['validation_mlm_loss']:.4f}"
    return {**found, **({"orchestrator.lineage": lineage} if lineage else {})}


class Discovers(Capability):
    """Finds runs that were submitted from other machines."""

    verb = "find runs of other machines"

    @abstractmethod
    def discover(self) -> None:
        """Record the newest runs of the place on this machine, including those of other machines."""


class ReadsJobFiles(Capability):
    """Takes job files of another program as they are."""

    verb = "submit a job file"

    @abstractmethod
    def accepts(self, path: Path) -> bool:
        """Return whether a file is a job file by its name; the file is not read."""

    @abstractmethod
    def prepare_file(self, path: Path) -> Submission:
        """Return the submission of a job file: pure, offline.

        Raises:
            SpecError: all its problems, each with its line.
        """


class SweepsNatively(Capability):
    """Drives sweeps by a service of its own, which continues while this machine is off.

    A sweep is known by its documents, name -> text, which `stage_sweep` or `adopt_sweep` returned and its folder keeps.
    """

    verb = "drive a sweep by its own service"

    sweep_service: ClassVar[str]
    """Name of the service in messages."""

    @property
    @abstractmethod
    def arrival_seconds(self) -> float:
        """Seconds after a submission without an answer in which its request may still arrive."""

    @classmethod
    @abstractmethod
    def refusals(cls, spec: SweepSpec, job: JobSpec) -> Iterator[tuple[KeyPath, str]]:
        """Yield the settings that the service would refuse: the key, and what works instead."""

    @abstractmethod
    def prepare_sweep(self, spec: SweepSpec, trial: Submission) -> Submission:
        """Return the submission of a sweep, derived from a trial without settings: pure, offline."""

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
            known: numbers of trials to leave out: finished ones on record.
        """

    @abstractmethod
    def cancel_sweep(self, documents: Mapping[str, str]) -> None:
        """Ask the service to end a sweep and its trials."""

    @abstractmethod
    def adopt_sweep(self, place: str, name: str) -> dict[str, str] | None:
        """Return the documents of a sweep that was submitted from another machine; None if it does not exist.

        Raises:
            NotFoundError: its files were deleted.
        """
