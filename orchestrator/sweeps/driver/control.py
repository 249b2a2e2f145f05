"""A sweep as whoever drives it has it: how it stands, and what may be asked of it.

There are two kinds, which look the same to their users: those that a process of this machine drives, and those that a
service of the backend drives (`orchestrator.sweeps.driver.service`).
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

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


class Control(Protocol):
    """What can be asked of and about one sweep."""

    poll_seconds: float
    """Between two looks of somebody who waits."""

    def status(self) -> SweepStatus:
        """How it stands now, with all of its trials."""
        ...

    def state(self) -> RunState:
        """Where it stands now."""
        ...

    def cancel(self) -> None:
        """Asks it and its trials to end; one that has ended is left alone."""
        ...

    def resume(self) -> None:
        """Goes on with it.

        Raises:
            ConflictError: it goes on already, has all of its trials, or can't be taken up again.
        """
        ...

    def extend(self, longer: SweepRecord) -> None:
        """Goes on with it, with more trials or higher limits.

        Raises:
            ConflictError: it goes on already, or can't be taken up again.
            SpecError: there would be a limit of the cost, and its trials have no price.
        """
        ...

    def way_on(self, trials: int | None = None) -> str:
        """The command that goes on with it once it has ended.

        Args:
            trials: that it is to have in all; None: as many as it was to have.
        """
        ...


class HereControl(Control):
    """Of a sweep that a process of this machine drives.

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
        """By its study, which the driver writes."""
        return sweep_status(self._folder, self._study)

    def state(self) -> RunState:
        """By state.json and the driver's lock."""
        return self._folder.state().state

    def cancel(self) -> None:
        """Leaves the driver a file; does itself what a driver that is gone can't."""
        cancel_sweep(self._folder, self._home)

    def resume(self) -> None:
        """Starts another driver."""
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
        """What it began with goes on."""
        if trials is None:
            return f"orchestrator resume {self._folder.name}"
        return f"orchestrator sweep extend {self._folder.name} --trials {trials - self.status().trials}"
