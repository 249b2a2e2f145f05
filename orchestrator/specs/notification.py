"""Settings of notifications.

A module of its own: commands that show runs need these settings, but not the slow imports of the other sections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field

from orchestrator.support.errors import UsageError
from orchestrator.support.public_address import is_public, literal_address
from train_jobs.config.fields import Config


class NotifySpec(Config):
    """A webhook: one POST of a JSON document for each event."""

    on: list[Literal["completed", "failed", "diverging"]] = Field(default=[])
    """Events to report. failed: the run ended without completing, and was not cancelled."""
    variable: str = "ORCHESTRATOR_WEBHOOK"
    """Environment variable of the submitting process with the webhook's address, a secret that is never stored. The job
    does not get the variable."""

    allow_private: bool = False
    """Allow a webhook on this machine or in a private network (loopback, link-local or private address)."""

    def without_address(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return environment variables for a job: all except the one with the address."""
        return {name: value for name, value in environ.items() if name != self.variable}

    def check(self, environ: Mapping[str, str]) -> None:
        """Check that the address of the webhook is set if there are events to report.

        Args:
            environ: environment variables of the submitting process.

        Raises:
            UsageError: it is not set, is not an HTTP address, or is a private one that the settings do not allow.
        """
        if not self.on:
            return
        url, facts = environ.get(self.variable, ""), {"events": ", ".join(self.on)}
        try:
            host = unquote(urlsplit(url).hostname or "")
        except ValueError:
            host = ""
        if not url.startswith(("http://", "https://")) or not host:
            raise UsageError(
                f"cannot notify: {self.variable} is not an HTTP address",
                facts=facts,
                fix=f"export {self.variable}=https://...",
            )
        address = literal_address(host)
        # a name is resolved when the message is sent, maybe days later
        if address is not None and not self.allow_private and not is_public(address):
            raise UsageError(
                f"cannot notify: {self.variable} is a private address",
                facts={**facts, "address": address},
                fix="--set notify.allow_private=true",
            )
