"""Settings of notifications.

A module of its own: commands that show runs need these settings, but not the slow imports of the other sections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from orchestrator.support.errors import UsageError
from train_jobs.config.fields import Config


class NotifySpec(Config):
    """A webhook: one POST of a JSON document for each event."""

    on: list[Literal["completed", "failed", "diverging"]] = Field(default=[])
    """Events to report. failed: the run ended without completing, and was not cancelled."""
    variable: str = "ORCHESTRATOR_WEBHOOK"
    """Environment variable of the submitting process with the webhook's address, a secret that is never stored."""

    def check(self, environ: Mapping[str, str]) -> None:
        """Check that the address of the webhook is set if there are events to report.

        Args:
            environ: environment variables of the submitting process.

        Raises:
            UsageError: it is not set, or is not an HTTP address.
        """
        if self.on and not environ.get(self.variable, "").startswith(("http://", "https://")):
            raise UsageError(
                f"cannot notify: {self.variable} is not an HTTP address",
                facts={"events": ", ".join(self.on)},
                fix=f"export {self.variable}=https://...",
            )
