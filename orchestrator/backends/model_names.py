"""Model names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orchestrator.runs.status import RunStatus
from orchestrator.support.errors import ConflictError, UsageError

ENDPOINT_NAME = re.compile(r"[a-z][a-z0-9-]{1,30}[a-z0-9]")  # Azure's rule, so that one name does for both


def model_name(status: RunStatus, model: str | None) -> str:
    """The name to register a model under: as given, or the first part of the run's."""
    return model or status.name.removesuffix(f"-{status.run_hash}")


def require_model(status: RunStatus) -> None:
    """Raises ConflictError unless the run has completed: only then is its model the last."""
    if status.state.terminal and not status.state.resumable:
        return
    raise ConflictError(
        f"run {status.name} is {status.state} and has no model to register",
        fix=f"orchestrator {'resume' if status.state.resumable else 'wait'} {status.name}",
    )


def model_tags(status: RunStatus, plan: Mapping[str, Any], lineage: str | None) -> dict[str, str]:
    """What a registered model says of where it comes from."""
    found = {
        "orchestrator.run": status.name,
        "orchestrator.handle": status.handle,
        "orchestrator.run_hash": status.run_hash,
        "orchestrator.recipe": str(plan.get("spec", {}).get("recipe")),
        "orchestrator.data": str(plan.get("data", {}).get("sha256")),
        "orchestrator.step": str(status.step),
    }
    if status.results is not None:
        found |= {f"score.{name}": figure.text for one in status.results.scores for name, figure in one.metrics.items()}
    if "validation_mlm_loss" in status.metrics:
        found["validation_mlm_loss"] = f"{status.metrics['validation_mlm_loss']:.4f}"
    return {**found, **({"orchestrator.lineage": lineage} if lineage else {})}


def check_endpoint(endpoint: str) -> None:
    """Raises UsageError where no endpoint can be called so."""
    if not ENDPOINT_NAME.fullmatch(endpoint):
        raise UsageError(
            f"no endpoint can be called {endpoint!r}",
            facts={"rule": "3 to 32 lower-case letters, digits and hyphens, with a letter first"},
            fix="--endpoint masked-words",
        )
