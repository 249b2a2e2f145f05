"""Control of a sweep: its status, and what can be done with it.

There are two kinds, which look the same to their users: those that a process of this machine drives, and those that a
service of the backend drives (`orchestrator.sweeps.driver.service`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.runs.status import RunState
from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.site import site_of
from orchestrator.support.errors import ConflictError
from orchestrator.sweeps.design.sweep_record import SweepRecord
from orchestrator.sweeps.driver.start import cancel_sweep, resume_sweep
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.driver.sweep_status import SweepStatus, sweep_status
from orchestrator.sweeps.policy.limits import require_left, require_price

if TYPE_CHECKING:
    from optuna import Study

POLL_SECONDS = 0.5
SERVICE = "service.json"  # in the folder of a sweep that a service drives, and of no other


class SweepControl(ABC):
    """What can be done with one sweep, whatever drives it."""

    poll_seconds: float
    """Pause between two looks at a sweep that is waited for."""

    @abstractmethod
    def status(self) -> SweepStatus:
        """Return the status with all trials."""

    @abstractmethod
    def state(self) -> RunState:
        """Return the state."""

    @abstractmethod
    def cancel(self) -> None:
        """Ask the sweep and its trials to end; one that has ended stays as it is."""

    @abstractmethod
    def resume(self) -> None:
        """Resume the sweep.

        Raises:
            ConflictError: it is running, has all of its trials, or cannot be resumed.
        """

    @abstractmethod
    def extend(self, longer: SweepRecord) -> None:
        """Resume the sweep with more trials or higher limits.

        Raises:
            ConflictError: it is running, or cannot be resumed.
            SpecError: there would be a limit of the cost, and its trials have no price.
        """

    @abstractmethod
    def way_on(self, trials: int | None = None) -> str:
        """Return the command that resumes the sweep once it has ended.

        Args:
            trials: in all; None: as many as before.
        """


class DriverControl(SweepControl):
    """Control of a sweep that a process of this machine drives.

    Args:
        folder: of the sweep.
        home: the home folder.
    """

    poll_seconds = POLL_SECONDS

    def __init__(self, folder: SweepFolder, home: Path) -> None:
        self._folder, self._home = folder, home

    @cached_property
    def _study(self) -> Study:
        return self._folder.study()

    def status(self) -> SweepStatus:
        """Read the study, which the driver writes."""
        return sweep_status(self._folder, self._study)

    def state(self) -> RunState:
        """Read state.json and the driver's lock."""
        return self._folder.state().state

    def cancel(self) -> None:
        """Ask the driver by a file; without a driver, cancel the runs."""
        cancel_sweep(self._folder, self._home)

    def resume(self) -> None:
        """Start another driver."""
        status = self.status()
        if status.state == RunState.COMPLETED and status.ended == status.trials:
            raise ConflictError(
                f"sweep {self._folder.name} has all of its {status.trials} trials",
                fix=f"orchestrator sweep extend {self._folder.name} --trials 20",
            )
        self._check_limits(self._folder.record(), status)
        resume_sweep(self._folder, self._home)

    def extend(self, longer: SweepRecord) -> None:
        """Starts another driver: the one that there is has read how many trials are to be."""
        if self._folder.locked():
            raise ConflictError(
                f"sweep {self._folder.name} is going on",
                fix=f"when it has ended: orchestrator sweep extend {self._folder.name}",
            )
        self._check_limits(longer, self.status())
        low_priority = longer.trial["compute"]["tier"] != "dedicated"
        site, compute = site_of(longer.trial["backend"]), ResolvedCompute.model_validate(longer.compute)
        machines = site.price(compute, self._home, low_priority=low_priority)
        require_price(longer.spec.limits, machines.price_per_hour, f"orchestrator sweep extend {longer.name} --hours N")
        self._folder.write_record(longer)
        resume_sweep(self._folder, self._home)

    def _check_limits(self, record: SweepRecord, status: SweepStatus) -> None:
        """Sees that its limits leave something; not where a driver was lost whose trials may run on, and are to end."""
        lost = status.state not in {RunState.COMPLETED, RunState.CANCELLED}
        if not (lost and status.ended < len(status.rows)):
            require_left(record, sum(row.cost for row in status.rows))

    def way_on(self, trials: int | None = None) -> str:
        """Return the command that continues the same sweep."""
        if trials is None:
            return f"orchestrator resume {self._folder.name}"
        return f"orchestrator sweep extend {self._folder.name} --trials {trials - self.status().trials}"
