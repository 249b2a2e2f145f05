"""An example backend: this machine, at the lowest priority, so that other users do not notice.

    pip install ./docs/example-backend
    orchestrator submit pretrain -b polite
    orchestrator submit pretrain -b polite --set polite.load=4     # refuse above this load average

A backend with machines of its own inherits from `orchestrator.backends.base.Backend` and implements every method. A
backend whose runs are local folders, like this one, inherits from the class that it changes.
"""

from __future__ import annotations

import os
import shutil

from polite_site import PoliteOptions

from orchestrator.backends.base import Submission
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.runs.status import Handle
from orchestrator.support.errors import CapacityError, UsageError


class PoliteBackend(LocalBackend):
    """Runs below HOME/polite-runs, with `nice` before each rank's command."""

    name = "polite"
    place = "polite-runs"

    prefix = ("nice", "-n", "19")

    def submit(self, submission: Submission) -> Handle:
        """Start the run, unless the machine is busy."""
        assert submission.plan is not None
        _check_load(submission.plan.spec.settings_of(PoliteOptions).load)
        return super().submit(submission)


def _check_load(limit: float | None) -> None:
    """Raise CapacityError if the machine is too busy for a job."""
    if shutil.which("nice") is None:
        raise UsageError("the polite backend needs the command nice", fix="--backend local")
    load = os.getloadavg()[0]
    if limit is not None and load > limit:
        raise CapacityError(
            "this machine is busy",
            facts={"load average": f"{load:.2f}", "limit": f"{limit:g} (polite.load)"},
            fix="the same command later, or --backend local",
        )
