"""Settings of notifications; a module of its own, since showing a run needs them but no other section of a spec."""

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
    """Environment variable of the submitting process that holds the address. It is a secret and never written down."""

    def check(self, environ: Mapping[str, str]) -> None:
        """Check that the address of the webhook is set if events are to be reported.

        Raises:
            UsageError: it is not.
        """
        if self.on and not environ.get(self.variable, "").startswith(("http://", "https://")):
            raise UsageError(
                f"cannot notify: {self.variable} is not an HTTP address",
                facts={"events": ", ".join(self.on)},
                fix=f"export {self.variable}=https://...",
            )
