"""Sweeps that Azure's own service drives: request, submission, and what the service reports of their trials."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends.azure.assets import places
from orchestrator.backends.azure.runs import states
from orchestrator.backends.azure.runs.adoption import adopt_trial
from orchestrator.backends.azure.runs.record import RecordFolder
from orchestrator.backends.azure.wire.workspace import Workspace
from orchestrator.backends.base import PLAN, REQUEST, Backend, Submission
from orchestrator.backends.capabilities import NativeSweep, NativeTrial, SweepsNatively
from orchestrator.backends.run_progress import metric_values

if TYPE_CHECKING:
    from orchestrator.backends.azure.submission import AzureRequest
    from orchestrator.backends.azure.wire.control_plane import Body, Wire
    from orchestrator.jobs.base import Plan
    from orchestrator.specs.job import JobSpec
    from orchestrator.specs.sweep_spec import Settings, SweepSpec
    from train_jobs.artifacts.layers import KeyPath

SWEEP = "sweep.json"
SWEEP_TAG = "orchestrator.sweep"
HYPERPARAMETERS = "hyperparameters"  # tag of a trial
BEST = "best_child_run_id"  # property of the sweep
CANCELLED = {"CancelRequested", "Canceled"}


class AzureSweeps(Backend, SweepsNatively):
    """The part of Azure's backend that deals with sweeps."""

    sweep_service = "Azure's sweep service"
    _home: Path
    _runs: Path

    @abstractmethod
    def workspace(self, given: Mapping[str, str | None], name: str | None = None) -> Workspace:
        """Return the workspace that names, variables and config.json give."""

    @abstractmethod
    def wire_to(self, workspace: Workspace) -> Wire:
        """Return the connection to a workspace."""

    @classmethod
    def refusals(cls, spec: SweepSpec, job: JobSpec) -> Iterator[tuple[KeyPath, str]]:
        """Yield what the service would refuse or take for something else."""
        from orchestrator.backends.azure.sweeps.sweep_job import refusals

        return refusals(spec, job)

    @abstractmethod
    def submission(self, plan: Plan, request: AzureRequest) -> Submission:
        """Return the submission that sends a request made of a plan."""

    def prepare_sweep(self, spec: SweepSpec, trial: Submission) -> Submission:
        """Return the trial's submission with the sweep in the place of the job."""
        from orchestrator.backends.azure.sweeps.sweep_job import sweep_request

        assert trial.plan is not None
        return self.submission(trial.plan, sweep_request(spec, trial.request))

    def stage_sweep(self, submission: Submission, documents: Mapping[str, str]) -> dict[str, str]:
        """Create the cluster and the assets, upload the documents."""
        from orchestrator.backends.azure.runs.dispatch import stage

        stage(self.wire_to(submission.request.workspace.require()), submission, self._home, documents)
        return {name: submission.documents[name] for name in (PLAN, REQUEST)}

    def submit_sweep(self, documents: Mapping[str, str]) -> None:
        """Put the job until Azure has it or has refused it."""
        from orchestrator.backends.azure.runs.dispatch import put

        request = json.loads(documents[REQUEST])
        put(self._wire_for(documents), request["name"], request["job"])

    def describe_sweep(
        self, documents: Mapping[str, str], spec: SweepSpec, known: Container[int]
    ) -> NativeSweep | None:
        """Return the job's state and its child runs; each new one is put on record as a run of this machine."""
        wire, name = self._wire_for(documents), str(json.loads(documents[REQUEST])["name"])
        job = wire.job(name)
        if job is None:
            return None
        properties = job["properties"]
        state = states.state_of(str(properties.get("status")))
        details = wire.details(name) if state.terminal else {}
        top = places.trial_of(str((properties.get("properties") or {}).get(BEST)))
        return NativeSweep(
            state=state,
            reason=states.error_text(details) if state.terminal else None,
            ended=states.seconds(details.get("endTimeUtc")) or time.time() if state.terminal else None,
            cancelled=properties.get("status") in CANCELLED,
            best=top[1] if top else None,
            mlflow_run_id=name,
            trials=list(self._trials(wire, name, documents, spec, known, properties.get("tags") or {})),
        )

    def cancel_sweep(self, documents: Mapping[str, str]) -> None:
        """Cancel the job, which cancels its child runs."""
        self._wire_for(documents).cancel_job(json.loads(documents[REQUEST])["name"])

    def adopt_sweep(self, place: str, name: str) -> dict[str, str] | None:
        """Read the documents from the datastore of the workspace."""
        from orchestrator.backends.azure.wire.blobs import Files

        wire = self.wire_to(self.workspace({}, place).require())
        wire.location()
        tags = ((wire.job(name) or {}).get("properties") or {}).get("tags") or {}
        if tags.get(SWEEP_TAG) != name:
            return None
        files, folder = Files(wire.store(tags["orchestrator.datastore"])), places.job_folder(name)
        return {document: files.read(folder + document).decode() for document in (PLAN, REQUEST, SWEEP)}

    def _wire_for(self, documents: Mapping[str, str]) -> Wire:
        return self.wire_to(Workspace.model_validate(json.loads(documents[REQUEST])["workspace"]))

    def _trials(
        self,
        wire: Wire,
        name: str,
        documents: Mapping[str, str],
        spec: SweepSpec,
        known: Container[int],
        tags: Mapping[str, str],
    ) -> Iterator[NativeTrial]:
        children: dict[int, Body] = {}
        for child in wire.children(name):
            trial = places.trial_of(str(child["runId"]))
            if trial is not None and trial[0] == name and trial[1] not in known:
                children[trial[1]] = child
        for number, child in sorted(children.items()):
            run, settings = str(child["runId"]), _settings(spec, child, tags)
            created = states.seconds(child.get("createdUtc")) or time.time()
            plan, request = (json.loads(documents[document]) for document in (PLAN, REQUEST))
            adopt_trial(RecordFolder(self._runs / run), plan, request, settings, created)
            status = self.describe(run)  # before the reports: of a run that has ended none is missing then
            yield NativeTrial(number, settings, status, metric_values(self.metrics(run), spec.objective.metric))


def _settings(spec: SweepSpec, child: Body, tags: Mapping[str, str]) -> Settings:
    """What a trial was given: the service keeps it in a tag of the trial, or of the sweep under the trial's name."""
    from orchestrator.backends.azure.sweeps.sweep_job import settings_of

    given = (child.get("tags") or {}).get(HYPERPARAMETERS) or tags.get(str(child["runId"])) or "{}"
    return settings_of(spec.space, json.loads(given))
