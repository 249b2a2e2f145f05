"""The double of Azure under faults of the network and the service: each call may fail."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.testing import AzureDouble
from orchestrator.testing.proxy.messages import Call, Refusal
from orchestrator.testing.proxy.server import Fault, Faults, Moment
from tests.conftest import Console
from tests.faults.campaign.scene import Scene

SHARE = 0.05  # of all calls that fail
STATUSES = (429, 500, 502, 503, 504)


class RandomFaults(Faults):
    """A random fault for a share of all calls: an error, a reset connection or a cut body."""

    share = 0.0
    """Probability of a fault."""
    draw = random.Random(0)
    """Decides which calls fail, and how."""
    count = 0
    """Faults so far."""

    def take(self, call: Call) -> Fault | None:
        """Return the fault of a call, if any."""
        with self._lock:
            if self.draw.random() >= self.share:
                return None
            self.count += 1
            moment, status = self.draw.choice(list(Moment)), self.draw.choice(STATUSES)
        refusal = Refusal.usual(status, retry_after=0.1) if moment is Moment.ANSWER else None
        return Fault("*", moment, 0, refusal)


@contextmanager
def azure(console: Console) -> Iterator[AzureDouble]:
    """Start a workspace of Azure in the home of a console, and lead its commands there."""
    with AzureDouble(console.home / "azure-double", faults=RandomFaults()) as double:
        found = {key: value for key, value in os.environ.items() if key.startswith("ORCHESTRATOR_AZURE_")}
        console.variables |= {**found, "ORCHESTRATOR_AZURE_POLL_SECONDS": "0.2"}
        yield double


@contextmanager
def failing_calls(scene: Scene) -> Iterator[None]:
    """Let a share of all calls fail."""
    faults = _faults(scene)
    faults.draw, faults.share = scene.draw, SHARE
    yield


def heal(scene: Scene) -> bool:
    """Let no further call fail."""
    faults = _faults(scene)
    faults.share = 0.0
    scene.detail = f"{faults.count} calls failed"
    return faults.count > 0


def _faults(scene: Scene) -> RandomFaults:
    assert scene.cloud is not None
    assert isinstance(scene.cloud.faults, RandomFaults)
    return scene.cloud.faults
