"""The folder that remembers: runs, caches and the local tracking store of this user."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

HOME_VARIABLE = "ORCHESTRATOR_HOME"
DEFAULT_HOME = "~/.orchestrator"


def home_folder(environ: Mapping[str, str]) -> Path:
    """Home folder, absolute: `ORCHESTRATOR_HOME` where set and not empty, else ~/.orchestrator. It may not exist."""
    return Path(environ.get(HOME_VARIABLE) or DEFAULT_HOME).expanduser().absolute()
