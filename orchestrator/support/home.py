"""The home folder: runs, caches and the local tracking store of this user."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from train_jobs.config.errors import closest

FINGERPRINT_CACHE = Path("cache", "fingerprints.json")  # below the home folder
COMPILE_CACHE = Path("cache", "torch")  # code that torch.compile makes
COMPILE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"

HOME_VARIABLE = "ORCHESTRATOR_HOME"
DEFAULT_HOME = "~/.orchestrator"
RUNS = "runs"  # below it: a folder for each local run
SWEEPS = "sweeps"  # a folder for each sweep
TOKEN_STORES = "token-stores"  # prepared data, shared by all runs
SETTLED = 2.0  # seconds without a change until a cache is written: some file systems store times of whole seconds

_command = False


def run_as_command() -> None:
    """Declare that this process is a command of the project, not a user's program that imports it."""
    global _command
    _command = True


def is_command() -> bool:
    """Return whether this process is a command: only then may its umask change."""
    return _command


def home_folder(environ: Mapping[str, str]) -> Path:
    """Return the absolute home folder: `ORCHESTRATOR_HOME` unless empty, else ~/.orchestrator. It may not exist."""
    # absolute: supervisors have another working folder. Not resolved: symlinks to a larger disk keep their names.
    return Path(environ.get(HOME_VARIABLE) or DEFAULT_HOME).expanduser().absolute()


def compile_variables(home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variable by which torch.compile and Triton keep their code in the home.

    Their default is /tmp/torchinductor_USER. Torch loads libraries and pickles from it, even if another
    user made it.

    Args:
        home: the home folder.
        environ: environment of the caller, whose own choice stays.
    """
    chosen = environ.get(COMPILE_VARIABLE) or ""
    # In a process that imports it, torch sets the variable to that default.
    default = str(Path(tempfile.gettempdir(), "torchinductor_"))
    return {COMPILE_VARIABLE: chosen if chosen and not chosen.startswith(default) else str(home / COMPILE_CACHE)}


def similar_run(name: str, names: Iterable[str]) -> str:
    """Return ` (did you mean "x"?)` for the run whose name, or whose first part before the hash, is most similar."""
    whole = {known: known for known in names}
    beginnings = {known.rpartition("-")[0]: known for known in whole if "-" in known}
    close = closest(name, [*whole, *beginnings])
    return f' (did you mean "{whole.get(close) or beginnings[close]}"?)' if close is not None else ""


def run_names(*places: Path) -> list[str]:
    """Return the names of the runs with folders in `places`, newest submission first; imports nothing heavy."""
    return _names_by_age("request.json", *places)


def sweep_names(home: Path) -> list[str]:
    """Return the names of the sweeps of a home folder, newest submission first; imports nothing heavy."""
    return _names_by_age("lock", home / SWEEPS)


def _names_by_age(file: str, *places: Path) -> list[str]:
    """Return the names of the folders in `places`, sorted by the age of a file that the submission wrote."""
    # The file, because the time of a folder changes with every file in it. One stat a run and no JSON: shell completion
    # runs this on every Tab, and a home folder may have thousands of runs.
    found = []
    for place in places:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:
            for entry in entries:
                with suppress(FileNotFoundError, NotADirectoryError):  # deleted meanwhile, or not a run
                    if not entry.name.startswith("."):  # hidden folders are drafts and deletions
                        # no Path: it costs more than the call
                        found.append((os.stat(f"{entry.path}/{file}").st_mtime_ns, entry.name))  # noqa: PTH116
    return [name for _, name in sorted(found, reverse=True)]
