"""Names as their users give them: whole, or as much of one as tells it from the others."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.support.errors import NotFoundError


def find_name(run: str, known: Iterable[str]) -> str:
    """The run that a name, or the beginning of one, means.

    Raises:
        NotFoundError: none, or more than one, fits.
    """
    names = list(known)
    if run in names:
        return run
    fitting = [name for name in names if name.startswith(run)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise NotFoundError(
            f"more than one run begins with {run}",
            facts={"runs": ", ".join(fitting[:5]) + (", ..." if len(fitting) > 5 else "")},
            fix="give more of the name",
        )
    from train_jobs.config.names import did_you_mean

    hint = did_you_mean(run, names)
    raise NotFoundError(f"no run {run}{hint}", fix="orchestrator list" if names else "orchestrator submit pretrain")
