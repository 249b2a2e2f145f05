"""Whom to tell what becomes of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from orchestrator.support.errors import UsageError
from train_jobs.config.base import Config


class NotifySpec(Config):
    """A webhook: one POST of a JSON document for each event."""

    on: list[Literal["completed", "failed", "diverging"]] = Field(default=[])
    """Events to tell of. failed: whenever a run ends without having completed, and was not cancelled."""
    variable: str = "ORCHESTRATOR_WEBHOOK"
    """Environment variable of the submitting process that holds the address. It is a secret and never written down."""

    def check(self, environ: Mapping[str, str]) -> None:
        """Raises UsageError if there is something to tell and nowhere to tell it."""
        if self.on and not environ.get(self.variable, "").startswith(("http://", "https://")):
            raise UsageError(
                f"notify.on asks for a webhook, and {self.variable} holds no address of one",
                facts={"events": ", ".join(self.on)},
                fix=f"export {self.variable}=https://...",
            )
