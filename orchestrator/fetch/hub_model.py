"""A model of the Hugging Face Hub, by the Hub's own client."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from orchestrator.fetch.checked_file import Fetched
from orchestrator.support.errors import ConflictError, UsageError
from train_jobs.artifacts.hub import hub_folder, is_hub_name
from train_jobs.config.names import set_aside

ENDPOINT = "HF_ENDPOINT"


def fetch_model(name: str, to: Path | None, mirrors: Sequence[str]) -> Fetched:
    """Downloads a model into the Hub's cache, where every job finds it by its name; with `to`, copies it there.

    Raises:
        UsageError: nothing is called like that.
        SpecError: as of `hub_folder`.
        ConflictError: `to` is there already.
    """
    if not is_hub_name(name):
        raise UsageError(
            f"there is nothing to fetch that is called {name!r}",
            fix="orchestrator data fetch wikipedia, glue, squad, or a model as OWNER/NAME",
        )
    if mirrors:
        os.environ[ENDPOINT] = mirrors[0]  # the client reads it when it is loaded, below
    if to is not None and to.exists():
        raise ConflictError(f"{to} is there already", fix=f"{set_aside(to)}, or another --to")
    folder = hub_folder(name)
    if to is not None:
        building = to.with_name(f".{to.name}.{os.getpid()}.part")
        try:
            shutil.copytree(folder, building)  # what the cache has as links is copied as files
            building.rename(to)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    place = to or folder
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    return Fetched(place, size, new=to is not None, checked="by the Hub's client")
