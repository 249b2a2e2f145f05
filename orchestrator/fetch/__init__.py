"""Data from where it is published, whole and checked, or not at all: Wikipedia's dumps, GLUE, SQuAD, models.

What an interrupted fetch has is kept beside the target, and the same command goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.fetch.checked_file import Fetched, Notice, Progress, nobody, silent
from orchestrator.support.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.fetch.http import Patience

__all__ = ["Fetched", "Progress", "fetch"]

DATE = "latest"


def fetch(
    name: str,
    *,
    to: Path | None = None,
    mirrors: Sequence[str] = (),
    home: Path | None = None,
    date: str = DATE,
    patience: Patience | None = None,
    progress: Progress = nobody,
    notice: Notice = silent,
) -> list[Fetched]:
    """Fetches what is called `name`; files that are there already, and are what they should be, are left alone.

    Args:
        name: `wikipedia`, `wikipedia:LANGUAGE`, `glue`, `glue:TASK`, `squad`, `squad:VERSION`, or a model on the Hub.
        to: folder for it; the default is `data/NAME`, for a model the Hub's cache.
        mirrors: where to look instead of the configured places, the first one first.
        home: the user's folder, whose mirrors.yaml is asked before the shipped one.
        date: of a Wikipedia dump, YYYYMMDD.
        patience: how long to wait for a server, and how often to try again.
        progress: told about every file as it grows.
        notice: told why something is tried again.

    Raises:
        UsageError: there is nothing of that name, or a date for what has none.
        UserError: of the network, of what came from it, or of the disk; the message says which.
    """
    # Each of these loads `requests`, or the Hub's client: a tenth of a second that other verbs need not spend.
    from orchestrator.fetch import glue, hub_model, squad, wikipedia
    from orchestrator.fetch.http import Client, Patience
    from orchestrator.fetch.mirrors import mirrors_of

    what, _, part = name.partition(":")
    if date != DATE and what != wikipedia.NAME:
        raise UsageError(f"--date is for wikipedia: {what} has no dates", fix=f"orchestrator data fetch {name}")
    if what not in {wikipedia.NAME, glue.NAME, squad.NAME}:
        return [hub_model.fetch_model(name, to, mirrors)]
    folder = to or Path("data", what)
    with Client(tuple(mirrors) or mirrors_of(what, home), patience or Patience(), progress, notice) as client:
        if what == wikipedia.NAME:
            return wikipedia.fetch_wikipedia(client, folder, part or wikipedia.LANGUAGE, date)
        return (glue.fetch_glue if what == glue.NAME else squad.fetch_squad)(client, folder, part)
