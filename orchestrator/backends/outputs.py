"""What is said of an output that is not there, wherever the run is."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from orchestrator.runs.status import RunState
from orchestrator.support.errors import NotFoundError
from train_jobs.config.names import did_you_mean

WRITTEN_LATER = {"checkpoints", "lineage", "metrics", "model", "predictions", "result", "store", "submission"}
"""What jobs write as they go or at their end: who names it has not mistyped anything."""


def no_such_output(run: str, state: RunState, asked: Sequence[str], known: Collection[str]) -> NotFoundError:
    """What a run does not have, what it has, and what one may type.

    Args:
        run: its name.
        state: how it stands.
        asked: names of outputs that it does not have; none: it has nothing at all.
        known: those that it has.
    """
    first = asked[0] if asked else ""
    near = did_you_mean(first, known) if first not in WRITTEN_LATER else ""
    if not near and not state.terminal:
        fix = f"orchestrator wait {run}"
    elif not near and state.resumable:
        fix = f"orchestrator resume {run}"
    else:
        fix = f"orchestrator download {run} {next(iter(known))}" if known else f"orchestrator status {run}"
    return NotFoundError(
        f"run {run} has no output {', '.join(asked) or 'yet'}{near}",
        facts={"state": state.value, "has": ", ".join(known) or "nothing"},
        fix=fix,
    )
