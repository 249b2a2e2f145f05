"""Names of the tiers of machines; the parser of the command line reads them before any model is loaded."""

from __future__ import annotations

from typing import Any

OLD_SPOT = {"low-priority", "low_priority"}  # names of the tier until Azure ML retired low-priority machines


def current_tier(name: Any) -> Any:
    """Return the current name of a tier: spot for low-priority; any other value unchanged."""
    return "spot" if isinstance(name, str) and name in OLD_SPOT else name


def old_tier_warning(name: Any) -> str | None:
    """Return what changed for a tier that is given by its old name; None: it is not."""
    if not isinstance(name, str) or name not in OLD_SPOT:
        return None
    return (
        f"tier {name} is the old name of spot: Azure ML retired low-priority machines on 31 March 2026, and runs such"
        " clusters on Spot machines. Their rate varies, up to the dedicated price, and evicted machines are billed"
    )
