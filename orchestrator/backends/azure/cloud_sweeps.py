"""Sweeps that a schedule of Azure ML takes on step by step: their archive in the datastore, and their schedule.

What a step does is in `orchestrator.sweeps.driver.cloud`, whose module the schedule's job runs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.backends.azure import places
from orchestrator.backends.azure.native_sweeps import AzureSweeps
from orchestrator.backends.azure.options import AZURE, AzureSpec
from orchestrator.backends.azure.supervision import MODULE, SWEEP_MODULE, schedule_name, supervision_text
from orchestrator.backends.azure.wire.blobs import Files
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.backends.capabilities import SupervisesSweeps

if TYPE_CHECKING:
    from orchestrator.backends.base import Submission
    from orchestrator.jobs.base import Plan


class AzureCloudSweeps(AzureSweeps, SupervisesSweeps):
    """Sweeps of `driver: here` whose driver is a job of a schedule."""

    def supervision(self, plan: Plan) -> str | None:
        """Return the text for the plan if `azure.supervise` is cloud."""
        return supervision_text(plan) if plan.spec.settings_of(AzureSpec).supervise == "cloud" else None

    def needs_this_machine(self, trial: Submission) -> str | None:
        """Return the local inputs or the user's code, of which a step in Azure could not plan a trial."""
        plan = trial.plan
        assert plan is not None
        if plan.snapshot.folder is not None:
            return f"the code in {plan.snapshot.folder}"
        if local := [one.name for one in plan.needs.inputs if one.remote is None]:
            return f"{', '.join(local)} of this machine (orchestrator data asset create, then --data azureml:...)"
        return None

    def unsupervised(self, trial: Mapping[str, Any]) -> dict[str, Any]:
        """Return the spec of a trial without a schedule of its own."""
        return {**trial, AZURE: {**trial[AZURE], "supervise": "here"}}

    def stage_sweep_supervision(self, trial: Submission) -> tuple[str, dict[str, Any]]:
        """Create the cluster and the assets; return the workspace and the body of the schedule."""
        from orchestrator.backends.azure.runs.dispatch import stage

        request = trial.request
        stage(self.wire_to(request.workspace.require()), trial, self._home)
        body, place = copy.deepcopy(request.supervisor.body), str(request.workspace.workspace)
        job = body["properties"]["action"]["jobDefinition"]
        job["command"] = job["command"].replace(f"{MODULE} {trial.run}", f"{SWEEP_MODULE} {AZURE} {place} {trial.run}")
        return place, body

    def start_sweep_supervision(self, place: str, name: str, body: Mapping[str, Any]) -> None:
        """Create the schedule, or replace it."""
        self._wire_at(place).put_schedule(schedule_name(name), dict(body))

    def end_sweep_supervision(self, place: str, name: str) -> None:
        """Delete the schedule."""
        self._wire_at(place).delete_schedule(schedule_name(name))

    def supervises_sweep(self, place: str, name: str) -> bool:
        """Return whether the workspace has the schedule."""
        return self._wire_at(place).schedule(schedule_name(name)) is not None

    def read_sweep(self, place: str, name: str) -> tuple[bytes, str]:
        """Return the archive and its ETag."""
        return self._files_at(place).read_version(places.sweep_archive(name))

    def write_sweep(self, place: str, name: str, content: bytes, version: str | None) -> str:
        """Write the archive if it still has that ETag; return the new one."""
        return self._files_at(place).write_version(places.sweep_archive(name), content, version)

    def delete_sweep(self, place: str, name: str) -> None:
        """Delete the archive with its folder."""
        self._files_at(place).delete(places.sweep_archive_folder(name))

    def _wire_at(self, place: str) -> Wire:
        return self.wire_to(self.workspace({}, place).require())

    def _files_at(self, place: str) -> Files:
        # always the default datastore: a step knows only the workspace and the name
        return Files(self._wire_at(place), AzureSpec().datastore)
