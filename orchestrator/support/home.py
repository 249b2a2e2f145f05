"""The folder that remembers: runs, caches and the local tracking store of this user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

FINGERPRINT_CACHE = Path("cache", "fingerprints.json")  # below the home folder

HOME_VARIABLE = "ORCHESTRATOR_HOME"
DEFAULT_HOME = "~/.orchestrator"
RUNS = "runs"  # below it: a folder for each local run
SWEEPS = "sweeps"  # a folder for each sweep
TOKEN_STORES = "token-stores"  # prepared data, shared by all of them


def home_folder(environ: Mapping[str, str]) -> Path:
    """Home folder, absolute: `ORCHESTRATOR_HOME` where set and not empty, else ~/.orchestrator. It may not exist."""
    return Path(environ.get(HOME_VARIABLE) or DEFAULT_HOME).expanduser().absolute()


def run_names(*places: Path) -> list[str]:
    """Names of the runs whose folders lie in one of `places`, the newest submission first; loads nothing."""
    return _names_beside("request.json", *places)


def sweep_names(home: Path) -> list[str]:
    """Names of the sweeps of a home folder, the newest submission first; loads nothing."""
    return _names_beside("lock", home / SWEEPS)


def _names_beside(file: str, *places: Path) -> list[str]:
    """Names of the folders in `places`, by the age of a file that each has from its submission on."""
    found = []
    for place in places:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:
            for entry in entries:
                with suppress(FileNotFoundError, NotADirectoryError):
                    if not entry.name.startswith("."):
                        found.append((Path(entry.path, file).stat().st_mtime_ns, entry.name))
    return [name for _, name in sorted(found, reverse=True)]
