"""The folder that remembers: runs, caches and the local tracking store of this user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

HOME_VARIABLE = "ORCHESTRATOR_HOME"
DEFAULT_HOME = "~/.orchestrator"
RUNS = "runs"  # below it: a folder for each local run
TOKEN_STORES = "token-stores"  # prepared data, shared by all of them


def home_folder(environ: Mapping[str, str]) -> Path:
    """Home folder, absolute: `ORCHESTRATOR_HOME` where set and not empty, else ~/.orchestrator. It may not exist."""
    return Path(environ.get(HOME_VARIABLE) or DEFAULT_HOME).expanduser().absolute()


def run_names(*places: Path) -> list[str]:
    """Names of the runs whose folders lie in one of `places`, the newest submission first; loads nothing."""
    found = []
    for place in places:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:
            for entry in entries:
                with suppress(FileNotFoundError, NotADirectoryError):
                    if not entry.name.startswith("."):
                        found.append((Path(entry.path, "request.json").stat().st_mtime_ns, entry.name))
    return [name for _, name in sorted(found, reverse=True)]
